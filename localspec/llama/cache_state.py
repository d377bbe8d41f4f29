"""A cached sequence as bytes, and where the pictures of its text are.

A text's token i is at position i. A picture may take fewer positions than it has cells, as
where a position has parts for rows and columns (M-RoPE); then all that follows is further in
front. A model that sees no pictures passes over them: there they take no position at all.
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
    """Positions from its first one to that of what follows."""

    last: int
    """The last cell's position minus the first one's, as libllama sees it; -1 where it has
    no entries."""

    @property
    def end(self) -> int:
        """The place of what follows."""
        return self.begin + self.num_cells

    @property
    def is_read(self) -> bool:
        """Whether the model has read it, and not passed over it."""
        return self.num_positions > 0


def checked_spans(rows: Iterable[Iterable[int]], num_cached: int) -> PictureSpans:
    """Pictures of a text in a file. Raises ValueError or TypeError for impossible numbers."""
    spans = [PictureSpan(*map(int, numbers)) for numbers in rows]
    end = 0
    for span in spans:
        is_within = end <= span.begin < span.end <= num_cached
        most = span.num_positions if span.num_positions < 1 else span.num_cells
        if not (is_within and 0 <= span.num_positions <= most and -1 <= span.last < most + 1):
            raise ValueError("a picture is not within the text")
        end = span.end
    return PictureSpans(spans)


class PictureSpans(tuple[PictureSpan, ...]):
    """Pictures of a text, ascending."""

    __slots__ = ()

    def position(self, place: int) -> int:
        """The position of what stands at a place: of none within a picture that is read."""
        if not self:
            return place
        return place - sum(
            min(span.num_cells, place - span.begin) - span.num_positions
            for span in self
            if span.end <= place or (span.begin < place and not span.is_read)
        )

    def last_position(self, place: int) -> int:
        """The position of the last entry before a place; -1 if there is none."""
        for span in self:
            if span.end == place:
                return self.position(span.begin) + span.last
        return self.position(place) - 1

    def place_after(self, last_position: int) -> int:
        """The place behind the entries up to that position, if no picture is cut by it."""
        place = last_position + 1
        for span in self:
            if self.position(span.begin) <= last_position:
                place += span.num_cells - span.num_positions
        return place

    def floor(self, place: int) -> int:
        """The place, or that in front of the picture that it is within."""
        for span in self:
            if span.is_read and span.begin < place < span.end:
                return span.begin
        return place

    def up_to(self, place: int) -> PictureSpans:
        """The pictures in front of a place, which is none that `floor` moves."""
        return PictureSpans(
            span._replace(num_cells=min(span.num_cells, place - span.begin))
            for span in self
            if span.begin < place
        )


class CacheState(NamedTuple):
    """The entries of num_cached tokens."""

    num_cached: int
    data: NDArray[np.uint8]
    """(bytes,) uint8, for the same model only."""

    checkpoint: CacheState | None = None
    """The recurrent state after fewer tokens, if there is one."""

    pictures: PictureSpans = PictureSpans()
    """The pictures among the tokens."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.data.size + (0 if self.checkpoint is None else self.checkpoint.data.size)

    def copy(self) -> CacheState:
        """A copy of the entries, without the checkpoint's."""
        return self._replace(data=self.data.copy())
