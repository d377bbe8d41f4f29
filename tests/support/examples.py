"""How many examples tests draw, of data that no one has thought of: few while you work."""

from __future__ import annotations

import os

# LOCALSPEC_TEST_EXAMPLES: fifths of what is drawn every night, where it is 5.
_FIFTHS = int(os.environ.get("LOCALSPEC_TEST_EXAMPLES", "1"))


def num_examples(every_night: int) -> int:
    """How many to draw now."""
    return -(-every_night * _FIFTHS // 5)
