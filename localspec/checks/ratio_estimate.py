"""The ratio of the speeds of two sides that took turns, with a confidence interval.

Every stretch times both sides in the same moment, so the state of the machine affects both
alike. The estimate is the ratio of the sums, its error that of a ratio estimator (Cochran,
Sampling Techniques, 1977, section 6.3), taken for the logarithm, so that it does not depend on
which side is the numerator; the interval is Student's t. Stretches are assumed to be
independent. Drifts that last longer than a stretch cancel within each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95  # of an interval
FEWEST = 3  # stretches that show their noise
_NEARLY_NORMAL = 200  # degrees of freedom above which Student's t counts as normal


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """value: the ratio. error: the standard error of its logarithm; freedom: of the error."""

    value: float
    error: float
    freedom: int

    @property
    def reach(self) -> float:
        """The factor between the value and the ends of its interval."""
        return math.exp(student_quantile((1 + CONFIDENCE) / 2, self.freedom) * self.error)

    @property
    def low(self) -> float:
        """The interval holds the true ratio 95 times in 100."""
        return self.value / self.reach

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.value * self.reach


def estimate_ratio(above: Sequence[float], below: Sequence[float]) -> RatioEstimate | None:
    """The sum of `above` ÷ the sum of `below`. Both have one number above 0 per stretch.

    None for fewer than three stretches.
    """
    count = len(below)
    if count < FEWEST:
        return None
    ratio, freedom = sum(above) / sum(below), count - 1
    residuals = ((a - ratio * b) ** 2 for a, b in zip(above, below, strict=True))
    error = math.sqrt(sum(residuals) * count / freedom) / sum(above)
    return RatioEstimate(ratio, error, freedom)


def in_equal_parts(ratios: Sequence[RatioEstimate]) -> RatioEstimate:
    """The ratio for as much of each: the harmonic mean. ratios: one or more.

    The degrees of freedom are Welch's and Satterthwaite's.
    """
    value = len(ratios) / sum(1 / each.value for each in ratios)
    shares = [value / (len(ratios) * each.value) for each in ratios]
    parts = [(share * each.error) ** 2 for share, each in zip(shares, ratios, strict=True)]
    total = sum(parts)
    doubt = sum(part**2 / each.freedom for part, each in zip(parts, ratios, strict=True))
    freedom = int(total**2 / doubt) if doubt else sum(each.freedom for each in ratios)
    return RatioEstimate(value, math.sqrt(total), max(freedom, 1))


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
