"""A distribution of the next token, and the types of its arrays.

`filters` and `chain` turn logits into a distribution. Nothing here knows a model, a draft or a
random stream.
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

MANY = 4096  # if there are more masses, they are summed and searched in parts
_PART = 256  # masses


class Distribution(NamedTuple):
    """A distribution over the vocabulary, as the tokens that were not cut and their masses."""

    ids: TokenIds
    """(m,) strictly ascending token ids."""

    masses: Masses
    """(m,) the probabilities times `total`. Ids that are not listed have probability 0. A row
    without a cut lists all ids, also banned ones; if it is long, its masses are float32."""

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
        """The token that a number from [0, 1) draws, by inversion.

        In the order of ids, each token has a part of [0, 1) as long as its probability. The
        result is the token whose part holds `uniform`.
        """
        if len(self.ids) == 1:
            return int(self.ids[0])
        masses = self.masses
        if len(masses) <= MANY:
            sums = masses.cumsum()
            index = _index_at(sums, uniform * sums[-1])
            return int(self.ids[index])
        # First find the part of the row that holds the number, then the mass within the part.
        part_ends = _part_sums(masses).cumsum(dtype=np.float64)
        position = uniform * part_ends[-1]
        part = _index_at(part_ends, position)
        part_start = 0.0
        if part > 0:
            part_start = float(part_ends[part - 1])
        begin = part * _PART
        sums = masses[begin : begin + _PART].cumsum(dtype=np.float64)
        # The part's sum was rounded in another way in part_ends: scale this one to it.
        sums *= (part_ends[part] - part_start) / sums[-1]
        sums += part_start
        return int(self.ids[begin + _index_at(sums, position)])


def _index_at(sums: Probs, position: float) -> int:
    """The index of the mass at a position, where masses lie end to end from 0 on.

    Args:
        sums: The sum of the masses up to each, including it.
        position: From 0 to the last sum.
    """
    # The product of a uniform and a sum can round up to the sum: stay on the last mass.
    last = int(sums.searchsorted(sums[-1]))
    index = int(sums.searchsorted(position, side="right"))
    return min(index, last)


def mass_of(masses: Masses) -> float:
    """The sum of the masses in double precision; many are first summed in parts."""
    if len(masses) > MANY:
        masses = _part_sums(masses)
    return float(masses.sum(dtype=np.float64))


def _part_sums(masses: Masses) -> Masses:
    """The sums of consecutive parts of _PART masses; the last part may be shorter."""
    num_in_whole_parts = len(masses) // _PART * _PART
    parts = masses[:num_in_whole_parts].reshape(-1, _PART)
    # Three times as fast as a sum along an axis.
    sums: Masses = np.einsum("ij->i", parts)
    if num_in_whole_parts == len(masses):
        return sums
    last_sum = masses[num_in_whole_parts:].sum()
    return np.append(sums, last_sum)
