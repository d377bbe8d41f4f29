"""The costs of decodes with each number of threads.

v(n), c and T(1) differ by the number of threads: on a busy machine one thread may be faster
than two, and a draft may pay with one and not with two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.policy.cost import FRESH_STEPS, DraftCost, TargetCost
from localspec.policy.step_times import StepTimes
from localspec.speculative.policy_api import ProposerKind


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
        """Continue from `as_dict`. Raises ValueError, TypeError or KeyError if damaged."""
        drafts = kept["drafts"]
        if not isinstance(drafts, Mapping):
            raise TypeError(f"the drafts' costs are {drafts!r}")
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
        """Continue from `as_dict`. Raises ValueError, TypeError or KeyError if damaged."""
        if not isinstance(kept, Mapping):
            raise TypeError(f"the costs are {kept!r}")
        for count, part in kept.items():
            self._costs.setdefault(int(count), Costs(self._draft_shares)).restore(part)
