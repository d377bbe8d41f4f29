"""The ratio of the speeds of two sides that were timed in rounds, with an interval.

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

FEWEST = 3  # stretches that show their noise
_NORMAL = 1.95996
_FINE = 1.1  # from one number of stretches that is tried to the next
# For 1, 2, 3 … degrees of freedom.
_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio."""

    value: float
    error: float
    """The standard error of its logarithm, with `freedom` degrees of freedom."""

    freedom: int

    @property
    def reach(self) -> float:
        """The factor between the value and the ends of its interval."""
        return math.exp(_student(self.freedom) * self.error)

    @property
    def low(self) -> float:
        """The lower end of the interval, which holds the true ratio 95 times in 100."""
        return self.value / self.reach

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.value * self.reach

    def times_as_much(self, reach: float) -> float:
        """How many times as many stretches probably make the interval reach only so far."""
        times = 1.0
        while self._reach_after(times) > reach:
            times *= _FINE
        return times

    def _reach_after(self, times: float) -> float:
        """The reach that so many times as many stretches of this noise would have."""
        freedom = round((self.freedom + 1) * times) - 1
        return math.exp(_student(freedom) * self.error / math.sqrt(times))


def estimate_ratio(above: Sequence[float], below: Sequence[float]) -> RatioEstimate | None:
    """The sum of `above` ÷ the sum of `below`. Both have one number above 0 per stretch.

    None for fewer than three stretches.
    """
    count = len(below)
    if count < FEWEST:
        return None
    ratio = sum(above) / sum(below)
    freedom = count - 1
    residuals = ((a - ratio * b) ** 2 for a, b in zip(above, below, strict=True))
    error = math.sqrt(sum(residuals) * count / freedom) / sum(above)
    return RatioEstimate(ratio, error, freedom)


def in_equal_parts(ratios: Sequence[RatioEstimate]) -> RatioEstimate:
    """The ratio over equal amounts of several: their harmonic mean. ratios: one or more.

    The degrees of freedom are Welch's and Satterthwaite's.
    """
    value = len(ratios) / sum(1 / each.value for each in ratios)
    shares = [value / (len(ratios) * each.value) for each in ratios]
    parts = [(share * each.error) ** 2 for share, each in zip(shares, ratios, strict=True)]
    total = sum(parts)
    doubt = sum(part**2 / each.freedom for part, each in zip(parts, ratios, strict=True))
    freedom = int(total**2 / doubt) if doubt else sum(each.freedom for each in ratios)
    return RatioEstimate(value, math.sqrt(total), max(freedom, 1))


def _student(freedom: int) -> float:
    """The quantile of Student's t that 2.5 of 100 numbers exceed."""
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    return _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * freedom)  # Abramowitz and Stegun, 26.7.5
