"""Tests whether tokens follow the distributions that they should be drawn from.

Given everything before it, each token is a draw from a known distribution. Its category (its
rank, for example) then has a known expectation and covariance, although each distribution is
different and depends on earlier draws. The sums of observed minus expected counts are a
martingale, and their quadratic form over the summed covariances is chi-square (McLeish, Ann.
Probab. 2, 1974).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.sampling.distribution import Probs


class CategoryTest:
    """Counts tokens by category."""

    def __init__(self, num_categories: int) -> None:
        self._excess = np.zeros(num_categories)
        self._covariance = np.zeros((num_categories, num_categories))
        self.num_tokens = 0

    def add(self, category_probs: Probs, category: int) -> None:
        """One token: (num_categories,) probabilities that sum to 1, and where it fell."""
        self._excess -= category_probs
        self._excess[category] += 1.0
        self._covariance += np.diag(category_probs) - np.outer(category_probs, category_probs)
        self.num_tokens += 1

    @property
    def p_value(self) -> float:
        """Probability of so large an excess, if the tokens follow their distributions."""
        values, vectors = np.linalg.eigh(self._covariance)
        kept = _told_apart(values)
        along: NDArray[np.float64] = (vectors.T @ self._excess)[kept]
        return chi_square_tail(float((along**2 / values[kept]).sum()), int(kept.sum()))

    def smallest_visible_bias(self, alpha: float, power: float) -> float:
        """The shift of one category's probability that gives a p-value below alpha.

        power: with which probability. For the category in which a shift shows least; 1 if no
        shift would show.
        """
        freedom = int(_told_apart(np.linalg.eigvalsh(self._covariance)).sum())
        if freedom == 0:
            return 1.0
        # The excess that is needed, in standard deviations (a shift in one category is at
        # least as far from 0 in the quadratic form as in that category alone).
        needed = math.sqrt(noncentrality(freedom, alpha, power))
        spare = NormalDist().inv_cdf(power)
        variance = float(self._covariance.diagonal().max())
        # Wrong tokens come by chance, too: excess = (needed - spare) * deviation
        # + spare * deviation with the excess, as in sample sizes for proportions.
        middle = (needed - spare) * math.sqrt(variance) + spare**2 / 2
        constant = needed * (needed - 2 * spare) * variance
        excess = middle + math.sqrt(max(middle**2 - constant, 0.0))
        return min(1.0, excess / self.num_tokens)


def _told_apart(values: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Which eigenvalues count: categories that never vary or never occur add nothing."""
    told_apart: NDArray[np.bool_] = values > 1e-9 * max(1.0, float(values.max()))
    return told_apart


@functools.cache
def noncentrality(freedom: int, alpha: float, power: float) -> float:
    """The noncentrality at which chi-square exceeds the alpha quantile with that power."""

    def exceeds(far: float) -> float:
        # A mixture of central ones by Poisson's distribution (Johnson, Kotz and Balakrishnan,
        # 29.2).
        total, weight = 0.0, math.exp(-far / 2)
        for number in range(int(far + 10 * math.sqrt(far) + 10)):
            total += weight * chi_square_tail(critical, freedom + 2 * number)
            weight *= far / 2 / (number + 1)
        return total

    critical = _crossing(lambda value: chi_square_tail(value, freedom) < alpha)
    return _crossing(lambda far: exceeds(far) > power)


def _crossing(is_beyond: Callable[[float], bool]) -> float:
    """The value above 0 from which on a condition is true."""
    low, high = 0.0, 1.0
    while not is_beyond(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high


def chi_square_tail(value: float, freedom: int) -> float:
    """Probability that a chi-square variable of that many degrees of freedom exceeds value."""
    half = value / 2
    if freedom == 0 or half <= 0:
        return 1.0
    # The closed sums: Abramowitz and Stegun, 26.4.4 (odd) and 26.4.5 (even).
    if freedom % 2:
        tail = math.erfc(math.sqrt(half))
        term = math.sqrt(half) * math.exp(-half) / math.gamma(1.5)
        power = 1.5
    else:
        tail = 0.0
        term = math.exp(-half)
        power = 1.0
    for _ in range(freedom // 2):
        tail += term
        term *= half / power
        power += 1.0
    return min(1.0, tail)
