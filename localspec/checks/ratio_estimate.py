"""The ratio of the speeds of two sides that took turns, with a confidence interval.

Every round times both sides in the same minute, so the state of the machine affects both alike.
The estimate is the ratio of the sums, its error that of a ratio estimator (Cochran, Sampling
Techniques, 1977, section 6.3), taken for the logarithm, so that it does not depend on which
side is the numerator; the interval is Student's t. Rounds are assumed to be independent. Drifts
that last longer than a round cancel within each round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95  # of an interval
_POWER_OF_TEST = 0.9  # probability of seeing a difference that "would have been seen"
_NEARLY_NORMAL = 200  # degrees of freedom above which Student's t counts as normal


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """value: the ratio. low, high: its interval, which holds the true one 95 times in 100.

    deviation: of the logarithm of one round's ratio. num_rounds: 2 or more.
    """

    value: float
    low: float
    high: float
    deviation: float
    num_rounds: int

    @property
    def visible(self) -> float:
        """The share by which the sides must differ to be told apart 9 times in 10."""
        return math.expm1(_reach(self.num_rounds) * self.deviation)

    def rounds_to_see(self, share: float) -> int:
        """How many rounds with this noise are needed to see a difference of that share."""
        most = math.log1p(share)
        quantiles = student_quantile((1 + CONFIDENCE) / 2, _NEARLY_NORMAL)
        quantiles += student_quantile(_POWER_OF_TEST, _NEARLY_NORMAL)
        # The first guess treats the deviation as known; few rounds know it less well.
        num_rounds = max(2, math.ceil((quantiles * self.deviation / most) ** 2))
        while _reach(num_rounds) * self.deviation > most:
            num_rounds += 1
        return num_rounds


def estimate_ratio(above: Sequence[float], below: Sequence[float]) -> RatioEstimate | None:
    """The sum of `above` ÷ the sum of `below`. Both have one number above 0 per round.

    None for fewer than two rounds, which do not show their noise.
    """
    num_rounds = len(below)
    if num_rounds < 2:
        return None
    ratio, mean = sum(above) / sum(below), sum(below) / num_rounds
    residuals = ((a - ratio * b) ** 2 for a, b in zip(above, below, strict=True))
    deviation = math.sqrt(sum(residuals) / (num_rounds - 1)) / (ratio * mean)
    quantile = student_quantile((1 + CONFIDENCE) / 2, num_rounds - 1)
    reach = math.exp(quantile * deviation / math.sqrt(num_rounds))
    return RatioEstimate(ratio, ratio / reach, ratio * reach, deviation, num_rounds)


def _reach(num_rounds: int) -> float:
    """The smallest visible difference, in deviations of one round, by the usual formula."""
    freedom = num_rounds - 1
    seen_beyond = student_quantile((1 + CONFIDENCE) / 2, freedom)
    return (seen_beyond + student_quantile(_POWER_OF_TEST, freedom)) / math.sqrt(num_rounds)


def student_quantile(share: float, freedom: int) -> float:
    """The quantile of Student's t with so many degrees of freedom, for a share above ½."""
    if freedom >= _NEARLY_NORMAL:
        return NormalDist().inv_cdf(share)
    low, high = 0.0, math.pi / 2  # angles whose tangent is t ÷ √freedom
    while high - low > 1e-12:
        middle = (low + high) / 2
        is_beyond = _within(middle, freedom) > 2 * share - 1
        low, high = (low, middle) if is_beyond else (middle, high)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Probability that |t| ÷ √freedom is below the tangent of the angle.

    The closed sums: Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even).
    """
    cosine, is_odd = math.cos(angle), freedom % 2
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(2 + is_odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    total *= math.sin(angle)
    return (total + angle) * 2 / math.pi if is_odd else total
