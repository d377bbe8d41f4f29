"""Heads as proposers, with tables for models: every text the target's, every read allowed."""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest

from localspec.errors import DecodeError
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.speculative.heads import Blocks, Head
from localspec.speculative.lookup import Lookup
from localspec.speculative.model_api import result_of
from localspec.speculative.policy_api import (
    DraftOff,
    FixedDraftPolicy,
    ProposerKind,
)
from localspec.speculative.proposers import DraftModel
from reference import greedy_text
from simulated import FLAT, H100_LARGE, Clock, TimedTarget, at_random, successor
from toy import (
    GREEDY,
    UNFILTERED,
    TableBlocks,
    TableHead,
    TableModel,
    all_shared,
    loop_of,
    never,
    steps_of,
    tokens_of,
)

PROMPT = [3, 1, 4, 1, 5]
# Alike on the last token alone, so that some of a draft is accepted and some is not.
ALIKE = {"seed": 7, "order": 1}
KINDS = {
    "steps": functools.partial(TableHead, **ALIKE),
    "blocks": TableBlocks,
    "pairs": functools.partial(TableBlocks, is_paired=True),
}


def heads_loop(target, *heads, policy=None, others=(), clock=None):
    proposers = [
        *((Head if isinstance(head, TableHead) else Blocks)(head, never) for head in heads),
        *others,
    ]
    if policy is None:
        policy = AdaptiveDraftPolicy({p.kind: 0.01 for p in proposers}, 1)
    return loop_of(target, proposers, policy, clock=clock)


def answer(loop, prompt=PROMPT, params=GREEDY, *, max_tokens=40, **keywords):
    return steps_of(loop, prompt, params, max_tokens=max_tokens, **keywords)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_kept", [1, 2, 7, 64])
@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 5, 8, 16])
def test_greedy_text_is_the_targets(kind, num_kept, most, num_draft_tokens):
    target = TableModel(**(ALIKE if kind == "steps" else {}))
    head = KINDS[kind](target, num_kept=num_kept, max_draft_tokens=most)
    steps = list(answer(heads_loop(target, head, policy=FixedDraftPolicy(num_draft_tokens))))
    assert tokens_of(steps) == greedy_text(target, PROMPT, 40, never)
    assert sum(step.num_accepted for step in steps) > 0
    assert max(len(step.confidences) for step in steps) == min(num_draft_tokens, most)
    if kind != "steps":  # one decode for each draft
        assert head.num_blocks == sum(len(step.confidences) > 0 for step in steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 16])
def test_seeded_text_does_not_depend_on_the_head(kind, num_draft_tokens):
    texts = []
    for count in (0, num_draft_tokens):
        target = TableModel(seed=3)
        loop = heads_loop(target, KINDS[kind](target), policy=FixedDraftPolicy(count))
        texts.append(tokens_of(answer(loop, params=UNFILTERED, seed=11, rule="coupled")))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", KINDS)
def test_text_stays_the_targets_after_cuts_cancels_failures_and_new_prompts(kind):
    """In every order: the head reads nothing that the target lacks (the tables raise)."""
    target = TableModel(**ALIKE)
    head = KINDS[kind](target, num_kept=6)
    loop = heads_loop(target, head, policy=FixedDraftPolicy(4))
    for number in range(24):
        prompt = [*PROMPT, *range(number % 7)]
        steps = answer(loop, prompt)
        for _ in range(number % 5):
            next(steps)
        if number % 4 == 1:
            steps.close()
        elif number % 4 == 2:
            failing = head if kind == "steps" and number % 8 == 6 else target
            failing.fail_at = len(failing.decoded) + number % 3
            with pytest.raises(DecodeError, match="asked for"):
                list(steps)
        elif number % 4 == 3:
            list(steps)
            loop.truncate(len(prompt) - 2)
        else:
            text = tokens_of(answer(loop, prompt))
            assert text == greedy_text(target, prompt, 40, never)


