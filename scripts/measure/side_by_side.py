"""Two answers at once, a token of each in turn, so that both meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from localspec.streaming.answer import Answer


class Timed:
    """An answer that is read piece by piece. All times are without those between the pieces.

    first_s: seconds until the first piece, the prompt's reading among them. total_s: of all.
    """

    def __init__(self, stream: Answer) -> None:
        self.stream = stream
        self.first_s = 0.0
        self.total_s = 0.0

    def read_one(self) -> bool:
        """Read the next piece; False if there was none."""
        started = time.perf_counter()
        piece = next(self.stream, None)
        self.total_s += time.perf_counter() - started
        if self.first_s == 0.0:
            self.first_s = self.total_s
        return piece is not None


def read_in_turn(sides: Sequence[Timed]) -> None:
    """All of them to their ends."""
    while sum(side.read_one() for side in sides):
        pass


def shown(ratios: Sequence[float]) -> str:
    """Median, and the smallest and the largest."""
    spread = f" ({min(ratios):.3f} … {max(ratios):.3f})" if len(ratios) > 1 else ""
    return f"**{statistics.median(ratios):.3f}**{spread}"
