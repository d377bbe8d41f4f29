"""Replays recorded answers through the real loop, at the costs of any machine: no model runs.

The tokens of a recorded answer are the numbers of its places, so that the loop of `simulated`
follows it: place after place, each proposer is as right and as confident as it was there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from simulated import Clock, Machine, TimedDraft, curve, models, other, successor
from trace_file import Series, Trace, read_traces

from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import CERTAIN, Distribution
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import (
    DraftOff,
    DraftPolicy,
    Extent,
    FixedThreads,
    ProposerKind,
    ProposerState,
    ReplayScores,
)
from localspec.speculative.proposers import DraftModel, Draw, Proposal, Proposer
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from toy import all_shared

FOLDER = Path(__file__).parents[2] / "tests" / "traces"
_MAX_REPLAYED = 16  # as a lookup
_SUREST = 0.999  # confidence; recorded ones are rounded, at times to 1


def shipped(name: str) -> list[Trace]:
    """The traces of a file of tests/traces/."""
    return read_traces(FOLDER / f"{name}.jsonl")


def accepted(series: Series, seed: int) -> list[int]:
    """Of each place, how many tokens of a long proposal are accepted there.

    Where a chance decides, the same seed decides alike: two policies have the same luck.
    """
    if series.accepted:
        return list(series.accepted)
    uniforms = np.random.default_rng(seed).random(len(series.chance))
    found, following = [], 0
    for chance, uniform in zip(reversed(series.chance), uniforms, strict=True):
        following = following + 1 if uniform < chance else 0
        found.append(following)
    return found[::-1]


def _row(token: int) -> Distribution:
    return Distribution(np.array([token]), CERTAIN)


class TracedDraft(DraftModel):
    """A draft whose decodes take time, as right and as confident as the recorded one."""

    def __init__(self, model: TimedDraft, trace: Trace, right: Sequence[int]) -> None:
        super().__init__(model, all_shared(model, model), lambda token: False)
        self._series = trace.proposers[ProposerKind.DRAFT]
        self._right = right

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Proposal:
        missing = list(self._missing(tokens))

        def next_row(drafted: list[int]) -> tuple[Distribution, float]:
            self.model.decode(drafted[-1:] or missing, 1)
            token = (drafted or tokens)[-1]
            place = min(token, len(self._right) - 1)
            is_right = self._right[place] > 0
            row = _row(successor(token) if is_right else other(token))
            return row, self._series.confidence[place]

        proposal = Proposal([], [], [], len(missing))
        proposal.extend(next_row, extent, draw, lambda token: False)
        self._num_judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> ReplayScores:
        missing = self._missing(tokens)[:-1]
        num_rows = min(self._num_unjudged(tokens), len(probs), self.model.max_outputs)
        if not missing:
            return ReplayScores([], 0)
        self.model.decode(missing, num_rows)
        self._num_judged = len(tokens)
        # A token's number is one more than the number of its place.
        places = [token - 1 for token in tokens[len(tokens) - num_rows :]]
        series = self._series
        scores = [(series.confidence[place], series.chance[place]) for place in places]
        return ReplayScores(scores, len(missing))


class TracedText(Proposer):
    """A lookup, or what a constraint forces: it takes no time."""

    def __init__(self, kind: ProposerKind, trace: Trace) -> None:
        self.kind = kind
        self._series = trace.proposers[kind]
        self._judged = 0

    def state(self, tokens: Sequence[int]) -> ProposerState:
        place = min(tokens[-1], len(self._series.limit) - 1)
        limit, confidence = self._series.limit[place], self._series.confidence[place]
        if limit == 0:
            return ProposerState(0, draft_off=DraftOff.NOTHING_REPEATS)
        is_lookup = self.kind is ProposerKind.LOOKUP
        num_unjudged = max(len(tokens) - self._judged, 0) if is_lookup else 0
        return ProposerState(limit, num_unjudged=num_unjudged, confidence=confidence)

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Proposal:
        place = min(tokens[-1], len(self._series.limit) - 1)
        limit, num_right = self._series.limit[place], self._series.accepted[place]
        confidence = self._series.confidence[place]

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            if len(drafted) == limit:
                return None
            last = (drafted or tokens)[-1]
            is_right = len(drafted) < num_right
            row = _row(successor(last) if is_right else other(last))
            return row, self._confidence_behind(confidence, len(drafted))

        proposal = Proposal([], [], []).extend(next_row, extent, draw, lambda token: False)
        self._judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def _confidence_behind(self, confidence: float, num_drafted: int) -> float:
        """A lookup's match is longer by the tokens that were drafted before."""
        if self.kind is not ProposerKind.LOOKUP:
            return confidence
        certain = 1.0 / (1.0 - min(confidence, _SUREST))
        return 1.0 - 1.0 / (certain + num_drafted)

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> ReplayScores:
        first = max(len(tokens) - min(len(probs), _MAX_REPLAYED), self._judged)
        self._judged = len(tokens)
        series = self._series
        places = [token - 1 for token in tokens[first:]]
        return ReplayScores(
            [
                (series.confidence[place], float(series.accepted[place] > 0))
                for place in places
                if series.limit[place] > 0
            ],
            0,
        )

    def truncate(self, num_tokens: int) -> None:
        self._judged = min(self._judged, num_tokens)