def test_a_head_begins_where_rows_are_kept_and_sees_nothing_before():
    target = TableModel(context_length=200)
    head = TableHead(target, num_kept=8, context_length=200)
    loop = heads_loop(target, head, policy=FixedDraftPolicy(2))
    steps = answer(loop, [1, 2, 3, 4] * 20)
    next(steps)
    next(steps)
    # 80 tokens of the prompt, of whose last one the row came first.
    assert loop.proposers[0].begins_at == 80 - 8 + 1
    assert sum(len(tokens) for tokens in head.decoded) < 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_says_nothing_while_the_target_lacks_the_text_or_there_is_no_room(kind):
    target = TableModel(context_length=48)
    room = {"context_length": 47} if kind == "steps" else {}
    loop = heads_loop(target, KINDS[kind](target, **room), policy=FixedDraftPolicy(2))
    list(answer(loop, max_tokens=20))
    proposer = loop.proposers[0]
    full = [*loop.tokens, *[1] * (48 - len(loop.tokens))]
    target.truncate(3)  # as a recurrent one that came back to a checkpoint
    assert proposer.state(loop.tokens).draft_off is DraftOff.HEAD_LACKS_ROWS
    target.truncate(0)
    target.decode(full[:-1], 0)
    assert proposer.state(full).draft_off is DraftOff.DRAFT_CONTEXT_FULL


def test_its_own_confidences_decide_how_long_a_draft_becomes():
    class Extent:
        limit = 8

        def num_worth(self, num_drafted, confidence):
            return self.limit - num_drafted if confidence >= 0.5 else 0

    class Halved(FixedDraftPolicy):
        """Goes on while the head is at least half sure."""

        def choose(self, context):
            chosen = super().choose(context)
            return chosen._replace(extent=Extent()) if chosen.extent else chosen

    target = TableModel()
    loop = heads_loop(target, TableBlocks(target, says=True), policy=Halved(8))
    drafted = [list(step.confidences) for step in answer(loop, max_tokens=20)]
    assert max(map(len, drafted)) == 2
    assert [1.0, 0.5] in drafted


@pytest.mark.parametrize("is_paired", [False, True])
def test_a_replay_judges_one_block_as_far_as_it_would_have_been_accepted(is_paired):
    target = TableModel()
    head = TableBlocks(target, max_draft_tokens=5, is_paired=is_paired)
    loop = heads_loop(target, head, policy=FixedDraftPolicy(0))
    steps = list(answer(loop, params=UNFILTERED, max_tokens=30, seed=4))
    proposer, tokens = loop.proposers[0], loop.tokens
    state = proposer.state(tokens)
    assert (state.num_unjudged, state.num_missing, state.is_block) == (5, len(tokens), True)
    probs = [step.distributions[0].prob(step.tokens[0]) for step in steps]
    chain = SamplerChain(UNFILTERED, num_prompt_tokens=len(PROMPT))
    found = result_of(proposer.replay(tokens, probs, chain))
    head.read_from(0)
    head.decode_block(tokens[:-5], 5)
    expected = []
    for index, token in enumerate(tokens[-5:]):
        row = np.exp(head.row(tokens[-5 : len(tokens) - 5 + index]).astype(float))
        row /= row.sum()
        expected.append((row.max(), min(1.0, row[token] / probs[index - 5])))
        if expected[-1][1] < 0.5:
            break
    np.testing.assert_allclose(found.chances, expected, rtol=1e-5)
    assert proposer.state(tokens).num_unjudged == 0
    assert result_of(proposer.replay(tokens, probs, chain)).chances == []


# --- the automatic policy, on clocks of their own ---


class CallClock:
    """Seconds that only decodes take: of each model its share for a call."""

    def __init__(self, *models, shares=(1.0, 0.05)):
        self._models, self._shares = models, shares

    def __call__(self):
        pairs = zip(self._models, self._shares, strict=True)
        return sum(len(model.decoded) * share for model, share in pairs)


