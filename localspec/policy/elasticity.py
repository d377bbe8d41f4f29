"""How much of a change in what a target-only step takes other steps share.

Two things change what decodes take while an answer is written. A processor that slows down
slows all of them by the same share. Memory that others use, too, slows target-only steps, which
wait for it, and steps of many tokens hardly. So T(n) goes with T(1) to a power, the elasticity,
between 0 and 1, which is a regression coefficient and is learned as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_AT_FIRST = 0.5
_AT_FIRST_WEIGHS = 0.02  # squared changes, as logarithms: two of 10 % weigh as much
_MOST_WEIGHS = 0.25  # what is older than so many counts less
_LARGEST_CHANGE = 0.3  # logarithm; beyond it somebody was interrupted


class Elasticity:
    """d log T(n) / d log T(1), the same for all n ≥ 2."""

    def __init__(self) -> None:
        self._squares = _AT_FIRST_WEIGHS
        self._products = _AT_FIRST * _AT_FIRST_WEIGHS

    @property
    def value(self) -> float:
        """Between 0 and 1."""
        return min(max(self._products / self._squares, 0.0), 1.0)

    def learn(self, target_only_change: float, step_change: float) -> None:
        """Take into account that a step took so many times as long as before, and a target-only
        one.

        target_only_change, step_change: positive.
        """
        x, y = _logarithm(target_only_change), _logarithm(step_change)
        self._squares += x * x
        self._products += x * y
        if self._squares > _MOST_WEIGHS:
            self._products *= _MOST_WEIGHS / self._squares
            self._squares = _MOST_WEIGHS

    def ratio_change(self, target_only_change: float) -> float:
        """What v(n) = T(n) / T(1) is multiplied by where T(1) is by target_only_change."""
        return math.exp((self.value - 1.0) * _logarithm(target_only_change))

    def as_dict(self) -> dict[str, Any]:
        """What is worth keeping beyond this process, as JSON has it."""
        return {"squares": round(self._squares, 5), "products": round(self._products, 5)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what `as_dict` gave. Raises ValueError, TypeError or KeyError if it is
        something else, and is then unchanged."""
        squares, products = float(kept["squares"]), float(kept["products"])
        if not (_AT_FIRST_WEIGHS <= squares < math.inf and math.isfinite(products)):
            raise ValueError(f"squares of {squares} and products of {products}")
        self._squares, self._products = squares, products


def _logarithm(change: float) -> float:
    return min(max(math.log(change), -_LARGEST_CHANGE), _LARGEST_CHANGE)
