"""What `verify` and `bench` measure: whether drafting is lossless, and what it gains."""