def test_the_automatic_policy_uses_a_head_that_pays_and_leaves_one_that_does_not():
    for seed, pays in ((7, True), (8, False)):
        target = TableModel(seed=7, order=1, context_length=400)
        head = TableHead(target, seed=seed, order=1, context_length=400)
        steps = list(
            answer(heads_loop(target, head, clock=CallClock(target, head)), max_tokens=300)
        )
        drafted = sum(len(step.confidences) for step in steps)
        assert (drafted > 200) is pays
        assert tokens_of(steps) == greedy_text(target, PROMPT, 300, never)


def test_a_draft_a_head_and_lookup_are_held_against_each_other():
    """The one that is right as often, and cheaper, drafts most."""
    target = TableModel(**ALIKE, context_length=400)
    head = TableHead(target, **ALIKE, context_length=400)
    draft = TableModel(**ALIKE, context_length=400)
    others = [DraftModel(draft, all_shared(target, draft), never), Lookup(never)]
    clock = CallClock(target, head, draft, shares=(1.0, 0.02, 0.3))
    steps = list(answer(heads_loop(target, head, others=others, clock=clock), max_tokens=300))
    by_kind = {
        kind: sum(len(s.confidences) for s in steps if s.kind is kind) for kind in ProposerKind
    }
    assert by_kind[ProposerKind.HEAD] > 4 * by_kind[ProposerKind.DRAFT]
    assert tokens_of(steps) == greedy_text(target, PROMPT, 300, never)


class TimedBlocks:
    """Reads nothing; a block takes a chosen time, whatever its size."""

    context_length, max_draft_tokens, begins_at, is_block = 1 << 20, 16, 0, True

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

    def confidence(self, _index):
        return None


@pytest.mark.parametrize("agreement", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("block_s", [0.1, 1.0])
def test_the_policy_knows_that_a_block_costs_the_same_whatever_its_length(block_s, agreement):
    policy = AdaptiveDraftPolicy({ProposerKind.HEAD: 0.3}, 1)
    clock = Clock()
    head = TimedBlocks(clock, block_s, at_random(agreement))
    loop = heads_loop(TimedTarget(clock, 1.0, FLAT), head, policy=policy, clock=clock)
    assert len(tokens_of(answer(loop, [5], max_tokens=2000))) == 2000
    if len(head.sizes) >= 3:
        assert policy.estimate().draft_token_s == pytest.approx(block_s, rel=0.01)
    # Never much worse than without, and long where it is right.
    assert clock.now < 1.03 * 2000
    if agreement == 0.9:
        assert clock.now < 0.6 * 2000
        assert np.mean(head.sizes) > 8


def slow_at_first(factor):
    """The first decode of each size takes longer: kernels are loaded in it."""
    times = collections.Counter()

    def slowdown(_num_cached, size):
        times[size] += 1
        return factor if times[size] == 1 else 1.0

    return slowdown


@pytest.mark.parametrize(("factor", "gain"), [(1.0, 1.25), (5.0, 1.1)])
def test_a_block_as_dear_as_a_step_drafts_where_that_pays(factor, gain):
    """It is drafted rather than replayed, and a slow first decode of a size ends nothing.

    The fourth answer of 256 tokens at an agreement of 0.785, against plain decoding.
    """
    seconds = []
    for seed in range(6):
        clock = Clock()
        head = TimedBlocks(clock, 0.93, at_random(0.785, seed))
        head.max_draft_tokens = 7
        policy = AdaptiveDraftPolicy({ProposerKind.HEAD: 0.1}, 1)
        target = TimedTarget(clock, 1.0, H100_LARGE)
        target.slowdown = slow_at_first(factor)
        loop = heads_loop(target, head, policy=policy, clock=clock)
        for turn in range(4):
            before = clock.now
            prompt = [*loop.tokens, *range(31), 300 * turn]
            drafted = sum(
                step.num_draft_tokens > 0 for step in answer(loop, prompt, max_tokens=256)
            )
        assert drafted > 0, seed
        seconds.append(clock.now - before)
    assert 256 / np.mean(seconds) > gain
