"""Heads that draft a block at once, as proposers: with tables, and on a clock of their own."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from simulated import FLAT, Clock, TimedModel, TimedTarget, at_random, successor

from localspec.errors import DecodeError
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.speedup import Curve, best_draft_tokens, expected_speedup
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.blocks import Blocks
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import (
    DraftOff,
    FixedDraftPolicy,
    PolicyContext,
    ProposerKind,
)
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.speculative.thread_policy import FixedThreads
from reference import greedy_text
from toy import TableBlocks, TableModel

PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplingParams(temperature=0.0)
UNFILTERED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def never(_token):
    return False


def loop_of(target, head, policy, clock=None):
    clock = clock or functools.partial(next, itertools.count(1.0))
    return SpeculativeDecoder(
        target, [Blocks(head, never)], policy, FixedThreads(1), None, clock
    )


def steps_of(loop, prompt=PROMPT, max_tokens=40, params=GREEDY, seed=None, rule=None):
    made = make_rule(
        rule, is_greedy=params.is_greedy, seed=seed, randomness=Randomness(seed or 0)
    )
    loop.start(list(prompt))
    chain = SamplerChain(params, num_prompt_tokens=len(prompt))
    return loop.steps(Request(chain, made, max_tokens, never))


def tokens_of(steps):
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("is_paired", [False, True])
@pytest.mark.parametrize("num_kept", [1, 7, 64])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 8, 16])
def test_greedy_text_is_the_targets_with_one_decode_for_each_draft(
    is_paired, num_kept, num_draft_tokens
):
    target = TableModel()
    head = TableBlocks(target, num_kept=num_kept, max_draft_tokens=7, is_paired=is_paired)
    loop = loop_of(target, head, FixedDraftPolicy(num_draft_tokens))
    steps = list(steps_of(loop))
    assert tokens_of(steps) == greedy_text(target, PROMPT, 40, never)
    assert sum(step.num_accepted for step in steps) > 0
    assert max(len(step.confidences) for step in steps) == min(num_draft_tokens, 7)
    assert head.num_blocks == sum(len(step.confidences) > 0 for step in steps)


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 16])
def test_seeded_text_does_not_depend_on_the_head(num_draft_tokens):
    texts = []
    for count in (0, num_draft_tokens):
        target = TableModel(seed=3)
        loop = loop_of(target, TableBlocks(target), FixedDraftPolicy(count))
        steps = steps_of(loop, params=UNFILTERED, seed=11, rule="coupled")
        texts.append(tokens_of(steps))
    assert texts[0] == texts[1]


def test_text_stays_the_targets_after_cuts_cancels_failures_and_new_prompts():
    """In every order: the head reads nothing that the target lacks (`TableBlocks` raises)."""
    target = TableModel()
    loop = loop_of(target, TableBlocks(target, num_kept=6), FixedDraftPolicy(4))
    for number in range(24):
        prompt = [*PROMPT, *range(number % 7)]
        steps = steps_of(loop, prompt)
        for _ in range(number % 5):
            next(steps)
        if number % 4 == 1:
            steps.close()
        elif number % 4 == 2:
            target.fail_at = len(target.decoded) + number % 3
            with pytest.raises(DecodeError, match="asked for"):
                list(steps)
        elif number % 4 == 3:
            list(steps)
            loop.truncate(len(prompt) - 2)
        else:
            text = tokens_of(steps_of(loop, prompt))
            assert text == greedy_text(target, prompt, 40, never)


def test_it_says_nothing_while_the_target_lacks_the_text_or_there_is_no_room():
    target = TableModel(context_length=48)
    loop = loop_of(target, TableBlocks(target), FixedDraftPolicy(2))
    list(steps_of(loop, max_tokens=20))
    proposer = loop.proposers[0]
    full = [*loop.tokens, *[1] * (48 - len(loop.tokens))]
    target.truncate(3)  # as a recurrent one that came back to a checkpoint
    assert proposer.state(loop.tokens).draft_off is DraftOff.HEAD_LACKS_ROWS
    target.truncate(0)
    target.decode(full[:-1], 0)
    assert proposer.state(full).draft_off is DraftOff.DRAFT_CONTEXT_FULL


def test_its_own_confidences_decide_how_long_a_draft_becomes():
    class Halved(FixedDraftPolicy):
        """Goes on while the head is at least half sure."""

        def choose(self, context):
            chosen = super().choose(context)
            limit = min(self.draft_tokens, context.room)

            class Extent:
                def num_worth(self, num_drafted, confidence):
                    return limit - num_drafted if confidence >= 0.5 else 0

            extent = Extent()
            extent.limit = limit
            return chosen._replace(extent=extent) if chosen.extent else chosen

    target = TableModel()
    loop = loop_of(target, TableBlocks(target, says=True), Halved(8))
    drafted = [step.confidences for step in steps_of(loop)]
    assert max(map(len, drafted)) == 2
    assert [1.0, 0.5] in [list(one) for one in drafted]


class TimedBlocks:
    """Reads nothing; a block takes a chosen time, whatever its size."""

    context_length, max_draft_tokens, begins_at = 1 << 20, 16, 0

    def __init__(self, clock, block_s, agrees):
        self.num_cached, self.sizes = 0, []
        self._clock, self._block_s, self._agrees = clock, block_s, agrees
        self._last = 0

    @property
    def readable(self):
        return range(1 << 20)

    def read_from(self, position):
        self.begins_at, self.num_cached = position, 0

    def truncate(self, num_cached):
        self.num_cached = min(self.num_cached, num_cached)

    def decode_block(self, tokens, num_tokens):
        self._clock.now += self._block_s
        self.num_cached += len(tokens) - 1
        self.sizes.append(num_tokens)
        self._last = tokens[-1]

    def row(self, drafted):
        before = [self._last, *drafted][-1]
        row = np.zeros(1024, dtype=np.float32)
        row[successor(before) if self._agrees(before) else (before + 7) % 1024] = 20.0
        return row

    def confidence(self, place):
        return None


def timed(policy, block_s, agrees, num_tokens=2000):
    """Seconds of an answer, in target-only steps, and the sizes of the blocks."""
    clock = Clock()
    target = TimedTarget(clock, 1.0, FLAT)
    head = TimedBlocks(clock, block_s, agrees)
    loop = loop_of(target, head, policy, clock)
    for _ in steps_of(loop, [5], num_tokens):
        pass
    assert isinstance(target, TimedModel)
    return clock.now, head.sizes


@pytest.mark.parametrize("agreement", [0.0, 0.2, 0.3, 0.9])
@pytest.mark.parametrize("block_s", [0.1, 0.5, 1.0])
def test_the_policy_knows_that_a_block_costs_the_same_whatever_its_length(block_s, agreement):
    policy = AdaptiveDraftPolicy({ProposerKind.HEAD: 0.3}, 1)
    seconds, sizes = timed(policy, block_s, at_random(agreement))
    estimate = policy.estimate()
    assert estimate is not None
    if len(sizes) >= 3:
        assert estimate.draft_token_s == pytest.approx(block_s, rel=0.01)
    # Never much worse than without, and long where it is right.
    assert seconds < 1.03 * 2000
    if agreement == 0.9:
        assert seconds < 0.6 * 2000
        assert np.mean(sizes) > 8


@pytest.mark.parametrize(("block_s", "share"), [(0.1, 0.42), (0.3, 0.6), (0.5, 0.75)])
def test_a_resting_head_is_looked_at_again(block_s, share):
    """After 300 tokens for which it is useless, it is right."""
    right = at_random(0.95)
    policy = AdaptiveDraftPolicy({ProposerKind.HEAD: block_s}, 1)
    seconds, _ = timed(policy, block_s, lambda token: token >= 300 and right(token), 1000)
    assert seconds < share * 1000


class SlowFirst(TimedTarget):
    """Its first decode of each size takes longer, by a factor: kernels are loaded in it."""

    def __init__(self, clock, factor):
        super().__init__(clock, 1.0, OF_H100)
        self._clock, self._factor, self._sizes = clock, factor, set()

    def decode(self, tokens, num_logits):
        before, size = self._clock.now, len(tokens)
        rows = super().decode(tokens, num_logits)
        if size not in self._sizes:
            self._clock.now += (self._factor - 1.0) * (self._clock.now - before)
        self._sizes.add(size)
        return rows


# v(n) of an 8B model there.
OF_H100 = {
    1: 1.0, 2: 1.1, 3: 1.25, 4: 1.41, 5: 1.61, 6: 1.77, 8: 2.03, 9: 2.35, 17: 2.45, 32: 2.6,
    512: 9.0,
}  # fmt: skip
DEAR_BLOCK_S = 0.93


@pytest.mark.parametrize(("factor", "gain"), [(1.0, 1.25), (2.0, 1.15), (5.0, 1.1)])
@pytest.mark.parametrize("share", [0.1, DEAR_BLOCK_S])
def test_a_block_as_dear_as_a_step_drafts_where_that_pays(share, factor, gain):
    """It is drafted rather than replayed, and a slow first decode of a size ends nothing.

    The fourth answer of 256 tokens at an agreement of 0.785, against plain decoding.
    """
    seconds = []
    for seed in range(6):
        clock = Clock()
        head = TimedBlocks(clock, DEAR_BLOCK_S, at_random(0.785, seed))
        head.max_draft_tokens = 7
        policy = AdaptiveDraftPolicy({ProposerKind.HEAD: share}, 1)
        loop = loop_of(SlowFirst(clock, factor), head, policy, clock)
        for answer in range(4):
            before = clock.now
            prompt = [*loop.tokens, *range(31), 300 * answer]
            drafted = sum(step.num_draft_tokens > 0 for step in steps_of(loop, prompt, 256))
        assert drafted > 0, seed
        seconds.append(clock.now - before)
    assert 256 / np.mean(seconds) > gain


@pytest.mark.parametrize("is_paired", [False, True])
def test_a_replay_judges_one_block_as_far_as_it_would_have_been_accepted(is_paired):
    target = TableModel()
    head = TableBlocks(target, max_draft_tokens=5, is_paired=is_paired)
    loop = loop_of(target, head, FixedDraftPolicy(0))
    steps = list(steps_of(loop, params=UNFILTERED, max_tokens=30, seed=4))
    proposer, tokens = loop.proposers[0], loop.tokens
    assert proposer.state(tokens).num_unjudged == 5
    probs = [step.distributions[0].prob(step.tokens[0]) for step in steps]
    chain = SamplerChain(UNFILTERED, num_prompt_tokens=len(PROMPT))
    found = proposer.replay(tokens, probs, chain)
    head.read_from(0)
    head.decode_block(tokens[:-5], 5)
    expected = []
    for place, token in enumerate(tokens[-5:]):
        row = np.exp(head.row(tokens[-5 : len(tokens) - 5 + place]).astype(float))
        row /= row.sum()
        expected.append((row.max(), min(1.0, row[token] / probs[place - 5])))
        if expected[-1][1] < 0.5:
            break
    np.testing.assert_allclose(found.chances, expected, rtol=1e-5)
    assert proposer.state(tokens).num_unjudged == 0
    assert proposer.replay(tokens, probs, chain).chances == []


def test_the_speedup_of_a_block():
    steps = (0.0, *(1.0 + 0.05 * n for n in range(17)))
    block, one_by_one = Curve(steps, 0.4, is_block=True), Curve(steps, 0.4)
    assert expected_speedup(block, 0.8, 0) == expected_speedup(one_by_one, 0.8, 0) == 1.0
    assert expected_speedup(block, 0.8, 1) == expected_speedup(one_by_one, 0.8, 1)
    assert best_draft_tokens(block, 0.8, 16) > 4 > best_draft_tokens(one_by_one, 0.8, 16)


def test_the_state_says_that_it_is_a_block():
    target = TableModel()
    loop = loop_of(target, TableBlocks(target), FixedDraftPolicy(2))
    list(steps_of(loop, max_tokens=9))
    state = loop.proposers[0].state(loop.tokens)
    assert state.is_block
    assert state.num_missing == 1
    context = PolicyContext(target.num_cached, 4, 9, (state,))
    assert FixedDraftPolicy(2).choose(context).extent.limit == 2
