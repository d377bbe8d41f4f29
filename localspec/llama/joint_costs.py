"""Joins decodes of several texts where that takes less time, as timed here.

libllama computes a block in one graph: sequences that follow one another, with as many tokens
each. Texts that have fewer are padded to that, and so are those in between that want nothing.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import deque

LONGEST_STEP = 32  # tokens; a larger decode is part of a prompt
_NUM_TIMES = 5  # of each number of rows, whose median counts
# Of the time of two decodes, which a joint one may take at most where it is padded.
_GAIN = 0.97

# Seconds that a chunk of a prompt takes beyond a step: while others write, who have to wait
# that long for their next token, and while none does. Earlier chunks say how many tokens that
# is; the first ones have these.
_CHUNK_S = 0.4
_CHUNK_TOKENS = 32
_CHUNK_ALONE_S = 1.0
_CHUNK_ALONE_TOKENS = 64
# A chunk has a multiple of this. On a processor 8, 16, 24 and 32 tokens took 4.0, 5.7, 9.0
# and 9.8 times as long as one.
_CHUNK_STEP = 32
# The least share of a chunk's time that counts as its tokens'. The remainder is what any decode
# takes, as the last step did, which was at another time.
_LEAST_SHARE = 0.1


class RowTimes:
    """Seconds that a context takes for so many rows in one graph."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}

    def learn(self, num_rows: int, seconds: float) -> None:
        """Learn from a decode."""
        self._times.setdefault(num_rows, deque(maxlen=_NUM_TIMES)).append(seconds)

    def expected(self, num_rows: int) -> float:
        """On the line through the nearest numbers of rows that were timed; NaN without two."""
        known = sorted(self._times)
        if num_rows in self._times:
            return statistics.median(self._times[num_rows])
        if len(known) < 2:
            return math.nan
        above = min(max(bisect_left(known, num_rows), 1), len(known) - 1)
        low = known[above - 1]
        high = known[above]
        low_s, high_s = (statistics.median(self._times[each]) for each in (low, high))
        return max(low_s + (num_rows - low) * (high_s - low_s) / (high - low), 0.0)

    def pays(self, apart: list[int], num_rows: int) -> bool:
        """Whether so many rows at once take less time than decodes of these numbers of rows."""
        return self.expected(num_rows) < _GAIN * sum(map(self.expected, apart))


class ChunkTimes:
    """How many tokens of a prompt a context is to decode at once."""

    def __init__(self) -> None:
        self._token_s = 0.0  # of one among them; 0 if it is not known

    def learn(self, num_tokens: int, seconds: float, step_s: float) -> None:
        """Learn from a chunk. step_s: what the last step took."""
        self._token_s = max(seconds - step_s, _LEAST_SHARE * seconds) / num_tokens

    def size(self, *, is_alone: bool) -> int:
        """is_alone: whether nobody writes meanwhile."""
        chunk_s, first = (
            (_CHUNK_ALONE_S, _CHUNK_ALONE_TOKENS) if is_alone else (_CHUNK_S, _CHUNK_TOKENS)
        )
        wanted = int(chunk_s / self._token_s) if self._token_s else first
        return max(-(-wanted // _CHUNK_STEP) * _CHUNK_STEP, first)
