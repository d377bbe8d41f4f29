"""Models whose decodes take a chosen time on a clock of their own, and agree as often as asked.

What a policy makes of costs and acceptance shows exactly and at once, on any machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import CERTAIN, Distribution, Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.model_api import Decoding
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    REPLAY_TOKENS,
    DraftOff,
    DraftPolicy,
    Extent,
    ProposerKind,
    ProposerState,
    ReplayScores,
    ThreadPolicy,
)
from localspec.speculative.proposers import DraftModel, Draw, Proposal, Proposer
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from toy import all_shared

VOCAB = 1024
# v(n) of a 7B model on two CPU cores: a staircase, which no formula gives.
# fmt: off
Q4_0 = {
    1: 1.0, 2: 1.58, 3: 2.23, 4: 1.48, 5: 2.27, 6: 3.06, 7: 3.67, 8: 2.91, 9: 3.56, 10: 4.02,
    11: 4.1, 12: 4.25, 13: 5.0, 14: 5.78, 15: 4.8, 16: 3.80, 17: 4.62, 24: 6.36, 32: 7.59,
}
Q4_K = {
    1: 1.0, 2: 1.73, 3: 2.33, 4: 2.32, 5: 3.31, 6: 3.83, 7: 4.53, 8: 3.93, 9: 4.84, 10: 5.37,
    11: 5.4, 12: 5.47, 13: 6.1, 14: 6.79, 15: 6.0, 16: 5.24, 17: 6.22, 24: 8.35, 32: 10.1,
}
# Of the really trained model that the traces are of.
TRAINED = {
    1: 1.0, 2: 1.40, 3: 1.73, 4: 2.39, 5: 2.54, 6: 2.98, 8: 4.38, 12: 6.52, 16: 5.34, 17: 6.0,
}
# fmt: on
# Q4_0 as a curve: the costs of 0 to 9 tokens.
STAIRS = (0.0, *(Q4_0[n] for n in range(1, 10)))
FLAT = {n: 1.0 + 0.01 * n for n in range(1, 33)}
# As on a GPU, flat to 8 and then a jump, and as on Metal, a line.
GPU = {n: 1.0 if n <= 8 else 1.6 + 0.02 * (n - 8) for n in range(1, 33)}
METAL = {n: 1.0 + 0.25 * (n - 1) for n in range(1, 33)}
# Of an 8B model and of one of 135M on an H100, where a decode has the size of the last one.
H100_LARGE = {
    1: 1.0, 2: 1.1, 3: 1.25, 4: 1.41, 5: 1.61, 6: 1.77, 8: 2.03, 9: 2.35, 17: 2.45, 32: 2.6,
    512: 9.0,
}  # fmt: skip
H100_SMALL = {
    1: 1.0, 2: 1.17, 3: 1.37, 4: 1.4, 5: 1.48, 6: 1.54, 8: 1.59, 9: 2.86, 12: 3.14, 17: 3.2,
    512: 9.0,
}  # fmt: skip

# By what a decode of so many tokens after so many others is slower: (cached, tokens).
Slowdown = Callable[[int, int], float]


def steady(num_cached: int, num_tokens: int) -> float:
    """Of a machine that does nothing else."""
    return 1.0


class Machine(NamedTuple):
    """What decodes take. ratios, draft_ratios: v(n) of target and draft.

    draft_share: a draft's token, in target-only steps of the target. slowdown, draft_slowdown:
    of their decodes. waking: by what the first target-only step after a draft is slower.
    change, draft_change: what a decode takes more, in target-only steps of the target, where it
    has another size than the model's decode before.
    """

    name: str
    ratios: dict[int, float]
    draft_share: float
    draft_ratios: dict[int, float] = Q4_0
    slowdown: Slowdown = steady
    draft_slowdown: Slowdown = steady
    waking: float = 1.0
    change: float = 0.0
    draft_change: float = 0.0


def sure(token: int) -> float:
    """A draft that is always sure."""
    return 20.0


class Text(NamedTuple):
    """What is answered. agrees(token): whether the draft is right after it.

    margin(token): by how much its best logit is above the second there. starts: of each
    answer the token it begins after; it has num_tokens, after num_prompt_tokens more.
    """

    agrees: Callable[[int], bool]
    num_tokens: int = 1024
    num_prompt_tokens: int = 32
    margin: Callable[[int], float] = sure
    starts: tuple[int, ...] = (0,)


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.drafted = False  # since the last target-only step

    def __call__(self) -> float:
        return self.now


class TimedModel:
    """A cycle through all tokens; `agrees(token)` says where it follows the target's."""

    vocab_size, context_length, max_rollback = VOCAB, 1 << 20, 10**6

    def __init__(
        self,
        clock: Clock,
        target_only_s: float,
        ratios: dict[int, float],
        agrees: Callable[[int], bool] = lambda token: True,
        max_outputs: int = 17,
    ) -> None:
        self.max_outputs = max_outputs
        self.num_cached = 0
        self.sizes: list[tuple[int, int]] = []  # tokens and rows of each decode
        self.slowdown: Slowdown = steady
        self.change_s = 0.0
        self.margin: Callable[[int], float] = sure
        self._clock, self._target_only_s, self._agrees = clock, target_only_s, agrees
        self._curve = curve(ratios)

    def seconds(self, num_tokens: int) -> float:
        return self._target_only_s * self._curve[num_tokens]

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        size = len(tokens)
        self._clock.now += self.seconds(size) * self.slowdown(self.num_cached, size)
        last_size = self.sizes[-1][0] if self.sizes else 0
        self._clock.now += self.change_s * (size != last_size)
        self.sizes.append((size, num_logits))
        self.num_cached += size
        rows = np.zeros((num_logits, VOCAB), dtype=np.float32)
        for row, token in zip(rows, tokens[size - num_logits :], strict=True):
            best, second = successor(token), other(token)
            if not self._agrees(token):
                best, second = second, best
            row[best], row[second] = 20.0, 20.0 - self.margin(token)
        return rows

    def truncate(self, num_cached: int) -> None:
        assert num_cached <= self.num_cached
        self.num_cached = num_cached

    def checkpoint(self) -> None:
        """Nothing to do: it comes back to anywhere."""


