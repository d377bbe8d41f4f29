"""Behind `verify` and `bench`: whether drafting is lossless on this machine, and what it gains.

Each report says what its evidence can show.
"""
