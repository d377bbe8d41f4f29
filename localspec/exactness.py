"""The sizes of a model's decodes whose rows are equal to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Cached entries: attention reads multiples of this number. At each its sums may change order.
_CELLS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """A class of sizes: decodes of these sizes have the same rows and caches, to the bit.

    If every decode is of one class, a text depends only on file, prompt, options and machine:
    not on the draft, the number of draft tokens or threads, or the cache.
    """

    smallest_step: int = 1
    """The fewest tokens of the class. Fewer are padded."""

    largest_step: int = 1
    """The most tokens of the class. More are decoded in pieces."""

    all_sizes: bool = False
    """Every size is in the class."""

    joined: bool = False
    """Decodes for several texts are in the class, too."""

    plain_cost: float = 1.0
    """Time of a padded single token ÷ time without padding."""

    reason: str = "not asked for (exact=True)"
    """Why there is no class; empty if there is one."""

    def __str__(self) -> str:
        if self.reason:
            return f"none: {self.reason}"
        return self.steps or "all sizes"

    @property
    def holds(self) -> bool:
        """Whether texts are the same to the bit."""
        return not self.reason

    @property
    def steps(self) -> str:
        """The class in words, with its cost; empty if every size is in it, or there is none."""
        if not self.is_bounded:
            return ""
        sizes = f"steps of {self.smallest_step} to {self.largest_step}"
        if self.smallest_step == 1:
            return sizes
        return f"{sizes}, plain tokens {self.plain_cost - 1:+.0%} time"

    @property
    def is_bounded(self) -> bool:
        """Whether decodes have to be kept within the class."""
        return self.holds and not self.all_sizes

    def end_of_piece(self, begin: int, end: int) -> int:
        """The end of the first piece if tokens from one position to another are decoded.

        A piece, with its padding, crosses a multiple of `_CELLS` only if every piece that
        begins at its position does: a token's row is always computed with the same number of
        cells.
        """
        if not self.is_bounded:
            return end
        padding = self.smallest_step - 1
        border = (begin + padding) // _CELLS * _CELLS + _CELLS - padding
        return min(end, begin + self.largest_step, border)

    @classmethod
    def saved(cls, values: Mapping[str, Any] | None) -> Exactness | None:
        """The class whose values were saved by name; None if there was none."""
        if values is None:
            return None
        with contextlib.suppress(TypeError):
            found = cls(**values)
            if found.holds:
                return found
        return None
