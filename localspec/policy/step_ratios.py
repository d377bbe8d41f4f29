"""v(n) of every n, followed while the machine changes: a Kalman filter of each.

What a step of n tokens takes, in target-only steps, wanders within minutes where something else
runs. The logarithm of v(n) follows a random walk, and a timed step is a noisy look at it
(Kalman, 1960, a scalar). So what was timed long ago is known less well, and counts less
beside what is timed now.

Two things change what decodes take while an answer is written. A processor that slows down
slows all of them by the same share. Memory that others use, too, slows target-only steps, which
wait for it, and steps of many tokens hardly. Which of them it is nobody knows at once, so
T(n) is taken to go with T(1) to a power between, the elasticity, until steps are timed again.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_NOISE = 0.08**2  # variance of the logarithm of one timed step [noisy steps]
# The same of the first step of its size, which often takes longer [noisy steps]
_FIRST_NOISE = 4 * _NOISE
# Growth of the variance of a size during one target-only step [wandering, stale costs]
_DRIFT = 3e-5
_MAX_VARIANCE = 0.15**2  # largest variance of a size [stale costs]
# Elasticity: d log T(n) / d log T(1), the same for all n ≥ 2 [memory bursts, busy processor]
_ELASTICITY = 0.5
# Largest change of log T(1) that counts; beyond it the step was interrupted [busy processor]
_LARGEST_CHANGE = 0.3
_OUTLIER = 3.0  # standard deviations that a timed step counts as at most [noisy steps]


class StepRatios:
    """v(n) after texts of about one length.

    known: (largest + 1,) of which n a step was timed; counts: how many of them.
    """

    def __init__(self, largest: int) -> None:
        self.counts: NDArray[np.int64] = np.zeros(largest + 1, dtype=np.int64)
        self._target_only_s = 0.0  # of a target-only step, when the ratios were these
        self._logs = np.zeros(largest + 1)
        self._variances = np.zeros(largest + 1)  # of the logarithms

    @property
    def known(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self.counts > 0
        return known

    def at(self, target_only_s: float | None) -> dict[int, float]:
        """n → v(n) where it is known, where a target-only step takes target_only_s."""
        change = 1.0
        if target_only_s is not None and self._target_only_s:
            change = ratio_change(target_only_s / self._target_only_s)
        return {
            int(size): math.exp(self._logs[size]) * change
            for size in np.flatnonzero(self.known)
        }

    def spread(self) -> NDArray[np.float64]:
        """(largest + 1,) standard deviations of the logarithms of v(n); 0 for n < 2.

        Of a size that is not known it is that of the others.
        """
        spread: NDArray[np.float64] = np.sqrt(self._variances)
        spread[~self.known] = spread[self.known].mean() if self.known.any() else 0.0
        spread[:2] = 0.0
        return spread

    def pass_by(self, num_plain: float) -> None:
        """Let the time of so many target-only steps go by, in which they may have changed."""
        self._variances[self.known] += _DRIFT * num_plain
        np.minimum(self._variances, _MAX_VARIANCE, out=self._variances)

    def learn(self, size: int, ratio: float, target_only_s: float) -> None:
        """Take a step of that size into account. target_only_s: T(1) within an answer."""
        if self._target_only_s:
            change = ratio_change(target_only_s / self._target_only_s)
            self._logs[self.known] += math.log(change)
        self._target_only_s = target_only_s
        self._observe(size, math.log(ratio))
        self.counts[size] += 1

    def _observe(self, size: int, log: float) -> None:
        if not self.known[size]:
            self._logs[size] = log
            self._variances[size] = _FIRST_NOISE
            return
        variance = self._variances[size] + _NOISE
        gain = self._variances[size] / variance
        most = _OUTLIER * math.sqrt(variance)
        self._logs[size] += gain * min(max(log - self._logs[size], -most), most)
        self._variances[size] *= 1.0 - gain

    def as_rows(self) -> list[list[float]]:
        """[n, v(n), target_only_s, how often it was timed] of those that are known."""
        return [
            [size, round(ratio, 4), round(self._target_only_s, 7), int(self.counts[size])]
            for size, ratio in self.at(None).items()
        ]

    def restore(self, size: int, ratio: float, target_only_s: float, count: int) -> None:
        """Know one that was kept; how well, `pass_by` and further steps say."""
        if not self._target_only_s:
            self._target_only_s = target_only_s
        change = ratio_change(self._target_only_s / target_only_s)
        self._logs[size] = math.log(ratio * change)
        self.counts[size] = count
        self._variances[size] = _MAX_VARIANCE  # who kept it may have been another machine


def ratio_change(target_only_change: float) -> float:
    """What v(n) = T(n) / T(1) is multiplied by where T(1) is by target_only_change."""
    change = min(max(math.log(target_only_change), -_LARGEST_CHANGE), _LARGEST_CHANGE)
    return math.exp((_ELASTICITY - 1.0) * change)
