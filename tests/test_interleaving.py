"""The speed-up of an answer, on machines whose speed wanders, where the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from simulated import Q4_0, Q4_K, VOCAB, Clock, TimedModel, at_random

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.interleaving import Interleaving
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import REPLAY_TOKENS, ProposerKind, StepRecord
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Randomness
from localspec.speculative.ratio_estimate import RatioEstimate
from localspec.speculative.rules import make_rule
from localspec.speculative.thread_policy import FixedThreads
from toy import all_shared


class Machine:
    """How slow it is: a factor that wanders or jumps, and noise from decode to decode."""

    def __init__(self, seed: int, wander: float, noise: float, jump: float) -> None:
        self.log = 0.0
        self._random = np.random.default_rng(seed)
        self._wander, self._noise, self._jump = wander, noise, jump
        self._num_decodes = 0

    def factor(self) -> float:
        self._num_decodes += 1
        self.log = 0.995 * self.log + self._wander * self._random.normal()
        return self.level * float(np.exp(self._noise * self._random.normal()))

    @property
    def level(self) -> float:
        """What a target-only step takes now, on average."""
        return float(np.exp(self.log)) * (self._jump if self._num_decodes < 200 else 1.0)


class DriftingModel(TimedModel):
    """A decode takes as long as the machine makes it."""

    machine: Machine

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        before = self._clock.now
        rows = super().decode(tokens, num_logits)
        self._clock.now = before + (self._clock.now - before) * self.machine.factor()
        return rows


def answer(
    machine: Machine, agrees: Callable[[int], bool], ratios: dict[int, float]
) -> tuple[float, float, RatioEstimate | None]:
    """An answer of the real loop: its true speed-up, its tokens per decode, what is said."""
    clock = Clock()
    target = DriftingModel(clock, 1.0, ratios)
    draft = DriftingModel(clock, 0.12, Q4_0, agrees, REPLAY_TOKENS)
    target.machine = draft.machine = machine
    proposer = DraftModel(draft, all_shared(target, draft), lambda token: False)
    policy = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.12}, 1)
    loop = SpeculativeDecoder(target, [proposer], policy, FixedThreads(1), None, clock)
    prompt = [(7 * i) % VOCAB for i in range(32)]
    loop.start(prompt)
    rule = make_rule(None, is_greedy=True, seed=None, randomness=Randomness(0))
    chain = SamplerChain(SamplingParams(temperature=0), num_prompt_tokens=len(prompt))
    steps = loop.steps(Request(chain, rule, 512, lambda token: False))
    next(steps)
    interleaving = Interleaving()
    target_only_s, begun, num_steps = 0.0, clock.now, 1
    for step in steps:
        interleaving.add(step)
        target_only_s += len(step.tokens) * machine.level
        num_steps += 1
    return target_only_s / (clock.now - begun), 512 / num_steps, interleaving.speedup()


CASES = {
    # wander, noise, how much slower the first 200 decodes are
    "quiet": (0.0, 0.05, 1.0),
    "wandering": (0.01, 0.08, 1.0),
    "nine times as slow at first": (0.0, 0.05, 9.0),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_an_answer_is_true(name):
    """Its interval holds the true speed-up, and it is never more than tokens per decode."""
    shown = held = 0
    for ratios, agreement in ((Q4_0, 0.5), (Q4_0, 0.7), (Q4_K, 0.8)):
        for seed in range(10):
            machine = Machine(seed, *CASES[name])
            truth, tokens_per_decode, said = answer(machine, at_random(agreement, seed), ratios)
            if said is None:
                continue
            shown += 1
            held += said.low <= truth <= said.high
            assert said.low <= said.value <= said.high <= tokens_per_decode * (1 + 1e-9)
    assert shown >= 8
    assert held >= 0.88 * shown


def record(num_emitted: int, seconds: float) -> StepRecord:
    """Plain, or with three draft tokens if it emits more than one."""
    is_plain = num_emitted == 1
    return StepRecord(
        proposer=None if is_plain else 0,
        confidences=[] if is_plain else [0.9] * 3,
        num_accepted=num_emitted - 1,
        num_emitted=num_emitted,
        num_read=1,
        num_target_tokens=1 if is_plain else 4,
        num_cached=10,
        draft_time_s=0.0 if is_plain else seconds / 4,
        target_time_s=seconds if is_plain else seconds * 3 / 4,
        sampler_time_s=0.0,
    )


def said_of(*steps: tuple[int, float]) -> RatioEstimate | None:
    interleaving = Interleaving()
    for num_emitted, seconds in steps:
        interleaving.add(record(num_emitted, seconds))
    return interleaving.speedup()


def test_sides_in_turn_give_the_ratio():
    """Three tokens in the time of two target-only steps, and a target-only step after."""
    found = said_of(*[(1, 1.0), (3, 2.0), (3, 2.0)] * 6, (1, 1.0))
    assert found is not None
    assert found.value == pytest.approx((6 * 7 + 1) / (6 * 5 + 1))


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [(1, 1.0)] * 100,
        [(3, 2.0)] * 100,
        # Four draft tokens of a hundred, in a step that something disturbed.
        [*[(1, 1.0)] * 50, (2, 90.0), (2, 90.0), *[(1, 1.0)] * 46],
        # Target-only steps at the front alone, on a machine that was slow then.
        [*[(1, 9.0)] * 5, *[(4, 2.0)] * 60],
        # More than the four tokens of a decode: target-only steps were disturbed each time.
        [(1, 30.0), (4, 2.0), (4, 2.0), (4, 2.0)] * 8,
        # Rounds that contradict each other.
        [(1, 1.0), (3, 1.5), (1, 1.0), (3, 9.0)] * 3,
    ],
    ids=["nothing", "plain", "drafted", "hardly any", "another minute", "impossible", "unsure"],
)
def test_nothing_is_said_where_conditions_were_not_alike(steps):
    assert said_of(*steps) is None


def test_plain_steps_that_wake_threads_are_not_what_plain_decoding_takes():
    found = said_of(*[(1, 1.5), (1, 1.0), (1, 1.0), (3, 2.0)] * 6)
    assert found is not None
    assert found.value == pytest.approx((6 * 3 + 6 * 3.5) / (6 * 5.5))
