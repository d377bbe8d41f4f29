"""Answers to a question, one after the other, so that each has the machine to itself."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from localspec.streaming.answer import Answer


class Timed:
    """An answer and its times, known once it was read.

    first_s: seconds until the first token, the prompt's reading among them. total_s: of all.
    """

    def __init__(self, stream: Answer) -> None:
        self.stream = stream
        self.first_s = 0.0
        self.total_s = 0.0

    def read(self) -> None:
        """Read it to its end."""
        stats = self.stream.reply().stats
        self.first_s, self.total_s = stats.time_to_first_token_s, stats.total_time_s


def read_in_turn(sides: Sequence[Timed]) -> None:
    """All of them to their ends."""
    for side in sides:
        side.read()


def shown(ratios: Sequence[float]) -> str:
    """Median, and the smallest and the largest."""
    spread = f" ({min(ratios):.3f} … {max(ratios):.3f})" if len(ratios) > 1 else ""
    return f"**{statistics.median(ratios):.3f}**{spread}"
