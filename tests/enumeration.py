"""Exact distributions of code that draws random numbers: every outcome of every comparison,
weighed.

A `Uniform` stands for all of [0, 1) at once. When the code compares it with an edge, both
outcomes are followed, each with its share of what earlier comparisons left of the interval.
So a number that is used twice remembers its first use, which no Monte Carlo run would show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from localspec.sampling.distribution import Distribution


class Enumeration:
    """One run of the code at a time, along decisions that were not taken yet."""

    def __init__(self) -> None:
        self._script: list[bool] = []
        self._taken: list[bool] = []
        self._open: list[bool] = []
        self._intervals: dict[Hashable, tuple[float, float]] = {}
        self.weight = 1.0

    def distribution(self, run: Callable[[Enumeration], Hashable]) -> dict[Any, float]:
        """Probability of each result of `run`, over all of its uniforms."""
        results: dict[Any, float] = defaultdict(float)
        while True:
            self._taken, self._open = [], []
            self._intervals, self.weight = {}, 1.0
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Distribution, "draw", draw)
                results[run(self)] += self.weight
            while self._taken and not (self._open[-1] and self._taken[-1]):
                self._taken.pop()
                self._open.pop()
            if not self._taken:
                return dict(results)
            self._script = [*self._taken[:-1], False]

    def is_below(self, address: Hashable, edge: float) -> bool:
        """Whether the uniform of that address is below the edge: both, one after the other."""
        low, high = self._intervals.get(address, (0.0, 1.0))
        if edge >= high or edge <= low:
            return edge >= high
        number = len(self._taken)
        below = self._script[number] if number < len(self._script) else True
        self._taken.append(below)
        self._open.append(True)
        share = (edge - low) / (high - low)
        self.weight *= share if below else 1.0 - share
        self._intervals[address] = (low, edge) if below else (edge, high)
        return below

    def uniform(self, *address: Hashable) -> Uniform:
        return Uniform(self, address)

    def uniforms(self, step: int) -> _Uniforms:
        """In the place of `Randomness.uniforms`."""
        return _Uniforms(self, step)


class Uniform:
    """A number from [0, 1), times a positive factor, that can be compared."""

    def __init__(self, owner: Enumeration, address: Hashable, factor: float = 1.0) -> None:
        self._owner, self._address, self._factor = owner, address, factor

    def __mul__(self, factor: float) -> Uniform | float:
        return Uniform(self._owner, self._address, self._factor * factor) if factor else 0.0

    __rmul__ = __mul__

    def __lt__(self, edge: float) -> bool:
        return self._owner.is_below(self._address, edge / self._factor)

    def __ge__(self, edge: float) -> bool:
        return not self < edge


class _Uniforms:
    def __init__(self, owner: Enumeration, step: int, *at: Hashable) -> None:
        self._owner, self._step, self._at = owner, step, at

    def __getitem__(self, index: Any) -> Any:
        at = (*self._at, *(index if isinstance(index, tuple) else (index,)))
        if len(at) == 2:
            return Uniform(self._owner, (self._step, *at))
        return _Uniforms(self._owner, self._step, *at)


def draw(distribution: Distribution, uniform: Uniform) -> int:
    """`Distribution.draw` by comparisons, which is what an enumeration can follow."""
    mass = 0.0
    total = float(distribution.probs.sum())
    possible = [(int(i), float(p)) for i, p in zip(*distribution, strict=True) if p > 0]
    for token, prob in possible[:-1]:
        mass += prob
        if uniform < mass / total:
            return token
    return possible[-1][0]