class Silent(Proposer):
    """A proposer that this answer was recorded without."""

    def __init__(self, kind: ProposerKind) -> None:
        self.kind = kind

    def state(self, tokens: Sequence[int]) -> ProposerState:
        return ProposerState(0)


def replay(
    policy: DraftPolicy,
    trace: Trace,
    machine: Machine,
    seed: int,
    kinds: Sequence[ProposerKind],
) -> float:
    """Seconds that the real loop takes for a recorded answer, in target-only steps.

    Behind the prompt. kinds: who may propose, in the policy's order.
    """
    clock = Clock()
    target, draft = models(machine, clock)
    proposers = list[Proposer]()
    for kind in kinds:
        if kind not in trace.proposers:
            proposers.append(Silent(kind))
        elif kind is ProposerKind.DRAFT:
            right = accepted(trace.proposers[kind], seed)
            proposers.append(TracedDraft(draft, trace, right))
        else:
            proposers.append(TracedText(kind, trace))
    loop = SpeculativeDecoder(target, proposers, policy, FixedThreads(1), None, clock)
    prompt = [0] * trace.num_prompt_tokens
    chain = SamplerChain(SamplingParams(temperature=0), num_prompt_tokens=len(prompt))
    rule = make_rule(None, is_greedy=True, seed=None, randomness=Randomness(0))
    loop.start(prompt)
    request = Request(chain, rule, trace.num_tokens, lambda token: False)
    steps = loop.steps(request)
    next(steps)
    started = clock.now
    for _ in steps:
        pass
    return clock.now - started


def fixed(
    kind: ProposerKind, num_draft_tokens: int, trace: Trace, machine: Machine, seed: int
) -> float:
    """What `replay` gives with one proposer and a fixed number: the same sum, reckoned."""
    target_curve, draft_curve = curve(machine.ratios), curve(machine.draft_ratios)
    series = trace.proposers[kind]
    right = accepted(series, seed)
    seconds, place, last_size, last_read = 0.0, 1, 0, 0
    num_unread = trace.num_prompt_tokens + 1
    while place < trace.num_tokens:
        room = trace.num_tokens - place - 1
        num_drafted = min(num_draft_tokens, series.limit[place], room)
        if num_drafted > 0 and kind is ProposerKind.DRAFT:
            tokens = draft_curve[num_unread] + num_drafted - 1
            seconds += machine.draft_share * tokens
            num_changes = (num_unread != last_read) + (num_drafted > 1 and num_unread != 1)
            seconds += machine.draft_change * num_changes
            last_read = 1 if num_drafted > 1 else num_unread
        num_kept = min(num_drafted, right[place])
        seconds += target_curve[1 + num_drafted]
        seconds += machine.change * (1 + num_drafted != last_size)
        last_size = 1 + num_drafted
        place += num_kept + 1
        # The draft has read all but the last token of what it drafted, and none of the others.
        if num_drafted == 0:
            num_unread += 1
        else:
            num_unread = 2 if num_kept == num_drafted else 1
    return seconds
