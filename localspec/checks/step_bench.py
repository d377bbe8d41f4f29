"""Times decodes of every size, as `bench` does first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from localspec.machine import cores_here, num_busy_cores
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.cost import LARGEST_STEP
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.model import Model
from localspec.speculative.policy_api import ProposerKind
from localspec.speculative.proposers import DraftModel

_NUM_CACHED = 64  # tokens in front of a timed decode
_UNSTEADY = 2.0  # a median that is so many times the fastest: other programs ran in between
_IMPOSSIBLE = 0.8  # of a decode of one token, for one of several
_BUSY_CORES = 0.5  # beyond those that no thread of ours needs
_DRAFTED = 8  # tokens that a timed draft decodes one by one


@dataclass(frozen=True, slots=True)
class DecodeCosts:
    """The costs of decodes on a machine.

    target_s: seconds of the target's decode of 1, 2, 3 … tokens. proposer_s: seconds of a token
    of each proposer that was timed. are_steady: whether the same decode took about as long each
    time; if not, other programs were busy, and these costs are wrong.
    """

    target_s: tuple[float, ...]
    proposer_s: Mapping[ProposerKind, float] = field(default_factory=dict)
    are_steady: bool = True

    @property
    def ratios(self) -> tuple[float, ...]:
        """v(n) for n = 1, 2, 3 …"""
        return tuple(seconds / self.target_s[0] for seconds in self.target_s)

    @property
    def shares(self) -> dict[ProposerKind, float]:
        """A token of each proposer that was timed, and of the lookup, in target-only steps."""
        timed = {kind: seconds / self.target_s[0] for kind, seconds in self.proposer_s.items()}
        return {ProposerKind.LOOKUP: 0.0, **timed}


def measure_steps(
    loop: SpeculativeDecoder,
    num_rounds: int,
    show: Callable[[int, int], None] = lambda _done, _all: None,
    is_enough: Callable[[], bool] = lambda: False,
) -> DecodeCosts:
    """Time every size num_rounds times, in turn, after a text that is removed afterwards.

    The loop's text must be empty. An adaptive policy of the loop learns the costs. show: called
    before each size with how many are done, of how many. is_enough: called before each but the
    first; then the largest sizes may be missing. Raises Interrupted.
    """
    timer = _Timer(loop)
    num_sizes = len(timer.target_s)
    try:
        for number in range(num_rounds):
            for done in timer.measured_round():
                if (number or done) and is_enough():
                    return timer.costs()
                show(number * num_sizes + done, num_rounds * num_sizes)
    finally:
        loop.target.truncate(0)
        if timer.draft is not None:
            timer.draft.truncate(0)
    return timer.costs()


class _Timer:
    """The measured seconds of each size."""

    def __init__(self, loop: SpeculativeDecoder) -> None:
        self._target = target = loop.target
        self.draft = next((p for p in loop.proposers if isinstance(p, DraftModel)), None)
        policy = loop.draft_policy
        self._learner = policy if isinstance(policy, AdaptiveDraftPolicy) else None
        self._num_cached = min(_NUM_CACHED, target.context_length - LARGEST_STEP)
        sizes = range(1, min(LARGEST_STEP, target.max_outputs) + 1)
        self.target_s: dict[int, list[float]] = {size: [] for size in sizes}
        self._draft_s: list[float] = []
        cores = cores_here()
        self._is_quiet = num_busy_cores() < cores.allowed - cores.usable + _BUSY_CORES

    def measured_round(self) -> Iterator[int]:
        """Measure every size once. Before each, yields how many are done."""
        for done, (size, found) in enumerate(self.target_s.items()):
            yield done
            # A target-only step at the same moment, to compare with.
            target_only_s = _timed(self._target, self._num_cached, 1)
            self.target_s[1].append(target_only_s)
            seconds = target_only_s
            if size > 1:
                seconds = _timed(self._target, self._num_cached, size)
                found.append(seconds)
            elif self.draft is not None:
                most = self.draft.context_length - LARGEST_STEP
                self._draft_s.append(_timed_draft(self.draft, min(self._num_cached, most)))
            if self._learner is not None:
                self._learner.target_cost.learn(1, self._num_cached, target_only_s)
                self._learner.target_cost.learn(size, self._num_cached, seconds)

    def costs(self) -> DecodeCosts:
        """The medians. The policy learns the draft's cost as well."""
        target_s = tuple(map(statistics.median, takewhile(bool, self.target_s.values())))
        is_even = target_s[0] < _UNSTEADY * min(self.target_s[1])
        is_possible = min(target_s) > _IMPOSSIBLE * target_s[0]
        are_steady = self._is_quiet and is_even and is_possible
        if self.draft is None:
            return DecodeCosts(target_s, are_steady=are_steady)
        draft_token_s = statistics.median(self._draft_s)
        if self._learner is not None:
            for prospect in self._learner.prospects:
                if prospect.kind is self.draft.kind:
                    prospect.cost.learn(1, 1, draft_token_s, target_s[0])
        return DecodeCosts(target_s, {self.draft.kind: draft_token_s}, are_steady)


def _timed(model: Model, num_cached: int, size: int) -> float:
    model.truncate(min(model.num_cached, num_cached))
    if missing := num_cached - model.num_cached:
        model.decode([1] * missing, 0)
    started = time.perf_counter()
    model.decode([1] * size, size)
    return time.perf_counter() - started


def _timed_draft(draft: DraftModel, num_cached: int) -> float:
    """Seconds per token, after a text of num_cached that the target has cached."""
    text = [1] * num_cached
    draft.truncate(num_cached)
    draft.state([*text, 1])
    if missing := num_cached - draft.begins_at - draft.model.num_cached:
        draft.model.decode(text[:missing], 0)
    started = time.perf_counter()
    for length in range(num_cached, num_cached + _DRAFTED):
        draft.rows([1] * (length + 1), 1)
    return (time.perf_counter() - started) / _DRAFTED
