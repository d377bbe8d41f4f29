"""A cached sequence as bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.llama.spans import PictureSpan


class CacheState(NamedTuple):
    """The entries of num_cached tokens. data: (bytes,) uint8, for the same model only.

    checkpoint: the recurrent state after fewer tokens, if there is one. pictures: among them.
    """

    num_cached: int
    data: NDArray[np.uint8]
    checkpoint: CacheState | None = None
    pictures: tuple[PictureSpan, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.data.size + (0 if self.checkpoint is None else self.checkpoint.data.size)

    def copy(self) -> CacheState:
        """The same entries in memory of their own, without the checkpoint's."""
        return self._replace(data=self.data.copy())
