"""Checks for `verify` and `bench` whether drafting is lossless here, and what it gains.

Each report says what its evidence can show.
"""
