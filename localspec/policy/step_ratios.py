"""v(n) of every n, followed while the machine changes: a Kalman filter.

What a step of n tokens takes, in target-only steps, wanders within minutes where something else
runs. Sizes wander together, for the most part, so a step of one size tells something of the
others. The state are the logarithms of v(n), which follow a random walk; a timed step is a
noisy look at one of them (Kalman, 1960, with a scalar observation). So what was timed long
ago is known less well, and counts less beside what is timed now.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from localspec.policy.elasticity import Elasticity

_NOISE = 0.08**2  # variance of one timed step's logarithm
_FIRST = 4 * _NOISE  # of the first one of its size: it often takes longer
_DRIFT = 3e-5  # by which the variance of all grows in the time of a target-only step
_SHARED = 0.7  # of that in common
_MOST = 0.15**2  # it grows no further
_OUTLIER = 3.0  # standard deviations; beyond them somebody was interrupted


class StepRatios:
    """v(n) after texts of about one length. elasticity: learned here, too, shared by all.

    known: (largest + 1,) of which n a step was timed; counts: how many of them.
    """

    def __init__(self, largest: int, elasticity: Elasticity) -> None:
        self.counts: NDArray[np.int64] = np.zeros(largest + 1, dtype=np.int64)
        self._elasticity = elasticity
        self._target_only_s = 0.0  # of a target-only step, when the ratios were these
        self._logs = np.zeros(largest + 1)
        self._covariance = np.zeros((largest + 1, largest + 1))
        self._common = _SHARED + (1.0 - _SHARED) * np.eye(largest + 1)
        # Of each size when it was timed last: the ratio, and what a target-only step took.
        self._last = np.zeros((largest + 1, 2))

    @property
    def known(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self.counts > 0
        return known

    def at(self, target_only_s: float | None) -> dict[int, float]:
        """n → v(n) where it is known, where a target-only step takes target_only_s."""
        change = 1.0
        if target_only_s is not None and self._target_only_s:
            change = self._elasticity.ratio_change(target_only_s / self._target_only_s)
        return {
            int(size): math.exp(self._logs[size]) * change
            for size in np.flatnonzero(self.known)
        }

    def spread(self) -> NDArray[np.float64]:
        """(largest + 1,) standard deviations of the logarithms of v(n); 0 for n < 2.

        Of a size that is not known it is that of the others.
        """
        spread: NDArray[np.float64] = np.sqrt(np.diag(self._covariance))
        spread[~self.known] = spread[self.known].mean() if self.known.any() else 0.0
        spread[:2] = 0.0
        return spread

    def pass_by(self, num_plain: float) -> None:
        """Let the time of so many target-only steps go by, in which they may have changed."""
        both_known = np.outer(self.known, self.known)
        self._covariance += _DRIFT * num_plain * self._common * both_known
        variances = np.maximum(np.diag(self._covariance), 1e-12)
        shrink = np.sqrt(np.minimum(1.0, _MOST / variances))
        self._covariance *= np.outer(shrink, shrink)

    def learn(self, size: int, ratio: float, target_only_s: float) -> None:
        """Take a step of that size into account. target_only_s: T(1) within an answer."""
        if self.known[size]:
            last_ratio, last_plain_s = self._last[size]
            target_only_change = target_only_s / last_plain_s
            self._elasticity.learn(target_only_change, target_only_change * ratio / last_ratio)
        if self._target_only_s:
            change = self._elasticity.ratio_change(target_only_s / self._target_only_s)
            self._logs[self.known] += math.log(change)
        self._target_only_s = target_only_s
        self._observe(size, math.log(ratio))
        self.counts[size] += 1
        self._last[size] = math.exp(self._logs[size]), target_only_s

    def _observe(self, size: int, log: float) -> None:
        if not self.known[size]:
            self._logs[size] = log
            self._covariance[size, size] = _FIRST
            return
        variance = self._covariance[size, size] + _NOISE
        most = _OUTLIER * math.sqrt(variance)
        gains = self._covariance[:, size] / variance
        self._logs += gains * min(max(log - self._logs[size], -most), most)
        self._covariance -= np.outer(gains, self._covariance[size])

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
        change = self._elasticity.ratio_change(self._target_only_s / target_only_s)
        self._logs[size] = math.log(ratio * change)
        self._last[size] = ratio, target_only_s
        self.counts[size] = count
        self._covariance[size, size] = 0.0
        # Who kept it may have been another machine.
        self.pass_by(_MOST / _DRIFT)
