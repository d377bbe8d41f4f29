"""How long steps of each size would take now, with padding to cheaper sizes."""

from __future__ import annotations

import numpy as np

from localspec.policy.acceptance import Weights
from localspec.policy.cost import LARGEST_STEP, TILE, TargetCost

# Factor by which steps of several tokens may have become faster where none was timed for long
# [stale costs]
_HOPE = 0.9


class StepTimes:
    """The target's seconds per step size.

    latest: the last result of `at`. at_worst: the same if sizes that were not measured are
    expensive.
    """

    def __init__(self, cost: TargetCost) -> None:
        self._cost = cost
        self._version = -1
        self._ratios: Weights = np.zeros(LARGEST_STEP + 1)
        self._worst: Weights = self._ratios
        self._sizes = list(range(LARGEST_STEP + 1))
        self.latest: Weights = self._ratios
        self.at_worst: Weights = self._ratios

    def at(self, target_only_s: float) -> Weights:
        """(LARGEST_STEP + 1,) seconds of a step of n tokens."""
        if self._cost.version != self._version:
            self._version = self._cost.version
            self._fill_in()
        several_s = target_only_s * self._cost.change()
        self.at_worst = self._worst * several_s
        self.latest = self._ratios * several_s
        if self._cost.is_old:
            # Several tokens take at least as long as one, unless they were measured faster.
            least = np.minimum(self.latest, target_only_s)
            self.latest = np.maximum(_HOPE * self.latest, least)
        self.latest[1] = self.at_worst[1] = target_only_s
        return self.latest

    def _fill_in(self) -> None:
        change = self._cost.change()
        ratios = self._cost.ratios(optimistic=True)
        worst = np.array(self._cost.ratios(optimistic=False))
        measured = self._cost.measured()
        best = LARGEST_STEP
        for size in range(LARGEST_STEP, 0, -1):
            # Padding pays only to a size that was measured and is cheaper.
            if not (best in measured and ratios[best] < ratios[size]):
                best = size
            self._sizes[size] = best
            self._ratios[size] = ratios[best] / change
            tile = min(-(-size // TILE) * TILE, LARGEST_STEP)
            if size > 2 and best not in measured and tile not in measured:
                # Of the sizes that were not measured, the probably cheapest is tried first.
                self._sizes[size] = tile
        self._worst = np.minimum.accumulate(worst[::-1])[::-1] / change

    def cheapest(self, num_tokens: int, limit: int) -> int:
        """The size from num_tokens to limit that is known to be fastest."""
        size = self._sizes[num_tokens] if num_tokens <= LARGEST_STEP else num_tokens
        return size if size <= limit else num_tokens
