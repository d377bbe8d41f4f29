"""The measurements of `verify` and `bench`: whether drafting is lossless, and its gain."""
