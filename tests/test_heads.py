"""Heads as proposers, with tables for models: every text the target's, every read allowed."""

from __future__ import annotations

import functools
import itertools

import pytest

from localspec.errors import DecodeError
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.heads import Head
from localspec.speculative.lookup import Lookup
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import DraftOff, FixedDraftPolicy, ProposerKind
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.speculative.thread_policy import FixedThreads
from reference import greedy_text
from toy import TableHead, TableModel, all_shared

PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplingParams(temperature=0.0)
# Alike on the last token alone, so that some of a draft is accepted and some is not.
ALIKE = {"seed": 7, "order": 1}


def never(_token):
    return False


def loop_of(target, *heads, policy=None, others=()):
    proposers = [*(Head(head, never) for head in heads), *others]
    if policy is None:
        policy = AdaptiveDraftPolicy({p.kind: 0.01 for p in proposers}, 1)
    clock = functools.partial(next, itertools.count(1.0))
    return SpeculativeDecoder(target, proposers, policy, FixedThreads(1), None, clock)


def request(max_tokens=40, params=GREEDY, seed=None, rule=None):
    rule = make_rule(
        rule, is_greedy=params.is_greedy, seed=seed, randomness=Randomness(seed or 0)
    )
    return Request(SamplerChain(params, num_prompt_tokens=len(PROMPT)), rule, max_tokens, never)


def text_of(loop, prompt=PROMPT, **keywords):
    loop.start(list(prompt))
    return tokens_of(loop.steps(request(**keywords)))


def tokens_of(steps):
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("num_kept", [1, 2, 7, 64])
@pytest.mark.parametrize("max_draft_tokens", [1, 3, 64])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 5, 8, 16])
def test_greedy_text_is_the_targets(num_kept, max_draft_tokens, num_draft_tokens):
    target = TableModel(**ALIKE)
    head = TableHead(target, num_kept=num_kept, max_draft_tokens=max_draft_tokens, **ALIKE)
    loop = loop_of(target, head, policy=FixedDraftPolicy(num_draft_tokens))
    loop.start(list(PROMPT))
    steps = list(loop.steps(request()))
    assert tokens_of(steps) == greedy_text(target, PROMPT, 40, never)
    assert sum(step.num_accepted for step in steps) > 0
    drafted = [len(step.confidences) for step in steps]
    assert max(drafted) == min(num_draft_tokens, max_draft_tokens)


@pytest.mark.parametrize("rule", ["coupled"])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 16])
def test_seeded_text_does_not_depend_on_the_head(rule, num_draft_tokens):
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    texts = []
    for count in (0, num_draft_tokens):
        target = TableModel(seed=3)
        loop = loop_of(target, TableHead(target, seed=4), policy=FixedDraftPolicy(count))
        texts.append(text_of(loop, params=params, seed=11, rule=rule))
    assert texts[0] == texts[1]


def test_text_stays_the_targets_after_cuts_cancels_failures_and_new_prompts():
    """In every order: the head reads nothing that the target lacks (`TableHead` raises)."""
    target = TableModel(**ALIKE)
    head = TableHead(target, num_kept=6, **ALIKE)
    loop = loop_of(target, head, policy=FixedDraftPolicy(4))
    for number in range(24):
        prompt = [*PROMPT, *range(number % 7)]
        loop.start(prompt)
        steps = loop.steps(request())
        for _ in range(number % 5):
            next(steps)
        if number % 4 == 1:
            steps.close()
        elif number % 4 == 2:
            failing = (target, head)[number // 4 % 2]
            failing.fail_at = len(failing.decoded) + number % 3
            with pytest.raises(DecodeError, match="asked for"):
                list(steps)
        elif number % 4 == 3:
            list(steps)
            loop.truncate(len(prompt) - 2)
        else:
            text = text_of(loop, prompt)
            assert text == greedy_text(target, prompt, 40, never)


def test_a_head_begins_where_rows_are_kept_and_sees_nothing_before():
    target = TableModel(context_length=200)
    head = TableHead(target, num_kept=8, context_length=200)
    loop = loop_of(target, head, policy=FixedDraftPolicy(2))
    proposer = loop.proposers[0]
    loop.start([1, 2, 3, 4] * 20)
    steps = loop.steps(request())
    next(steps)
    next(steps)
    # 80 tokens of the prompt, of whose last one the row came first.
    assert proposer.begins_at == 80 - 8 + 1
    assert sum(len(tokens) for tokens in head.decoded) < 20


def test_a_head_says_nothing_while_the_target_lacks_the_text():
    target = TableModel()
    loop = loop_of(target, TableHead(target), policy=FixedDraftPolicy(2))
    text_of(loop)
    target.truncate(3)  # as a recurrent one that came back to a checkpoint
    state = loop.proposers[0].state(loop.tokens)
    assert state.max_tokens == 0
    assert state.draft_off is DraftOff.HEAD_LACKS_ROWS


def test_the_automatic_policy_uses_a_head_that_pays_and_leaves_one_that_does_not():
    for seed, pays in ((7, True), (8, False)):
        target = TableModel(seed=7, order=1, context_length=400)
        head = TableHead(target, seed=seed, order=1, context_length=400)
        loop = loop_of(target, head)
        loop.clock = _Clock(target, head)
        loop.start(list(PROMPT))
        steps = list(loop.steps(request(max_tokens=300)))
        drafted = sum(len(step.confidences) for step in steps)
        assert (drafted > 200) is pays
        assert tokens_of(steps) == greedy_text(target, PROMPT, 300, never)


def test_a_draft_a_head_and_lookup_are_held_against_each_other():
    """The one that is right as often, and cheaper, drafts most."""
    target = TableModel(**ALIKE, context_length=400)
    head = TableHead(target, **ALIKE, context_length=400)
    draft = TableModel(**ALIKE, context_length=400)
    others = [DraftModel(draft, all_shared(target, draft), never), Lookup(never)]
    loop = loop_of(target, head, others=others)
    loop.clock = _Clock(target, head, draft, shares=(1.0, 0.02, 0.3))
    loop.start(list(PROMPT))
    steps = list(loop.steps(request(max_tokens=300)))
    by_kind = {
        kind: sum(len(s.confidences) for s in steps if s.kind is kind) for kind in ProposerKind
    }
    assert by_kind[ProposerKind.HEAD] > 4 * by_kind[ProposerKind.DRAFT]
    assert tokens_of(steps) == greedy_text(target, PROMPT, 300, never)


class _Clock:
    """Seconds that only decodes take: of each model its share for a call."""

    def __init__(self, *models, shares=(1.0, 0.05)):
        self._models, self._shares = models, shares

    def __call__(self):
        return sum(
            share * len(model.decoded)
            for model, share in zip(self._models, self._shares, strict=True)
        )
