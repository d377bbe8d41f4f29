"""The cells of pictures in a list of tokens: numbers below 0, where no id of a token is.

A model reads a picture as one row or several of them: its parts, between which text may stand.
Each cell is an entry of the cache. Its number tells which picture it belongs to: the same
picture, read by the same projector, has the same numbers in every process, and another picture
has others. So lists of tokens are compared, cut and continued as for texts alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

_INDEX_BITS = 20
_INDEX_MASK = (1 << _INDEX_BITS) - 1
# No number fits 32 bits, so a function that only takes ids of tokens refuses a cell, instead of
# taking it for another token.
_KEY_BITS = 42
_LEAST_KEY = 1 << 41
LAST_CELL = -1 - (_LEAST_KEY << _INDEX_BITS)  # no cell's number is nearer to 0


def cell_numbers(key: bytes, count: int) -> list[int]:
    """The numbers of a part's cells, up to a million. key: names the part; of any length."""
    assert 0 < count <= _INDEX_MASK
    hashed = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
    first = -1 - (((hashed >> (64 - _KEY_BITS)) | _LEAST_KEY) << _INDEX_BITS)
    return list(range(first, first - count, -1))


def cell_ranges(tokens: Sequence[int]) -> Iterator[range]:
    """The ranges of a list that hold cells: one for each part, in order."""
    end = 0
    for index, token in enumerate(tokens):
        if token < 0 and index >= end:
            end = end_of_part(tokens, index + 1)
            yield range(index, end)


def end_of_part(tokens: Sequence[int], index: int) -> int:
    """The first index from this one on that is not within a picture's part."""
    while index < len(tokens) and tokens[index] < 0 and (-1 - tokens[index]) & _INDEX_MASK:
        index += 1
    return index


def has_cells(tokens: Sequence[int]) -> bool:
    """Whether any token is a cell of a picture."""
    return min(tokens, default=0) < 0


def without_cells(tokens: Sequence[int]) -> list[int]:
    """The tokens without cells of pictures."""
    return [token for token in tokens if token >= 0]
