"""How many tokens to draft: what decodes cost here, how likely tokens are accepted."""
