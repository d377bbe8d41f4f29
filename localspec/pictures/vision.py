"""What can be asked of a model that sees."""

from __future__ import annotations

from typing import Protocol

from localspec.pictures.picture import Picture


class Vision(Protocol):
    """A model's projector, wherever it is."""

    def cells(self, picture: Picture) -> list[int]:
        """The picture's tokens in a prompt, in order.

        Ids of the vocabulary for what stands around and within it, and a negative number for
        each cell of the cache that the picture itself takes: the same for the same picture.
        """