class TimedTarget(TimedModel):
    """A target whose target-only steps take longer behind a draft, by the factor `waking`."""

    waking = 1.0

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        before = self._clock.now
        rows = super().decode(tokens, num_logits)
        if len(tokens) == 1:
            if self._clock.drafted:
                self._clock.now = before + (self._clock.now - before) * self.waking
            self._clock.drafted = False
        return rows


class TimedDraft(TimedModel):
    """A draft that tells the clock that it was used."""

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        self._clock.drafted = True
        return super().decode(tokens, num_logits)


def models(
    machine: Machine,
    clock: Clock,
    agrees: Callable[[int], bool] = lambda token: True,
    margin: Callable[[int], float] = sure,
) -> tuple[TimedTarget, TimedDraft]:
    """Target and draft of a machine; where the draft is right, and how sure, as in `Text`."""
    target = TimedTarget(clock, 1.0, machine.ratios)
    target.slowdown, target.change_s = machine.slowdown, machine.change
    target.waking = machine.waking
    share, ratios = machine.draft_share, machine.draft_ratios
    draft = TimedDraft(clock, share, ratios, agrees, REPLAY_TOKENS)
    draft.slowdown, draft.change_s = machine.draft_slowdown, machine.draft_change
    draft.margin = margin
    return target, draft


def num_changes(sizes: Sequence[tuple[int, int]]) -> int:
    """How many of a model's decodes differ in size from the one before."""
    return sum(one != other for one, other in itertools.pairwise(sizes))


def curve(ratios: dict[int, float]) -> list[float]:
    """v(n) for n = 0, 1, 2 … 4096: between sizes a line, and one through 0 beyond them."""
    sizes, values = zip(*sorted(ratios.items()), strict=True)
    largest = sizes[-1]
    known = np.interp(range(largest + 1), sizes, values).tolist()
    return known + [known[-1] * size / largest for size in range(largest + 1, 4097)]


