"""What an answer may say: schemas, expressions and grammars → constraints."""
