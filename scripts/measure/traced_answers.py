"""Replays recorded answers through the real loop, at the costs of any machine: no model runs.

A file of tests/traces/ has, for each token of an answer that was produced without drafting,
what each proposer would have proposed there and how much of it would have been accepted.
Nothing of the text is kept but lengths and these numbers. The tokens of a replayed answer are
the numbers of its places, so that the loop of `simulated` follows it: place after place, each
proposer is as right and as confident as it was there. `simulate_policy.py --traces` prints
what comes of it.

A proposal of certain tokens, as a lookup's, is accepted as far as it agrees with the text that
came. A token drawn from a draft's distribution q is accepted with probability min(1, q(x) /
p(x)), where x is the token that came and p the target's distribution. The draft reads the
text's own tokens, which are what it has drafted wherever that was accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.cost import STEADY_SIZES
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import CERTAIN, Distribution
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.model_api import Decode, Decoding
from localspec.speculative.policy_api import (
    DraftOff,
    DraftPolicy,
    Extent,
    FixedDraftPolicy,
    ProposerKind,
    ProposerState,
    ReplayScores,
    ThreadPolicy,
)
from localspec.speculative.proposers import DraftModel, Draw, Proposal, Proposer
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from policy_scenarios import (
    EPYC_7B,
    EPYC_SMALL,
    FIXED,
    LIKE_GPU,
    LIKE_METAL,
    ON_H100,
    SMALL_ON_H100,
    STAIRS,
    STEEP,
    TILED,
    WITH_AMX,
    WITH_AVX512,
    XEON_7B,
)
from simulated import TRAINED, Clock, Machine, TimedDraft, curve, models, other, successor
from toy import all_shared

# What decodes cost was measured of the first nine.
MACHINES = (
    STAIRS,
    STEEP,
    TILED,
    Machine("EPYC 7B Q4_0", EPYC_7B, 0.13, EPYC_7B),
    Machine("EPYC 1.5B Q4_0", EPYC_SMALL, 0.43, EPYC_SMALL),
    Machine("Xeon 7B Q4_0", XEON_7B, 0.10, XEON_7B),
    Machine("1.5B Q4_K_M", TRAINED, 0.43, TRAINED),
    WITH_AVX512._replace(draft_share=0.43),
    WITH_AMX._replace(draft_share=0.43),
    LIKE_GPU,
    LIKE_METAL,
    ON_H100,
    SMALL_ON_H100,
)
FILES = ("qwen2.5-coder-1.5b", "smollm2-135m")
_FOLDER = Path(__file__).parents[2] / "tests" / "traces"
_EACH = 3  # of so many prompts of a kind one is held out
_SEED = 1
_MAX_REPLAYED = 16  # as a lookup
_SUREST = 0.999  # confidence; recorded ones are rounded, at times to 1


class Series(NamedTuple):
    """One proposer along an answer; each list has a number per token of the answer.

    limit: how many tokens it could propose there, at most MAX_DRAFT_TOKENS; 0 for none.
    confidence: its own in its first token, 0 … 1. chance: the probability, 0 … 1, that this
    token would have been accepted, given the text. accepted: how many tokens of a long proposal
    would have been accepted; empty where that follows from the chances, one after the other.
    """

    limit: Sequence[int]
    confidence: Sequence[float]
    chance: Sequence[float]
    accepted: Sequence[int]

    def drawn(self) -> Series:
        """The same, with `accepted` drawn where a chance decides: each time alike."""
        if self.accepted:
            return self
        uniforms = np.random.default_rng(_SEED).random(len(self.chance))
        found = []
        following = 0
        for chance, uniform in zip(reversed(self.chance), uniforms, strict=True):
            following = following + 1 if uniform < chance else 0
            found.append(following)
        return self._replace(accepted=found[::-1])


_SILENT = Series([0], [0.0], [0.0], [0])  # a proposer that an answer was recorded without


class Trace(NamedTuple):
    """One answer. kind: of its prompt. The lengths of the prompt and of the answer."""

    kind: str
    num_prompt_tokens: int
    num_tokens: int
    proposers: Mapping[ProposerKind, Series]


def read_traces(name: str) -> list[Trace]:
    """The traces of a file of tests/traces/."""
    _, *lines = map(json.loads, (_FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines())
    return [
        Trace(
            line["kind"],
            line["num_prompt_tokens"],
            line["num_tokens"],
            {
                ProposerKind(kind): Series(*(series[name] for name in Series._fields)).drawn()
                for kind, series in line["proposers"].items()
            },
        )
        for line in lines
    ]


def _row(token: int, *, is_right: bool) -> Distribution:
    """The draft's distribution behind a token."""
    following = successor(token) if is_right else other(token)
    return Distribution(np.array([following]), CERTAIN)


class TracedDraft(DraftModel):
    """A draft whose decodes take time, as right and as confident as the recorded one."""

    def __init__(self, model: TimedDraft, series: Series) -> None:
        super().__init__(model, all_shared(model, model), lambda token: False)
        self._series = series

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Decoding[Proposal]:
        missing = self._missing(tokens)
        series = self._series
        proposal = Proposal([], [], [], len(missing))
        if self.keeps_sizes and len(missing) > 1:
            yield from self._read_ahead(missing[:-1], extent.limit)
            missing = missing[-1:]
        drafted = proposal.draft_tokens
        may_follow = True
        while may_follow:
            yield Decode(self.model, drafted[-1:] or missing, 1)
            token = (drafted or tokens)[-1]
            place = min(token, len(series.accepted) - 1)
            row = _row(token, is_right=series.accepted[place] > 0)
            confidence = series.confidence[place]
            may_follow = proposal.add(row, confidence, extent, draw, lambda token: False)
        self._num_judged = len(tokens) + len(drafted)
        return proposal

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> Decoding[ReplayScores]:
        missing = self._missing(tokens)[:-1]
        num_rows = min(self._num_unjudged(tokens), len(probs), self.model.max_outputs)
        if not missing:
            return ReplayScores([], 0)
        yield Decode(self.model, missing, num_rows)
        self._num_judged = len(tokens)
        # A token's number is one more than the number of its place.
        places = [token - 1 for token in tokens[len(tokens) - num_rows :]]
        series = self._series
        scores = [(series.confidence[place], series.chance[place]) for place in places]
        return ReplayScores(scores, len(missing))


