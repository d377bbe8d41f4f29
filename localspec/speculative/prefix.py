"""The common beginning of two texts."""

from __future__ import annotations

from collections.abc import Sequence


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    low = 0
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
