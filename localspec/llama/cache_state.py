"""A cached sequence as bytes, and where the pictures of its text are.

A token's *index* is its place in the list of tokens, in which each cell of a picture counts as
a token. Its *position* is libllama's number for it. In a text without pictures both are equal.
A picture may take fewer positions than it has cells, as where a position has parts for rows and
columns (M-RoPE); then the positions of all later tokens are below their indices. A model that
sees no pictures passes over them: for it they take no position at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class PictureSpan(NamedTuple):
    """A part of a picture: its cells, which follow each other in the text."""

    begin: int
    """The index of the first cell."""

    num_cells: int
    num_positions: int
    """The next token's position minus the first cell's; 0 for a picture passed over."""

    last: int
    """The last cell's position minus the first cell's, as libllama has them; -1 if the cache
    has no entries of the picture."""

    @property
    def end(self) -> int:
        """The index after the last cell."""
        return self.begin + self.num_cells

    @property
    def is_read(self) -> bool:
        """Whether the model has read the picture, and not passed over it."""
        return self.num_positions > 0


def checked_spans(rows: Iterable[Iterable[int]], num_cached: int) -> PictureSpans:
    """The pictures of a text from the numbers in a file, which may be damaged.

    Args:
        rows: For each picture the four numbers of a `PictureSpan`.
        num_cached: The number of the text's tokens that are cached.

    Raises:
        ValueError, TypeError: For impossible numbers.
    """
    spans = []
    end_before = 0  # the end of the picture before
    for numbers in rows:
        span = PictureSpan(*map(int, numbers))
        is_within = end_before <= span.begin < span.end <= num_cached
        are_positions_possible = 0 <= span.num_positions <= span.num_cells
        largest_last = 0
        if span.is_read:
            largest_last = span.num_cells
        is_last_possible = -1 <= span.last <= largest_last
        if not (is_within and are_positions_possible and is_last_possible):
            raise ValueError("a picture is not within the text")
        spans.append(span)
        end_before = span.end
    return PictureSpans(spans)


class PictureSpans(tuple[PictureSpan, ...]):
    """The pictures of a text in order: converts indices of tokens to positions and back."""

    __slots__ = ()

    def position(self, index: int) -> int:
        """The position of the token at an index.

        The index is not within a picture that was read: its cells have positions of their own.
        """
        position = index
        for span in self:
            is_before = span.end <= index
            is_passed_over = span.begin < index and not span.is_read
            if is_before or is_passed_over:
                num_cells = min(span.num_cells, index - span.begin)
                position -= num_cells - span.num_positions
        return position

    def last_position(self, index: int) -> int:
        """The position of the last cache entry before an index; -1 if there is none."""
        for span in self:
            if span.end == index:
                return self.position(span.begin) + span.last
        return self.position(index) - 1

    def index_after(self, last_position: int) -> int:
        """The index of the next token if the last cached entry has that position.

        The position is not within a picture, but before or after its cells.
        """
        index = last_position + 1
        for span in self:
            if self.position(span.begin) <= last_position:
                index += span.num_cells - span.num_positions
        return index

    def floor(self, index: int) -> int:
        """The index; within a picture that was read, the index of its first cell."""
        for span in self:
            if span.is_read and span.begin < index < span.end:
                return span.begin
        return index

    def up_to(self, index: int) -> PictureSpans:
        """The pictures before an index; of a picture that contains the index, the cells before.

        Only a picture that was passed over may contain the index: see `floor`.
        """
        spans = []
        for span in self:
            if span.begin < index:
                num_cells = min(span.num_cells, index - span.begin)
                spans.append(span._replace(num_cells=num_cells))
        return PictureSpans(spans)


class CacheState(NamedTuple):
    """A copy of the cache entries of a text's first num_cached tokens."""

    num_cached: int
    data: NDArray[np.uint8]
    """(bytes,) uint8, the entries in libllama's format; only for the same model."""

    checkpoint: CacheState | None = None
    """The recurrent state after num_cached or fewer tokens; None without one."""

    pictures: PictureSpans = PictureSpans()
    """The pictures among the tokens."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the state takes."""
        if self.checkpoint is None:
            return self.data.size
        return self.data.size + self.checkpoint.data.size

    def copy(self) -> CacheState:
        """A copy of the entries; the checkpoint is shared."""
        return self._replace(data=self.data.copy())
