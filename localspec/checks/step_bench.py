"""Times decodes of every size, as `bench` does first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
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
_IMPOSSIBLE = 0.8  # of the time for one token: no decode of several tokens takes less
_BUSY_CORES = 0.5  # beyond the cores that our threads leave free
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
        """The time of a decode of n tokens ÷ that of one token, for n = 1, 2, 3 …"""
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

    The loop's text must be empty. An adaptive policy of the loop learns the costs, also the
    draft's. show: called before each size with how many are done, of how many. is_enough:
    called before each but the first; the largest sizes may be missing then. Raises Interrupted.
    """
    target = loop.target
    draft = next((p for p in loop.proposers if isinstance(p, DraftModel)), None)
    policy = loop.draft_policy
    learner = policy if isinstance(policy, AdaptiveDraftPolicy) else None
    cores = cores_here()
    is_quiet = num_busy_cores() < cores.allowed - cores.usable + _BUSY_CORES
    num_cached = min(_NUM_CACHED, target.context_length - LARGEST_STEP)
    sizes = range(1, min(LARGEST_STEP, target.max_outputs) + 1)
    target_s: dict[int, list[float]] = {size: [] for size in sizes}
    draft_s: list[float] = []
    try:
        for done, size in enumerate([*sizes] * num_rounds):
            if done and is_enough():
                break
            show(done, num_rounds * len(sizes))
            # A target-only step at the same moment, to compare with.
            seconds = {1: _timed(target, num_cached, 1)}
            if size > 1:
                seconds[size] = _timed(target, num_cached, size)
            elif draft is not None:
                most = draft.context_length - LARGEST_STEP
                draft_s.append(_timed_draft(draft, min(num_cached, most)))
            for num_tokens, taken_s in seconds.items():
                target_s[num_tokens].append(taken_s)
            if learner is not None:
                learner.costs.learn_plain(seconds[1])
                if size > 1:
                    learner.costs.learn_size(size, seconds[size] / seconds[1])
    finally:
        loop.truncate(0)
    medians = tuple(map(statistics.median, takewhile(bool, target_s.values())))
    is_even = medians[0] < _UNSTEADY * min(target_s[1])
    are_steady = is_quiet and is_even and min(medians) > _IMPOSSIBLE * medians[0]
    if draft is None:
        return DecodeCosts(medians, are_steady=are_steady)
    draft_token_s = statistics.median(draft_s)
    if learner is not None:
        learner.costs.learn_draft(draft.kind, 1, 1, draft_token_s)
    return DecodeCosts(medians, {draft.kind: draft_token_s}, are_steady)


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
