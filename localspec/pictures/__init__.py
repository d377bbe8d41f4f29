"""Pictures that people show a model: checked, decoded, and their cells among the tokens."""
