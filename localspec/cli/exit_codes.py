"""How the process tells its caller what became of a command."""

FAILED, USAGE, NOT_ENOUGH_EVIDENCE, INTERRUPTED = 1, 2, 3, 130
