"""The cells of pictures in a list of tokens: numbers below 0; ids of tokens are 0 or more.

A picture consists of one *part* or several, between which text may stand. In a list of tokens a
part is a row of *cells*, one for each entry that it takes in a model's cache. A cell's number
tells which picture it belongs to: the same picture, read by the same projector, has the same
numbers in every process, and another picture has others. So lists of tokens with pictures are
compared, cut and continued like any others.

-1 minus a cell's number has in its higher bits a key, which is a hash of the part, and in its
lower bits the index of the cell in the part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

_INDEX_BITS = 20
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_KEY_BITS = 42
# The highest bit of each key is 1. So no cell's number fits 32 bits: a function that only takes
# ids of tokens refuses a cell, instead of taking it for another token.
_LEAST_KEY = 1 << (_KEY_BITS - 1)
HIGHEST_CELL = -1 - (_LEAST_KEY << _INDEX_BITS)  # the highest number that a cell can have
_HASH_BYTES = 8
_UNUSED_BITS = 8 * _HASH_BYTES - _KEY_BITS


def cell_numbers(part_name: bytes, count: int) -> list[int]:
    """The numbers of a part's cells, in order.

    Args:
        part_name: Bytes of any length that identify the part.
        count: The number of cells, less than 2^20.
    """
    assert 0 < count <= _INDEX_MASK
    digest = hashlib.sha256(part_name).digest()
    hashed = int.from_bytes(digest[:_HASH_BYTES], "big")
    key = hashed >> _UNUSED_BITS
    key |= _LEAST_KEY
    first = -1 - (key << _INDEX_BITS)
    return list(range(first, first - count, -1))


def cell_ranges(tokens: Sequence[int]) -> Iterator[range]:
    """The ranges of indices at which a list has cells: one for each part, in order."""
    end = 0
    for index, token in enumerate(tokens):
        if token < 0 and index >= end:
            end = end_of_part(tokens, index + 1)
            yield range(index, end)


def end_of_part(tokens: Sequence[int], index: int) -> int:
    """The least index, from `index` on, at which a list can be cut without cutting a part.

    That is `index` itself, unless a cell is there that is not the first of its part.
    """
    while index < len(tokens) and _is_later_cell(tokens[index]):
        index += 1
    return index


def _is_later_cell(token: int) -> bool:
    """Whether a token is a cell, but not the first one of its part."""
    return token < 0 and (-1 - token) & _INDEX_MASK > 0


def has_cells(tokens: Sequence[int]) -> bool:
    """Whether any token is a cell of a picture."""
    return min(tokens, default=0) < 0


def without_cells(tokens: Sequence[int]) -> list[int]:
    """The tokens without cells of pictures."""
    return [token for token in tokens if token >= 0]
