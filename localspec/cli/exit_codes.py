"""How the process tells its caller what became of a command."""

FAILED, USAGE, INTERRUPTED = 1, 2, 130
