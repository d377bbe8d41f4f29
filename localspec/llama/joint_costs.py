"""Joins decodes of several texts if measured times say that this takes less time.

libllama computes a block in one graph: consecutive sequences with the same number of tokens.
Texts with fewer tokens are padded, and so are texts in between that want no decode.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import deque

LONGEST_STEP = 32  # tokens; a larger decode is part of a prompt
_NUM_TIMES = 5  # times for each number of rows, whose median counts
# A padded joint decode pays if it takes less than this share of the time of separate decodes.
_GAIN = 0.97

# Seconds that a chunk of a prompt may take longer than a step: while other texts write, which
# wait for it before their next token, and while none does. Earlier chunks show how many tokens
# that is; the first chunk has the number of tokens here.
_CHUNK_S = 0.4
_CHUNK_TOKENS = 32
_CHUNK_ALONE_S = 1.0
_CHUNK_ALONE_TOKENS = 64
# Chunks have a multiple of this number of tokens. On a processor 8, 16, 24 and 32 tokens took
# 4.0, 5.7, 9.0 and 9.8 times as long as one.
_CHUNK_STEP = 32
# The least share of a chunk's time that counts for its tokens. The other part is the fixed cost
# of a decode, estimated by the last step, which may have been slow.
_LEAST_SHARE = 0.1


class RowTimes:
    """Seconds that a context takes for a number of rows in one graph."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}

    def learn(self, num_rows: int, seconds: float) -> None:
        """Learn from a decode."""
        self._times.setdefault(num_rows, deque(maxlen=_NUM_TIMES)).append(seconds)

    def expected(self, num_rows: int) -> float:
        """Expected seconds for a number of rows.

        On the line through the nearest two numbers of rows that were timed; NaN without two.
        """
        if num_rows in self._times:
            return statistics.median(self._times[num_rows])
        known = sorted(self._times)
        if len(known) < 2:
            return math.nan
        above = bisect_left(known, num_rows)
        above = min(max(above, 1), len(known) - 1)
        low = known[above - 1]
        high = known[above]
        low_s = statistics.median(self._times[low])
        high_s = statistics.median(self._times[high])
        row_s = (high_s - low_s) / (high - low)
        return max(low_s + (num_rows - low) * row_s, 0.0)

    def pays(self, apart: list[int], num_rows: int) -> bool:
        """Whether a joint decode takes less time than separate ones.

        Args:
            apart: The numbers of rows of the separate decodes.
            num_rows: The number of rows of the joint one.
        """
        apart_s = sum(self.expected(rows) for rows in apart)
        return self.expected(num_rows) < _GAIN * apart_s


class ChunkTimes:
    """How many tokens of a prompt a context should decode at once."""

    def __init__(self) -> None:
        self._token_s = 0.0  # seconds of a token in a chunk; 0 if it is not known

    def learn(self, num_tokens: int, seconds: float, step_s: float) -> None:
        """Learn from a chunk. step_s: seconds of the last step."""
        tokens_s = max(seconds - step_s, _LEAST_SHARE * seconds)
        self._token_s = tokens_s / num_tokens

    def size(self, *, is_alone: bool) -> int:
        """Tokens of the next chunk. is_alone: whether no other text writes."""
        chunk_s = _CHUNK_S
        least = _CHUNK_TOKENS
        if is_alone:
            chunk_s = _CHUNK_ALONE_S
            least = _CHUNK_ALONE_TOKENS
        if not self._token_s:
            return least
        num_steps = -(-int(chunk_s / self._token_s) // _CHUNK_STEP)  # rounded up
        return max(num_steps * _CHUNK_STEP, least)
