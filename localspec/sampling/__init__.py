"""Logits → the distribution of the next token: the settings, and all that shapes it."""
