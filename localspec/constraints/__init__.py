"""Schemas, regular expressions and grammars → constraints of an answer."""
