"""Exit codes of commands."""

FAILED, USAGE, NOT_ENOUGH_EVIDENCE, INTERRUPTED = 1, 2, 3, 130
