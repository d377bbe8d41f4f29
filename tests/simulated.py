"""Models whose decodes take a chosen time on a clock of their own, and agree as often as asked.

What a policy makes of costs and acceptance shows exactly and at once, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import CERTAIN, Distribution, Logits, SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    REPLAY_TOKENS,
    DraftOff,
    DraftPolicy,
    Extent,
    ProposerKind,
    ProposerState,
    ReplayScores,
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
# Of another machine, where a token of sixteen is by far the cheapest.
Q4_K_TILED = {
    1: 1.0, 2: 2.03, 3: 2.65, 4: 3.12, 5: 4.27, 6: 4.56, 7: 5.22, 8: 6.87, 9: 7.04, 10: 8.35,
    11: 9.11, 12: 9.22, 13: 9.51, 14: 9.66, 15: 11.03, 16: 7.7, 17: 8.36, 32: 15.4,
}
# fmt: on
FLAT = {n: 1.0 + 0.01 * n for n in range(1, 33)}


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedModel:
    """A cycle through all tokens; `agrees(token)` says where it follows the target's."""

    def __init__(
        self,
        clock: Clock,
        target_only_s: float,
        ratios: dict[int, float],
        agrees: Callable[[int], bool] = lambda token: True,
        max_outputs: int = 17,
    ) -> None:
        self.vocab_size = VOCAB
        self.context_length = 1 << 20
        self.max_outputs = max_outputs
        self.can_truncate = True
        self.num_cached = 0
        self._clock, self._target_only_s, self._ratios, self._agrees = (
            clock,
            target_only_s,
            ratios,
            agrees,
        )

    def seconds(self, num_tokens: int) -> float:
        largest = max(self._ratios)
        if num_tokens > largest:
            return self._target_only_s * self._ratios[largest] * num_tokens / largest
        sizes = sorted(self._ratios)
        return self._target_only_s * float(
            np.interp(num_tokens, sizes, [self._ratios[size] for size in sizes])
        )

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        self.num_cached += len(tokens)
        self._clock.now += self.seconds(len(tokens))
        rows = np.zeros((num_logits, VOCAB), dtype=np.float32)
        for row, token in zip(rows, tokens[len(tokens) - num_logits :], strict=True):
            row[successor(token) if self._agrees(token) else (token + 7) % VOCAB] = 20.0
        return rows

    def truncate(self, num_cached: int) -> None:
        assert num_cached <= self.num_cached
        self.num_cached = num_cached


class FreeProposer:
    """Like a lookup: it takes no time, and `states(token)` says after which it has something.

    `agrees(token)` says where that follows the target.
    """

    kind = ProposerKind.LOOKUP

    def __init__(self, states: Callable[[int], bool], agrees: Callable[[int], bool]) -> None:
        self._offers, self._agrees = states, agrees
        self._judged = 0

    def state(self, tokens: Sequence[int]) -> ProposerState:
        if not self._offers(tokens[-1]):
            return ProposerState(0, draft_off=DraftOff.NOTHING_REPEATS)
        unjudged = max(len(tokens) - self._judged, 0)
        return ProposerState(MAX_DRAFT_TOKENS, num_unjudged=unjudged, confidence=0.5)

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Proposal:
        drafted: list[int] = []
        last = tokens[-1]
        num_worth = extent.num_worth(0, 0.5)
        while num_worth > 0:
            last = successor(last) if self._agrees(last) else (last + 7) % VOCAB
            drafted.append(last)
            num_worth = extent.num_worth(len(drafted), 0.5) if num_worth > 1 else 0
        self._judged = len(tokens) + len(drafted)
        distributions = [Distribution(np.array([token]), CERTAIN) for token in drafted]
        return Proposal(drafted, distributions, [0.5] * len(drafted), 0)

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> ReplayScores:
        first = max(len(tokens) - min(len(probs), REPLAY_TOKENS), self._judged, 1)
        before = [token for token in tokens[first - 1 : -1] if self._offers(token)]
        self._judged = len(tokens)
        return ReplayScores([(0.5, float(self._agrees(token))) for token in before], 0)

    def read_from(self, position: int) -> None:
        """It has read everything."""

    def truncate(self, num_tokens: int) -> None:
        self._judged = min(self._judged, num_tokens)


def successor(token: int) -> int:
    """The token after a token: a cycle of the length of the vocabulary."""
    return (token + 1) % VOCAB


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
    clock = Clock()
    target = TimedModel(clock, 1.0, ratios)
    draft = TimedModel(clock, draft_share, Q4_0, agrees, REPLAY_TOKENS)
    shared = all_shared(target, draft)  # type: ignore[arg-type]
    proposer = DraftModel(draft, shared, lambda token: False)
    loop = SpeculativeDecoder(target, [proposer, *others], policy, None, clock)
    params = SamplingParams(temperature=0)
    prompt = [(7 * i) % VOCAB for i in range(num_prompt_tokens - 1)] + [0]
    rule = make_rule(None, is_greedy=True, seed=None, randomness=Randomness(0))
    chain = SamplerChain(params, num_prompt_tokens=len(prompt))
    loop.start(prompt)
    for _ in loop.steps(Request(chain, rule, num_tokens, lambda token: False)):
        pass
    return clock.now
