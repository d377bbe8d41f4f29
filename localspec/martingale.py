"""Do tokens follow the laws that they are said to be drawn from? A test for any text.

Given everything before it, each token is a draw from a known law; which category it falls
into (by rank, say) then has a known expectation and covariance, although every law is
another and depends on earlier draws. Sums of what was seen minus what was expected are a
martingale, and its quadratic form over the summed covariances is chi-square (McLeish, Ann.
Probab. 2, 1974).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from localspec.sampling import Probs


class CategoryTest:
    """Adds tokens up, category by category."""

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
        """Probability of an excess as large as this, if the tokens follow their laws."""
        values, vectors = np.linalg.eigh(self._covariance)
        # A category that cannot be told apart adds nothing; one never possible, neither.
        kept = values > 1e-9 * max(1.0, float(values.max()))
        along: NDArray[np.float64] = (vectors.T @ self._excess)[kept]
        return chi_square_tail(float((along**2 / values[kept]).sum()), int(kept.sum()))

    def smallest_visible_bias(self, alpha: float) -> float:
        """The shift of one category's probability that would be seen 9 times out of 10."""
        if self.num_tokens == 0:
            return 1.0
        deviation = math.sqrt(float(self._covariance.diagonal().max()))
        quantile = NormalDist().inv_cdf
        return (quantile(1 - alpha / 2) + quantile(0.9)) * deviation / self.num_tokens


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
