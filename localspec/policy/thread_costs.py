"""What decodes cost with each number of threads.

v(n), c and T(1) belong to a number of threads: beside a busy program one thread may be faster
than two, and a draft pays with the one and not with the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.policy.cost import FRESH_STEPS, DraftCost, TargetCost
from localspec.policy.step_times import StepTimes
from localspec.speculative.policy_api import ProposerKind


class Costs:
    """Of target and proposers with one number of threads.

    times: the target's, as a table. num_plain: target-only steps that were timed. last_used:
    step at which decodes had this number of threads last.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float]) -> None:
        self.target = TargetCost()
        self.times = StepTimes(self.target)
        self.drafts = {kind: DraftCost(share) for kind, share in draft_shares.items()}
        self.num_plain = 0
        self.last_used = 0

    def as_dict(self) -> dict[str, Any]:
        """What is worth keeping beyond this process, as JSON has it."""
        return {
            "target": self.target.as_dict(),
            "drafts": {kind.value: cost.as_dict() for kind, cost in self.drafts.items()},
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what `as_dict` gave. Raises ValueError, TypeError or KeyError at a part
        that is something else."""
        drafts = kept["drafts"]
        if not isinstance(drafts, Mapping):
            raise TypeError(f"the drafts' costs are {drafts!r}")
        self.target.restore(kept["target"])
        for kind, cost in self.drafts.items():
            if kind.value in drafts:
                cost.restore(drafts[kind.value])


class ThreadCosts:
    """The costs of each number of threads that was used; now: those of the present one.

    draft_shares: see `AdaptiveDraftPolicy`.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float], num_threads: int) -> None:
        self._draft_shares = draft_shares
        self._num_threads = num_threads
        self._num_steps = 0
        self.now = Costs(draft_shares)
        self._costs = {num_threads: self.now}

    def use(self, num_threads: int) -> bool:
        """Take those of another number for the present ones.

        Returns whether T(1) has to be timed again, since it was not for some time.
        """
        if num_threads == self._num_threads:
            return False
        if num_threads not in self._costs:
            # As a guess, known as well as what another run has kept.
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
        """A step was done with the present number."""
        self._num_steps += 1
        self.now.last_used = self._num_steps

    def as_dict(self) -> dict[str, Any]:
        """What is worth keeping beyond this process, as JSON has it."""
        return {str(count): costs.as_dict() for count, costs in self._costs.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what `as_dict` gave. Raises ValueError, TypeError or KeyError at a part
        that is something else."""
        if not isinstance(kept, Mapping):
            raise TypeError(f"the costs are {kept!r}")
        for count, part in kept.items():
            self._costs.setdefault(int(count), Costs(self._draft_shares)).restore(part)