class TracedText(Proposer):
    """A lookup, or what a constraint forces: it takes no time."""

    def __init__(self, kind: ProposerKind, series: Series) -> None:
        self.kind = kind
        self._series = series
        self._judged = 0

    def _place(self, tokens: Sequence[int]) -> int:
        return min(tokens[-1], len(self._series.limit) - 1)

    def state(self, tokens: Sequence[int]) -> ProposerState:
        place = self._place(tokens)
        limit = self._series.limit[place]
        confidence = self._series.confidence[place]
        if limit == 0:
            return ProposerState(0, draft_off=DraftOff.NOTHING_REPEATS)
        is_lookup = self.kind is ProposerKind.LOOKUP
        num_unjudged = max(len(tokens) - self._judged, 0) if is_lookup else 0
        return ProposerState(limit, num_unjudged=num_unjudged, confidence=confidence)

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Decoding[Proposal]:
        yield from ()
        place = self._place(tokens)
        limit = self._series.limit[place]
        num_right = self._series.accepted[place]
        confidence = self._series.confidence[place]

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            if len(drafted) == limit:
                return None
            row = _row((drafted or tokens)[-1], is_right=len(drafted) < num_right)
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
    ) -> Decoding[ReplayScores]:
        yield from ()
        first = max(len(tokens) - min(len(probs), _MAX_REPLAYED), self._judged)
        self._judged = len(tokens)
        series = self._series
        places = [token - 1 for token in tokens[first:]]
        scores = [
            (series.confidence[place], float(series.accepted[place] > 0))
            for place in places
            if series.limit[place] > 0
        ]
        return ReplayScores(scores, 0)

    def truncate(self, num_tokens: int) -> None:
        self._judged = min(self._judged, num_tokens)


def replay(
    policy: DraftPolicy, trace: Trace, machine: Machine, kinds: Iterable[ProposerKind]
) -> float:
    """Seconds that the real loop takes for a recorded answer, in target-only steps.

    Behind the prompt. kinds: the proposers, in the policy's order.
    """
    clock = Clock()
    target, draft = models(machine, clock)
    proposers: list[Proposer] = [
        TracedDraft(draft, trace.proposers[kind])
        if kind is ProposerKind.DRAFT
        else TracedText(kind, trace.proposers.get(kind, _SILENT))
        for kind in kinds
    ]
    loop = SpeculativeDecoder(target, proposers, policy, ThreadPolicy(1), None, clock)
    prompt = [0] * trace.num_prompt_tokens
    chain = SamplerChain(SamplingParams(temperature=0), num_prompt_tokens=len(prompt))
    rule = make_rule("greedy", Randomness(0))
    loop.start(prompt)
    steps = loop.steps(Request(chain, rule, trace.num_tokens, lambda token: False))
    next(steps)
    started = clock.now
    for _ in steps:
        pass
    return clock.now - started


def split_file(name: str) -> tuple[list[Trace], list[Trace]]:
    """The traces to learn from, and those held out: every third prompt of each kind."""
    groups: dict[str, list[Trace]] = {}
    for trace in read_traces(name):
        groups.setdefault(trace.kind, []).append(trace)
    learned = list[Trace]()
    held_out = list[Trace]()
    for group in groups.values():
        for number, trace in enumerate(group, 1):
            (learned if number % _EACH else held_out).append(trace)
    return learned, held_out


def new_policy(kinds: Iterable[ProposerKind], machine: Machine) -> AdaptiveDraftPolicy:
    """A policy as an engine makes it for these proposers when it knows nothing.

    Where changes of size cost time, decodes are fast, and timed when the model is loaded.
    """
    shares = {kind: machine.draft_share * (kind is ProposerKind.DRAFT) for kind in kinds}
    policy = AdaptiveDraftPolicy(shares, 1)
    if machine.change:
        for size in STEADY_SIZES[1:]:
            ratios = [curve(machine.ratios)[size]] * 3
            policy.costs.learn_in_idle_time(size, 1.0, ratios, 1.0 + machine.change)
        for kind in shares:
            for _ in range(3):
                policy.costs.learn_draft(kind, 1, 4, 4 * shares[kind])
    return policy


def judged(name: str, machine: Machine) -> Iterator[tuple[float, float]]:
    """Best ÷ policy for each held-out answer of a file: after the others, and at first.

    The best is the shortest time with a fixed proposer and number of tokens.
    """
    others, asked = split_file(name)
    kinds = [
        kind for kind in ProposerKind if any(kind in each.proposers for each in others + asked)
    ]
    learned = new_policy(kinds, machine)
    for trace in others:
        replay(learned, trace, machine, kinds)
    for trace in asked:
        best_s = min(
            replay(FixedDraftPolicy(count), trace, machine, [kind])
            for kind in trace.proposers
            for count in FIXED
        )
        restored = new_policy(kinds, machine)
        first = new_policy(kinds, machine)
        restored.restore(learned.as_dict())
        restored_s, first_s = (
            replay(policy, trace, machine, kinds) for policy in (restored, first)
        )
        yield best_s / restored_s, best_s / first_s
