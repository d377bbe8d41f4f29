"""What steps of every size cost, timed on purpose rather than as they happen."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.cost import LARGEST_STEP
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.model import Model
from localspec.speculative.proposers import DraftModel

_NUM_CACHED = 64  # tokens in front of a timed decode
_DRAFTED = 8  # tokens that a timed draft decodes one by one


@dataclass(frozen=True, slots=True)
class StepCosts:
    """target_s: seconds of a target's decode of 1, 2, 3 … tokens. draft_token_s: of one in
    the draft; None without a draft."""

    target_s: tuple[float, ...]
    draft_token_s: float | None

    @property
    def ratios(self) -> tuple[float, ...]:
        """v(n) for n = 1, 2, 3 …"""
        return tuple(seconds / self.target_s[0] for seconds in self.target_s)


def measure_steps(loop: SpeculativeDecoder, num_rounds: int) -> StepCosts:
    """Time every size num_rounds times, in turn, after a text that is dropped afterwards.

    The loop's text must be empty. An automatic policy of the loop learns from it.
    """
    target = loop.target
    draft = next((p for p in loop.proposers if isinstance(p, DraftModel)), None)
    policy = loop.draft_policy
    learner = policy if isinstance(policy, AdaptiveDraftPolicy) else None
    sizes = range(1, min(LARGEST_STEP, target.max_outputs) + 1)
    num_cached = min(_NUM_CACHED, target.context_length - LARGEST_STEP)
    draft_cached = 0 if draft is None else min(num_cached, draft.context_length - LARGEST_STEP)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    draft_times: list[float] = []
    try:
        for _ in range(num_rounds):
            for size in sizes:
                # The other side of the ratio, measured in the same moment.
                target_only_s = _timed(target, num_cached, 1)
                times[1].append(target_only_s)
                seconds = target_only_s if size == 1 else _timed(target, num_cached, size)
                times[size].append(seconds)
                if learner is not None:
                    learner.target_cost.learn(1, num_cached, target_only_s)
                    learner.target_cost.learn(size, num_cached, seconds)
            if draft is not None:
                draft_times.append(_timed_draft(draft, draft_cached))
    finally:
        target.truncate(0)
        if draft is not None:
            draft.truncate(0)
    target_s = tuple(statistics.median(times[size]) for size in sizes)
    draft_token_s = statistics.median(draft_times) if draft_times else None
    if learner is not None and draft_token_s is not None:
        for prospect in learner.prospects:
            if draft is not None and prospect.kind is draft.kind:
                prospect.cost.learn(1, 1, draft_token_s, target_s[0])
    return StepCosts(target_s, draft_token_s)


def _timed(model: Model, num_cached: int, size: int) -> float:
    _fill(model, num_cached)
    started = time.perf_counter()
    model.decode([1] * size, size)
    return time.perf_counter() - started


def _fill(model: Model, num_cached: int) -> None:
    """Cut the cache to that many tokens; at first, or where it was emptied, decode them."""
    model.truncate(min(model.num_cached, num_cached))
    if missing := num_cached - model.num_cached:
        model.decode([1] * missing, 0)


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
