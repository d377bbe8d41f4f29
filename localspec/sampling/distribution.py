"""A distribution of the next token, and its arrays.

`filters` and `chain` turn logits into one. Nothing here knows a model, a draft or a random
stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Probs = NDArray[np.float64]
Masses = NDArray[np.float64] | NDArray[np.float32]
TokenIds = NDArray[np.int64]

CERTAIN: Probs = np.ones(1)  # the masses of every distribution that leaves one token
CERTAIN.setflags(write=False)

MANY = 4096  # masses above this number are summed and searched in parts
_PART = 256


class Distribution(NamedTuple):
    """A distribution over the vocabulary, kept by its survivors."""

    ids: TokenIds
    """(m,) strictly ascending token ids."""

    masses: Masses
    """(m,) in proportion to the probabilities. Ids that are not listed have probability 0. A
    row without a cut lists all ids, also banned ones; if it is long, its masses are float32."""

    total: float = 1.0
    """The sum of the masses."""

    @property
    def probs(self) -> Probs:
        """The probabilities: (m,) float64, sum 1, a new array."""
        return np.divide(self.masses, self.total, dtype=np.float64)

    @property
    def largest_prob(self) -> float:
        """Probability of the most probable token."""
        return float(self.masses.max()) / self.total

    @property
    def has_first_ids(self) -> bool:
        """Whether the ids are 0, 1, … m - 1, as of a row without a cut."""
        return len(self.ids) == int(self.ids[-1]) + 1

    def prob(self, token: int) -> float:
        """Probability of one token id."""
        if len(self.ids) == 1:
            return float(self.ids[0] == token)
        index = int(self.ids.searchsorted(token))
        if index < len(self.ids) and self.ids[index] == token:
            return float(self.masses[index]) / self.total
        return 0.0

    def draw(self, uniform: float) -> int:
        """The token whose share of the unit interval holds `uniform`, from [0, 1)."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        masses = self.masses
        if len(masses) <= MANY:
            reached = masses.cumsum()
            return int(self.ids[_holder(reached, uniform * reached[-1])])
        # First the part that holds the number, then the mass within the part.
        reached = _part_sums(masses).cumsum(dtype=np.float64)
        sought = uniform * reached[-1]
        part = _holder(reached, sought)
        start = 0.0
        if part > 0:
            start = float(reached[part - 1])
        begin = part * _PART
        inner = masses[begin : begin + _PART].cumsum(dtype=np.float64)
        inner *= (reached[part] - start) / inner[-1]  # the part's own sum was rounded
        inner += start
        return int(self.ids[begin + _holder(inner, sought)])


def _holder(reached: Probs, sought: float) -> int:
    """The index of the mass that holds a number. reached: the sums of the masses up to each."""
    # The product of a uniform and a sum can round up to the sum: stay on the last mass.
    last = int(reached.searchsorted(reached[-1]))
    return min(int(reached.searchsorted(sought, side="right")), last)


def mass_of(masses: Masses) -> float:
    """The sum of the masses in double precision; many are first summed in parts."""
    if len(masses) > MANY:
        masses = _part_sums(masses)
    return float(masses.sum(dtype=np.float64))


def _part_sums(masses: Masses) -> Masses:
    """The sums of consecutive parts of the masses."""
    whole = len(masses) // _PART * _PART
    # Three times as fast as a sum along an axis.
    sums: Masses = np.einsum("ij->i", masses[:whole].reshape(-1, _PART))
    if whole == len(masses):
        return sums
    return np.append(sums, masses[whole:].sum())
