"""Exit codes of commands."""

FAILED = 1
USAGE = 2
NOT_ENOUGH_EVIDENCE = 3
INTERRUPTED = 130