class FreeProposer(Proposer):
    """Like a lookup: it takes no time, and `states(token)` says after which it has something.

    `agrees(token)` says where that follows the target. It proposes `most` tokens at most.
    """

    kind = ProposerKind.LOOKUP

    def __init__(
        self,
        states: Callable[[int], bool],
        agrees: Callable[[int], bool],
        most: int = MAX_DRAFT_TOKENS,
    ) -> None:
        self._states, self._agrees = states, agrees
        self._most = most
        self._judged = 0

    def state(self, tokens: Sequence[int]) -> ProposerState:
        if not self._states(tokens[-1]):
            return ProposerState(0, draft_off=DraftOff.NOTHING_REPEATS)
        unjudged = max(len(tokens) - self._judged, 0)
        return ProposerState(self._most, num_unjudged=unjudged, confidence=0.5)

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Decoding[Proposal]:
        yield from ()

        def next_row(drafted: list[int]) -> tuple[Distribution, float]:
            last = (drafted or tokens)[-1]
            token = successor(last) if self._agrees(last) else other(last)
            return Distribution(np.array([token]), CERTAIN), 0.5

        proposal = Proposal([], [], []).extend(next_row, extent, draw, lambda token: False)
        self._judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> Decoding[ReplayScores]:
        yield from ()
        first = max(len(tokens) - min(len(probs), REPLAY_TOKENS), self._judged, 1)
        before = [token for token in tokens[first - 1 : -1] if self._states(token)]
        self._judged = len(tokens)
        return ReplayScores([(0.5, float(self._agrees(token))) for token in before], 0)

    def truncate(self, num_tokens: int) -> None:
        self._judged = min(self._judged, num_tokens)


def successor(token: int) -> int:
    """The token after a token: a cycle of the length of the vocabulary."""
    return (token + 1) % VOCAB


def other(token: int) -> int:
    """A token that does not follow a token."""
    return (token + 7) % VOCAB


def at_random(agreement: float, seed: int = 0) -> Callable[[int], bool]:
    """Agrees with that share of the tokens."""
    agreed = np.random.default_rng(seed).random(VOCAB) < agreement
    return lambda token: bool(agreed[token])


def run(
    policy: DraftPolicy,
    agrees: Callable[[int], bool],
    ratios: dict[int, float],
    *,
    draft_share: float = 0.12,
    num_tokens: int = 1024,
    num_prompt_tokens: int = 32,
    others: Sequence[Proposer] = (),
) -> float:
    """Seconds that an answer takes, in target-only steps of the target; prompt included.

    others: proposers beside the draft.
    """
    text = Text(agrees, num_tokens, num_prompt_tokens)
    return answer(policy, text, Machine("", ratios, draft_share), Clock(), others)


def answer(
    policy: DraftPolicy,
    text: Text,
    machine: Machine,
    clock: Clock,
    others: Sequence[Proposer] = (),
) -> float:
    """Seconds that the real loop takes for a text, in target-only steps; prompts included."""
    target, draft = models(machine, clock, text.agrees, text.margin)
    shared = all_shared(target, draft)  # type: ignore[arg-type]
    proposers = [DraftModel(draft, shared, lambda token: False), *others]
    loop = SpeculativeDecoder(target, proposers, policy, ThreadPolicy(1), None, clock)
    rule = make_rule("greedy", Randomness(0))
    for start in text.starts:
        question = [(7 * i) % VOCAB for i in range(text.num_prompt_tokens - 1)]
        prompt = [*loop.tokens, *question, start]
        chain = SamplerChain(SamplingParams(temperature=0), num_prompt_tokens=len(prompt))
        loop.start(prompt)
        request = Request(chain, rule, text.num_tokens, lambda token: False)
        for _ in loop.steps(request):
            pass
    return clock.now
