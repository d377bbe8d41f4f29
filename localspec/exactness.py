"""Sizes of decodes whose rows are equal to the bit: what is known of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Cached entries: attention reads whole multiples of it, and may add otherwise at each.
_CELLS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """A class of sizes: decodes of so many tokens have the same rows and caches, to the bit.

    Where every decode is of one class, a text is one function of file, prompt, options and
    machine: not of the draft, the number of draft tokens or threads, or what was cached.
    """

    smallest_step: int = 1
    """The fewest tokens of the class. Fewer are padded."""

    largest_step: int = 1
    """The most tokens of the class. More are decoded in pieces."""

    all_sizes: bool = False
    """Every size is in it."""

    joined: bool = False
    """So are decodes that several texts have a part in."""

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
        """Where the first piece ends if tokens from one position to another are decoded.

        No piece, with its padding, reaches over a multiple of `_CELLS` unless all that begin
        there do: a token's row is always computed with as many cells.
        """
        if not self.is_bounded:
            return end
        padding = self.smallest_step - 1
        border = (begin + padding) // _CELLS * _CELLS + _CELLS - padding
        return min(end, begin + self.largest_step, border)

    @classmethod
    def saved(cls, values: Mapping[str, Any] | None) -> Exactness | None:
        """The class whose values were saved by name; None if there was none."""
        with contextlib.suppress(TypeError):
            found = cls(**(values or {}))
            if found.holds:
                return found
            return None
        return None
