"""Distributions of the next token, and everything that shapes them."""
