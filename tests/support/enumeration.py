"""Exact distributions of code that draws random numbers: every outcome of every comparison.

A `Uniform` stands for all of [0, 1) at once. Where the code compares it with an edge, both
outcomes are followed, one after the other, each with its share of what earlier comparisons left
of the interval. So the probability of an outcome is the volume of a box, nothing is drawn, and
a number that is used twice remembers its first use, which no sampling would show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np

from localspec.speculative.policy_api import MAX_DRAFT_TOKENS
from localspec.speculative.randomness import Purpose, Randomness

Box = dict[Any, tuple[float, float]]  # address → the interval of its uniform


class Branch(NamedTuple):
    """A way through a run: its result, its probability, and the numbers that lead there."""

    result: Any
    prob: float
    box: Box


class Enumeration(Randomness):
    """Stands in for random numbers: leads a run along decisions that were not taken yet."""

    def __init__(self) -> None:
        super().__init__(0)
        self._script: list[bool] = []
        self._taken: list[bool] = []
        self._box: Box = {}
        self._prob = 1.0
        self._uniforms_of: dict[int, Any] = {}

    def outcomes(self, run: Callable[[Enumeration], Any]) -> Iterator[Branch]:
        """Every way that `run` can take. With equal numbers it has to do the same."""
        while True:
            self._taken = []
            self._box = {}
            self._prob = 1.0
            yield Branch(run(self), self._prob, self._box)
            while self._taken and not self._taken[-1]:
                self._taken.pop()
            if not self._taken:
                return
            self._script = [*self._taken[:-1], False]

    def distribution(self, run: Callable[[Enumeration], Hashable]) -> dict[Any, float]:
        """Probability of each result of `run`."""
        results: dict[Any, float] = defaultdict(float)
        for outcome in self.outcomes(run):
            results[outcome.result] += outcome.prob
        return dict(results)

    def uniforms(self, step: int) -> Any:
        """(len(Purpose), MAX_DRAFT_TOKENS) `Uniform`s, as an array of objects."""
        if step not in self._uniforms_of:
            table = np.empty((len(Purpose), MAX_DRAFT_TOKENS), dtype=object)
            for purpose, index in np.ndindex(table.shape):
                table[purpose, index] = self.uniform(step, purpose, index)
            self._uniforms_of[step] = table
        return self._uniforms_of[step]

    def uniform(self, *address: Hashable) -> Uniform:
        """The uniform of an address."""
        return Uniform(self, address)

    def is_below(self, address: Hashable, edge: float) -> bool:
        """Whether an address's uniform is below the edge: the first time yes, later no."""
        low, high = self._box.get(address, (0.0, 1.0))
        if edge >= high or edge <= low:
            return edge >= high
        share = (edge - low) / (high - low)
        number = len(self._taken)
        below = number >= len(self._script) or self._script[number]
        self._taken.append(below)
        self._prob *= share if below else 1.0 - share
        self._box[address] = (low, edge) if below else (edge, high)
        return below


class Uniform:
    """A number from [0, 1), times a positive factor, that can be compared.

    NumPy's own search compares it, too: `Distribution.draw` needs no twin here.
    """

    __slots__ = ("_address", "_factor", "_owner")

    def __init__(self, owner: Enumeration, address: Hashable, factor: float = 1.0) -> None:
        self._owner = owner
        self._address = address
        self._factor = factor

    def __mul__(self, factor: float) -> Uniform | float:
        if not factor:
            return 0.0
        return Uniform(self._owner, self._address, self._factor * float(factor))

    __rmul__ = __mul__

    def __lt__(self, edge: Any) -> bool:
        # NumPy's search begins with a comparison of the number with itself.
        return edge is not self and self._owner.is_below(
            self._address, float(edge) / self._factor
        )

    def __ge__(self, edge: Any) -> bool:
        return not self < edge

    def __gt__(self, edge: Any) -> bool:
        return edge is not self and not self < edge

    def __le__(self, edge: Any) -> bool:
        return edge is self or self < edge
