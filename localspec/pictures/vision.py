"""The interface of a model that sees."""

from __future__ import annotations

from typing import Protocol

from localspec.pictures.picture import Picture

_MOST_KNOWN = 256  # pictures, of a few hundred cells each


class Vision(Protocol):
    """A model's projector, wherever it is."""

    def cells(self, picture: Picture) -> list[int]:
        """The picture's tokens in a prompt, in order.

        Ids of the vocabulary for what stands around and within it, and a negative number for
        each cell of the cache that the picture itself takes: the same for the same picture.
        """


class KnownCells:
    """A `Vision` that remembers the cells of the last pictures.

    A conversation's pictures are in each of its prompts, and its `Vision` may be in another
    process.
    """

    def __init__(self, vision: Vision) -> None:
        self._vision = vision
        self._known: dict[bytes, list[int]] = {}  # by the digests of pictures

    def cells(self, picture: Picture) -> list[int]:
        """See `Vision`."""
        found = self._known.pop(picture.digest, None)
        if found is None:
            found = self._vision.cells(picture)
        self._known[picture.digest] = found  # at the end: it is forgotten last
        while len(self._known) > _MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)
        return found
