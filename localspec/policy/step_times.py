"""How long steps of each size take now, with each number of threads.

v(n), c and T(1) differ by the number of threads: on a busy machine one thread may be faster
than two, and a draft may pay with one and not with two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from localspec.policy.acceptance import Weights
from localspec.policy.cost import (
    FILL_TOKENS,
    FRESH_STEPS,
    LARGEST_STEP,
    TILE,
    DraftCost,
    TargetCost,
)
from localspec.speculative.policy_api import ProposerKind


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


class Costs:
    """The costs of target and proposers with one number of threads.

    times: a table of the target's costs. num_plain: target-only steps that were timed.
    last_used: the last step with this number of threads.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float]) -> None:
        self.target = TargetCost()
        self.times = StepTimes(self.target)
        self.drafts = {kind: DraftCost(share) for kind, share in draft_shares.items()}
        self.num_plain = 0
        self.last_used = 0

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {
            "target": self.target.as_dict(),
            "drafts": {kind.value: cost.as_dict() for kind, cost in self.drafts.items()},
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`."""
        drafts = kept["drafts"]
        self.target.restore(kept["target"])
        for kind, cost in self.drafts.items():
            if kind.value in drafts:
                cost.restore(drafts[kind.value])


class ThreadCosts:
    """The costs with each number of threads that was used. now: those with the present number.

    draft_shares: see `AdaptiveDraftPolicy`.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float], num_threads: int) -> None:
        self._draft_shares = draft_shares
        self._num_threads = num_threads
        self._num_steps = 0
        self.now = Costs(draft_shares)
        self._costs = {num_threads: self.now}

    def use(self, num_threads: int) -> bool:
        """Switch to the costs with another number.

        Returns whether T(1) has to be timed again, because its last time is old.
        """
        if num_threads == self._num_threads:
            return False
        if num_threads not in self._costs:
            # A guess, as reliable as costs from an earlier process.
            costs = Costs(self._draft_shares)
            costs.restore(self.now.as_dict())
            costs.target.prefill_token_s = self.now.target.prefill_token_s
            self._costs[num_threads] = costs
        self.now = self._costs[num_threads]
        self._num_threads = num_threads
        if self._num_steps - self.now.last_used <= FRESH_STEPS:
            return False
        self.now.target.forget_target_only()
        return True

    def pass_by(self) -> None:
        """Count a step with the present number."""
        self._num_steps += 1
        self.now.last_used = self._num_steps

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {str(count): costs.as_dict() for count, costs in self._costs.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`."""
        for count, part in kept.items():
            self._costs.setdefault(int(count), Costs(self._draft_shares)).restore(part)
