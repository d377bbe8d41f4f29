"""The sizes of a model's decodes whose rows are equal to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Attention reads the cache in multiples of this number of cells, entries of the cache. At each
# multiple the order of its sums may change.
_CELLS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """A class of sizes: decodes of these sizes compute the same rows and caches, to the bit.

    If every decode has a size of one class, a text depends only on file, prompt, options and
    machine: not on the draft, the number of draft tokens or threads, or the cache.
    """

    smallest_step: int = 1
    """The smallest size of the class, in tokens. Smaller decodes are padded."""

    largest_step: int = 1
    """The largest size of the class, in tokens. Larger decodes are made in pieces."""

    all_sizes: bool = False
    """Whether every size is in the class."""

    joined: bool = False
    """Whether decodes of several texts at once are in the class, too."""

    plain_cost: float = 1.0
    """Time of a decode of one token with padding ÷ its time without."""

    reason: str = "not asked for (exact=True)"
    """Why there is no class; empty if there is one."""

    def __str__(self) -> str:
        if self.reason:
            return f"none: {self.reason}"
        return self.steps or "all sizes"

    @property
    def holds(self) -> bool:
        """Whether there is a class, so that texts are the same to the bit."""
        return not self.reason

    @property
    def steps(self) -> str:
        """The class in words, with its cost; empty if every size is in it, or there is none."""
        if not self.is_bounded:
            return ""
        sizes = f"steps of {self.smallest_step} to {self.largest_step}"
        if self.smallest_step == 1:
            return sizes
        extra_cost = self.plain_cost - 1
        return f"{sizes}, plain tokens {extra_cost:+.0%} time"

    @property
    def is_bounded(self) -> bool:
        """Whether decodes have to be kept within the class."""
        return self.holds and not self.all_sizes

    def end_of_piece(self, begin: int, end: int) -> int:
        """The position after the first piece, if tokens are decoded in pieces.

        A token's row has to be computed with the same number of cells in whichever piece it is.
        So a piece ends before the first token that would reach into the next `_CELLS` cells if
        a padded piece began with it.

        Args:
            begin: The position of the first token.
            end: The position after the last token.
        """
        if not self.is_bounded:
            return end
        padding = self.smallest_step - 1  # the most tokens that are added to a piece
        num_blocks = (begin + padding) // _CELLS + 1  # that the smallest piece reads
        border = num_blocks * _CELLS - padding
        return min(end, begin + self.largest_step, border)

    @classmethod
    def saved(cls, values: Mapping[str, Any] | None) -> Exactness | None:
        """The class that was saved.

        None if none was, if it says that no class holds, or if it has unknown fields.

        Args:
            values: The values of the fields by their names; None for nothing.
        """
        if values is None:
            return None
        with contextlib.suppress(TypeError):  # of fields that this version lacks
            exactness = cls(**values)
            if exactness.holds:
                return exactness
        return None
