"""How long steps of each size would take now, with padding to cheaper sizes."""

from __future__ import annotations

import numpy as np

from localspec.policy.acceptance import Weights
from localspec.policy.cost import FILL_TOKENS, LARGEST_STEP, TILE, TargetCost


class StepTimes:
    """The target's seconds per step size.

    latest: the last result of `at`. at_worst: the same if sizes that were not measured are
    expensive. optimistic, pessimistic: the same if all steps but target-only ones are faster,
    or slower, by one standard deviation. measured: v(n) of the sizes that were timed.
    """

    def __init__(self, cost: TargetCost) -> None:
        self._cost = cost
        self._version = (-1, -1)
        self._target_only_s = 0.0  # at the time of the ratios
        self._ratios: Weights = np.zeros(LARGEST_STEP + 1)
        self._worst: Weights = self._ratios
        self._sizes = list(range(LARGEST_STEP + 1))
        self.measured: dict[int, float] = {}
        self.latest: Weights = self._ratios
        self.at_worst: Weights = self._ratios
        self.optimistic: Weights = self._ratios
        self.pessimistic: Weights = self._ratios
        self._spread: Weights = np.ones(LARGEST_STEP + 1)  # one standard deviation, as a factor

    @property
    def is_guess(self) -> bool:
        """Whether only target-only steps were timed, if any."""
        return len(self.measured) < 2

    def at(self, num_cached: int, target_only_s: float) -> Weights:
        """(LARGEST_STEP + 1,) seconds of a step of n tokens."""
        version = (self._cost.version, num_cached // FILL_TOKENS)
        if version != self._version:
            self._version = version
            self._target_only_s = target_only_s
            self._fill_in(num_cached)
        several_s = target_only_s * self._cost.ratio_change(self._target_only_s)
        self.latest = self._ratios * several_s
        self.at_worst = self._worst * several_s
        self.latest[1] = self.at_worst[1] = target_only_s
        self.pessimistic = self.latest * self._spread
        # Several tokens take at least as long as one, unless they were measured faster.
        least = np.minimum(self.latest, target_only_s)
        self.optimistic = np.maximum(self.latest / self._spread, least)
        return self.latest

    def _fill_in(self, num_cached: int) -> None:
        ratios = self._cost.ratios(num_cached, optimistic=True)
        self._worst = np.array(self._cost.ratios(num_cached, optimistic=False))
        self.measured = measured = dict(sorted(self._cost.measured(num_cached).items()))
        self._spread = np.exp(self._cost.spread(num_cached))
        best = LARGEST_STEP
        for size in range(LARGEST_STEP, 0, -1):
            # Padding pays only to a size that was measured and is cheaper.
            if not (best in measured and ratios[best] < ratios[size]):
                best = size
            self._sizes[size] = best
            self._ratios[size] = ratios[best]
            tile = min(-(-size // TILE) * TILE, LARGEST_STEP)
            if size > 2 and best not in measured and tile not in measured:
                # Of the sizes that were not measured, the probably cheapest is tried first.
                self._sizes[size] = tile
        self._worst = np.minimum.accumulate(self._worst[::-1])[::-1]

    def cheapest(self, num_tokens: int, limit: int) -> int:
        """The size from num_tokens to limit that is known to be fastest."""
        size = self._sizes[num_tokens] if num_tokens <= LARGEST_STEP else num_tokens
        return size if size <= limit else num_tokens
