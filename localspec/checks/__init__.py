"""Behind `verify` and `bench`: evidence, and what drafting gains."""
