"""Measured times of decodes: whether joining texts pays, and how large chunks of prompts are.

In one graph libllama computes a block: consecutive sequences with the same number of tokens,
each of which is a row. So in a joint decode texts with fewer tokens are padded, and so are
texts in between that want no decode.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import deque

LONGEST_STEP = 32  # tokens; a larger decode is part of a prompt
_NUM_TIMES = 5  # the latest times of each number of rows, whose median counts
# A padded joint decode pays if it takes less than this share of the time of separate decodes.
_PAYING_SHARE = 0.97

# While other texts write, they wait for a chunk before their next token. The seconds that the
# chunk may take longer than a step; and its least tokens, which the first chunk has.
_CHUNK_S = 0.4
_CHUNK_TOKENS = 32
# The same while no other text writes.
_CHUNK_ALONE_S = 1.0
_CHUNK_ALONE_TOKENS = 64
# Chunks have a multiple of this number of tokens. On a processor 8, 16, 24 and 32 tokens took
# 4.0, 5.7, 9.0 and 9.8 times as long as one.
_CHUNK_UNIT = 32
# At least this share of a chunk's time counts as time of its tokens. The rest is the fixed cost
# of a decode, estimated by the time of the last step, which may have been slow.
_LEAST_SHARE = 0.1


class RowTimes:
    """Measured seconds of a context's decodes, by their number of rows, with padding."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}  # the latest seconds, by rows

    def learn(self, num_rows: int, seconds: float) -> None:
        """Add the time of a decode."""
        times = self._times.setdefault(num_rows, deque(maxlen=_NUM_TIMES))
        times.append(seconds)

    def expected(self, num_rows: int) -> float:
        """Expected seconds of a decode with that number of rows; NaN if too few were timed.

        The median of its times. Without any, on the straight line through the medians of two
        other numbers of rows: the nearest below and above, or else the nearest two.
        """
        if num_rows in self._times:
            return statistics.median(self._times[num_rows])
        timed = sorted(self._times)
        if len(timed) < 2:
            return math.nan
        index = bisect_left(timed, num_rows)  # of the nearest above
        index = min(max(index, 1), len(timed) - 1)  # so that another is below it
        low = timed[index - 1]
        high = timed[index]
        low_s = statistics.median(self._times[low])
        high_s = statistics.median(self._times[high])
        row_s = (high_s - low_s) / (high - low)
        return max(low_s + (num_rows - low) * row_s, 0.0)

    def pays(self, separate_rows: list[int], num_rows: int) -> bool:
        """Whether a padded joint decode is expected to take less time than separate ones.

        False if an expected time is not known.

        Args:
            separate_rows: The number of rows of each separate decode.
            num_rows: The number of rows of the joint decode.
        """
        separate_s = sum(self.expected(rows) for rows in separate_rows)
        return self.expected(num_rows) < _PAYING_SHARE * separate_s


class ChunkTimes:
    """How many tokens of a prompt a context should decode at once."""

    def __init__(self) -> None:
        self._token_s = 0.0  # seconds of each token in the last chunk; 0 before the first

    def learn(self, num_tokens: int, seconds: float, step_s: float) -> None:
        """Learn from a chunk's time.

        Args:
            num_tokens: The tokens of the chunk.
            seconds: The seconds of its decode.
            step_s: The seconds of the last step's decode.
        """
        tokens_s = max(seconds - step_s, _LEAST_SHARE * seconds)
        self._token_s = tokens_s / num_tokens

    def size(self, *, is_alone: bool) -> int:
        """Tokens of the next chunk. is_alone: whether no other text writes."""
        chunk_s = _CHUNK_S
        least_tokens = _CHUNK_TOKENS
        if is_alone:
            chunk_s = _CHUNK_ALONE_S
            least_tokens = _CHUNK_ALONE_TOKENS
        if not self._token_s:
            return least_tokens
        num_tokens = int(chunk_s / self._token_s)
        num_units = math.ceil(num_tokens / _CHUNK_UNIT)
        return max(num_units * _CHUNK_UNIT, least_tokens)
