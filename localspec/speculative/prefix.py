"""The common beginning of two texts."""

from __future__ import annotations

from collections.abc import Sequence


def common_length(tokens: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common prefix of two texts of one type, by binary search."""
    low = 0
    high = min(len(tokens), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if tokens[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
