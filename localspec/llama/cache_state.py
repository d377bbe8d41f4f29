"""A cached sequence as bytes, and where the pictures of its text are.

A text's token i is at position i. A picture may take fewer positions than it has cells, as
where a position has parts for rows and columns (M-RoPE); then all later tokens have lower
positions. A model that sees no pictures passes over them: there they take no position at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class PictureSpan(NamedTuple):
    """A picture's cells in a row, from a place of the text on."""

    begin: int
    num_cells: int
    num_positions: int
    """Positions from its first one to that of the next token."""

    last: int
    """The last cell's position minus the first one's, as libllama has them; -1 if the cache has
    no entries of it."""

    @property
    def end(self) -> int:
        """The place after the picture."""
        return self.begin + self.num_cells

    @property
    def is_read(self) -> bool:
        """Whether the model has read the picture, and not passed over it."""
        return self.num_positions > 0


def checked_spans(rows: Iterable[Iterable[int]], num_cached: int) -> PictureSpans:
    """Pictures of a text in a file. Raises ValueError or TypeError for impossible numbers."""
    spans = []
    end = 0
    for numbers in rows:
        span = PictureSpan(*(int(number) for number in numbers))
        is_within = end <= span.begin < span.end <= num_cached
        most = span.num_cells
        if span.num_positions < 1:
            most = span.num_positions
        has_positions = 0 <= span.num_positions <= most and -1 <= span.last <= most
        if not (is_within and has_positions):
            raise ValueError("a picture is not within the text")
        spans.append(span)
        end = span.end
    return PictureSpans(spans)


class PictureSpans(tuple[PictureSpan, ...]):
    """Pictures of a text, ascending."""

    __slots__ = ()

    def position(self, place: int) -> int:
        """The position of the token at a place, which is not within a picture that was read."""
        if not self:
            return place
        position = place
        for span in self:
            is_before = span.end <= place
            is_passed_over = span.begin < place and not span.is_read
            if is_before or is_passed_over:
                num_cells = min(span.num_cells, place - span.begin)
                position -= num_cells - span.num_positions
        return position

    def last_position(self, place: int) -> int:
        """The position of the last entry before a place; -1 if there is none."""
        for span in self:
            if span.end == place:
                return self.position(span.begin) + span.last
        return self.position(place) - 1

    def place_after(self, last_position: int) -> int:
        """The place after the entries up to that position, which cuts no picture."""
        place = last_position + 1
        for span in self:
            if self.position(span.begin) <= last_position:
                place += span.num_cells - span.num_positions
        return place

    def floor(self, place: int) -> int:
        """The place, or the beginning of the picture that contains it."""
        for span in self:
            if span.is_read and span.begin < place < span.end:
                return span.begin
        return place

    def up_to(self, place: int) -> PictureSpans:
        """The pictures before a place, which is one that `floor` keeps."""
        spans = []
        for span in self:
            if span.begin < place:
                num_cells = min(span.num_cells, place - span.begin)
                spans.append(span._replace(num_cells=num_cells))
        return PictureSpans(spans)


class CacheState(NamedTuple):
    """The entries of num_cached tokens."""

    num_cached: int
    data: NDArray[np.uint8]
    """(bytes,) uint8, only for the same model."""

    checkpoint: CacheState | None = None
    """The recurrent state after fewer tokens, if there is one."""

    pictures: PictureSpans = PictureSpans()
    """The pictures among the tokens."""

    @property
    def num_bytes(self) -> int:
        """Memory that the state takes."""
        if self.checkpoint is None:
            return self.data.size
        return self.data.size + self.checkpoint.data.size

    def copy(self) -> CacheState:
        """A copy of the entries; the checkpoint is shared."""
        return self._replace(data=self.data.copy())
