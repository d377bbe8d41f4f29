"""Estimates v(n) for every n while the machine changes, with a Kalman filter for each.

The cost of a step of n tokens, in target-only steps, drifts within minutes while other programs
run. The logarithm of v(n) is modelled as a random walk, and each timed step is a noisy
measurement of it (the scalar case of Kalman, 1960). So an old measurement is less certain, and
weighs less than a new one.

Two things change the time of a decode during an answer. A slower processor slows all decodes by
the same factor. Other programs that use the memory slow target-only steps, which wait for
memory, but hardly slow steps of many tokens. Which of the two happens is not known at once, so
T(n) is assumed to change with a power of T(1) between 0 and 1, the elasticity, until steps are
timed again.
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

    known: (largest + 1,) whether a step of n tokens was timed; counts: how many were.
    """

    def __init__(self, largest: int) -> None:
        self.counts: NDArray[np.int64] = np.zeros(largest + 1, dtype=np.int64)
        self._target_only_s = 0.0  # of a target-only step, at the time of these ratios
        self._logs = np.zeros(largest + 1)
        self._variances = np.zeros(largest + 1)  # of the logarithms

    @property
    def known(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self.counts > 0
        return known

    def at(self, target_only_s: float | None) -> dict[int, float]:
        """n → v(n) of the known sizes, while a target-only step takes target_only_s."""
        change = 1.0
        if target_only_s is not None and self._target_only_s:
            change = ratio_change(target_only_s / self._target_only_s)
        return {
            int(size): math.exp(self._logs[size]) * change
            for size in np.flatnonzero(self.known)
        }

    def spread(self) -> NDArray[np.float64]:
        """(largest + 1,) standard deviations of the logarithms of v(n); 0 for n < 2.

        A size that is not known has the mean of the others.
        """
        spread: NDArray[np.float64] = np.sqrt(self._variances)
        spread[~self.known] = spread[self.known].mean() if self.known.any() else 0.0
        spread[:2] = 0.0
        return spread

    def pass_by(self, num_plain: float) -> None:
        """Make the ratios less certain, after the time of so many target-only steps."""
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
        """[n, v(n), target_only_s, how often it was timed] for each known size."""
        return [
            [size, round(ratio, 4), round(self._target_only_s, 7), int(self.counts[size])]
            for size, ratio in self.at(None).items()
        ]

    def restore(self, size: int, ratio: float, target_only_s: float, count: int) -> None:
        """Restore a saved ratio, with the largest variance."""
        if not self._target_only_s:
            self._target_only_s = target_only_s
        change = ratio_change(self._target_only_s / target_only_s)
        self._logs[size] = math.log(ratio * change)
        self.counts[size] = count
        self._variances[size] = _MAX_VARIANCE  # the machine may have been in another state


def ratio_change(target_only_change: float) -> float:
    """The factor by which v(n) = T(n) / T(1) changes when T(1) changes by that factor."""
    change = min(max(math.log(target_only_change), -_LARGEST_CHANGE), _LARGEST_CHANGE)
    return math.exp((_ELASTICITY - 1.0) * change)
