"""The ratio of the speeds of two sides that were timed in rounds, with an interval.

Every stretch times both sides within a short time, so the state of the machine affects both
alike. The estimate is the ratio of the sums. Its error is that of a ratio estimator (Cochran,
Sampling Techniques, 1977, section 6.3), taken for the logarithm, so it does not depend on which
side is the numerator. The interval is Student's t. Stretches are assumed to be independent. A
drift that lasts longer than a stretch cancels within the stretch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 3  # stretches; fewer do not show their noise
_NORMAL = 1.95996  # the quantile of the normal distribution that 2.5 % of its values exceed
_FINE = 1.1  # the factor between the numbers of stretches that are tried
# The same quantile of Student's t for 1, 2, 3 … degrees of freedom.
_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio with its error."""

    value: float
    error: float
    """The standard error of its logarithm."""

    freedom: int
    """The degrees of freedom of the error."""

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
        """How many times as many stretches probably narrow the interval to a reach; 1 or more.

        Args:
            reach: As the property `reach`, above 1.
        """
        times = 1.0
        while self._reach_after(times) > reach:
            times *= _FINE
        return times

    def _reach_after(self, times: float) -> float:
        """The reach with `times` as many stretches of the same noise."""
        freedom = round((self.freedom + 1) * times) - 1
        return math.exp(_student(freedom) * self.error / math.sqrt(times))


def estimate_ratio(above: Sequence[float], below: Sequence[float]) -> RatioEstimate | None:
    """The sum of `above` ÷ the sum of `below`; None for fewer than three stretches.

    Args:
        above, below: One number above 0 per stretch.
    """
    count = len(below)
    if count < FEWEST:
        return None
    ratio = sum(above) / sum(below)
    freedom = count - 1
    squares = []
    for numerator, denominator in zip(above, below, strict=True):
        residual = numerator - ratio * denominator
        squares.append(residual**2)
    error_of_sum = math.sqrt(sum(squares) * count / freedom)
    return RatioEstimate(ratio, error_of_sum / sum(above), freedom)


def in_equal_parts(ratios: Sequence[RatioEstimate]) -> RatioEstimate:
    """The ratio over equal amounts of several kinds: the harmonic mean of their ratios.

    Its degrees of freedom follow from the Welch-Satterthwaite equation.

    Args:
        ratios: One or more.
    """
    count = len(ratios)
    value = count / sum(1 / ratio.value for ratio in ratios)
    variance = 0.0
    denominator = 0.0  # of the Welch-Satterthwaite equation
    for ratio in ratios:
        share = value / (count * ratio.value)
        part = (share * ratio.error) ** 2
        variance += part
        denominator += part**2 / ratio.freedom
    if denominator:
        freedom = int(variance**2 / denominator)
    else:
        freedom = sum(ratio.freedom for ratio in ratios)
    # `_student` needs a freedom of 1 or more.
    return RatioEstimate(value, math.sqrt(variance), max(freedom, 1))


def _student(freedom: int) -> float:
    """The quantile of Student's t that 2.5 % of its values exceed."""
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    return _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * freedom)  # Abramowitz and Stegun, 26.7.5
