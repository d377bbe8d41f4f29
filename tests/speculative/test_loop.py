"""The loop on table models that raise on any misuse of positions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import num_examples
from localspec.errors import DecodeError
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.metrics import Provenance
from localspec.speculative.model_api import result_of
from localspec.speculative.policy_api import DraftOff, FixedDraftPolicy, UpTo
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import StepStart, make_rule
from reference import greedy_text
from toy import (
    GREEDY,
    UNFILTERED,
    TableModel,
    all_shared,
    loop_of,
    never,
    request,
    steps_of,
    tokens_of,
)

PROMPT = [1, 2, 3]


def speculate(target, draft, k, *, is_end=never, reason=None):
    drafts = [] if draft is None else [DraftModel(draft, all_shared(target, draft), is_end)]
    return loop_of(target, drafts, FixedDraftPolicy(k), reason=reason)


def check(target, draft, k, asked, prompt=PROMPT):
    """Run the loop; after every step both caches must hold a prefix of what was emitted."""
    loop = speculate(target, draft, k, is_end=asked.is_end)
    loop.start(prompt)
    steps, text = [], []
    for step in loop.steps(asked):
        text += step.tokens
        steps.append(step)
        assert loop.tokens == [*prompt, *text]
        for model in (target, draft):
            if model is not None:
                assert model.cached == loop.tokens[: model.num_cached]
        assert len(loop.tokens) - target.num_cached == 1 or asked.is_end(text[-1])
        assert len(step.tokens) == len(step.provenance)
        assert step.provenance.count(Provenance.ACCEPTED) == step.num_accepted
    return text, steps


@settings(max_examples=num_examples(150))
@given(
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    k=st.integers(0, 16),
    draft_is=st.sampled_from(["another", "the same", "alike", "none"]),
    max_tokens=st.integers(1, 30),
    end=st.sampled_from([None, 0, 5]),
    prompt=st.lists(st.integers(0, 7), min_size=1, max_size=12),
)
def test_greedy_text_is_the_targets_own(seeds, k, draft_is, max_tokens, end, prompt):
    """For every K and any draft, with end tokens inside drafts and the limit inside a step."""
    target = TableModel(seed=seeds[0])
    draft = {
        "another": TableModel(seed=seeds[1]),
        "the same": TableModel(seed=seeds[0]),
        "alike": TableModel(seed=seeds[0], order=2),
        "none": None,
    }[draft_is]
    asked = request(max_tokens=max_tokens, is_end=lambda token: token == end)
    text, _ = check(target, draft, k, asked, prompt)
    assert text == greedy_text(TableModel(seed=seeds[0]), prompt, max_tokens, asked.is_end)


def test_an_identical_draft_is_kept_whole():
    """One prompt step, then K + 1 tokens a step: K accepted and a bonus."""
    text, steps = check(TableModel(), TableModel(), 4, request(max_tokens=16))
    assert [len(step.tokens) for step in steps] == [1, 5, 5, 5]
    assert steps[0].provenance == [Provenance.PLAIN]
    assert steps[1].provenance == [Provenance.ACCEPTED] * 4 + [Provenance.BONUS]
    assert len(text) == 16


def test_a_refused_draft_costs_one_token_a_step():
    """An adversarial draft, never right, leaves one recovered token each."""

    class Contrary(TableModel):
        def row(self, history):
            return -super().row(history)

    _, steps = check(TableModel(), Contrary(), 3, request(max_tokens=5))
    assert [step.provenance for step in steps[1:4]] == [[Provenance.RECOVERED]] * 3
    assert [step.num_draft_tokens for step in steps] == [0, 3, 2, 1, 0]


class Padding(FixedDraftPolicy):
    """Pads every batch as far as it may."""

    def padded(self, num_tokens, limit):
        return limit


@pytest.mark.parametrize(("context_length", "sizes"), [(64, [3, 17, 17]), (12, [3, 9, 5])])
def test_padding_may_go_beyond_the_answer_but_not_beyond_the_context(context_length, sizes):
    """The last step of an answer may be one of an expensive size, too."""
    target, draft = TableModel(context_length=context_length), TableModel()
    loop = loop_of(target, [DraftModel(draft, all_shared(target, draft), never)], Padding(3))
    text = tokens_of(steps_of(loop, PROMPT, max_tokens=9))
    assert text == greedy_text(TableModel(), PROMPT, 9, never)
    assert [len(tokens) for tokens in target.decoded] == sizes


def test_a_draft_token_is_never_decoded_twice_in_the_draft():
    """The draft decodes each position of the final text at most once, and drafts once each."""
    target, draft = TableModel(seed=3), TableModel(seed=3, order=2)
    text, steps = check(target, draft, 4, request(max_tokens=40))
    proposed = sum(step.num_draft_tokens for step in steps)
    refused = proposed - sum(step.num_accepted for step in steps)
    # Every accepted token and every one of the target's own is decoded once; of a step's
    # refused tokens all but the last drafted one were decoded in order to draft the next.
    decoded = sum(map(len, draft.decoded))
    assert decoded <= len(PROMPT) + len(text) + refused
    assert max(map(len, draft.decoded[1:])) <= 2


def test_the_draft_prefills_once_and_only_when_it_proposes():
    """The first step draws from the prompt's row; the draft reads the prompt at the second."""
    target, draft = TableModel(), TableModel()
    loop = speculate(target, draft, 2)
    steps = steps_of(loop, PROMPT)
    next(steps)
    assert draft.decoded == []
    next(steps)
    assert draft.decoded[0] == loop.tokens[:4]


@settings(max_examples=num_examples(100))
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 16),
    draft_is=st.sampled_from([8, 9, "the same", "alike"]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 3]),
    end=st.sampled_from([None, 0]),
)
def test_coupled_text_is_that_of_plain_decoding(seed, k, draft_is, temperature, top_k, end):
    """With the same seed, whatever K is and whatever the draft."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=1, min_p=0)
    draft = {"the same": TableModel(seed=1), "alike": TableModel(seed=1, order=2)}.get(
        draft_is, TableModel(seed=draft_is)
    )
    texts = [
        check(
            TableModel(seed=1),
            small,
            num_draft_tokens,
            request(params, seed=seed, rule="coupled", is_end=lambda token: token == end),
        )[0]
        for small, num_draft_tokens in ((None, 0), (draft, k))
    ]
    assert texts[0] == texts[1]


def test_a_common_prefix_is_kept_and_the_rest_decoded():
    """A second prompt that goes on from the first costs its new tokens alone."""
    target = TableModel()
    loop = speculate(target, None, 0)
    assert loop.start(PROMPT) == 0
    list(loop.steps(request(max_tokens=4)))
    said = list(loop.tokens)
    target.decoded.clear()
    assert loop.start([*said, 5, 6]) == len(said) - 1
    next(loop.steps(request()))
    assert target.decoded[0] == [said[-1], 5, 6]


def test_another_text_is_decoded_from_where_it_differs():
    """Nothing of the old one's cache is believed after that."""
    target, draft = TableModel(seed=1), TableModel(seed=1, order=2)
    loop = speculate(target, draft, 3)
    list(steps_of(loop, [1, 2, 3, 4, 5], max_tokens=6))
    other = [1, 2, 6, 4, 5, *[7] * 8]
    assert loop.start(other) == 2
    text = tokens_of(loop.steps(request(max_tokens=8)))
    assert text == greedy_text(TableModel(seed=1), other, 8, never)
    assert draft.cached == loop.tokens[: draft.num_cached]


def test_renamed_tokens_are_never_proposed():
    """Although this draft is the target itself and would often be right with them."""
    draft = TableModel(seed=1)
    proposer = DraftModel(draft, all_shared(draft, draft, different=[2, 3]), never)
    chain = SamplerChain(UNFILTERED, num_prompt_tokens=3)
    proposed = set()
    for seed in range(40):
        proposer.truncate(0)
        rule = make_rule("token", Randomness(seed))
        proposer.state(PROMPT)
        proposal = result_of(
            proposer.propose(PROMPT, UpTo(5), chain, rule.draw(StepStart(1, 1)))
        )
        proposed |= set(proposal.draft_tokens)
    assert proposed == {0, 1, 4, 5, 6, 7}


def test_closing_early_leaves_both_caches_a_prefix():
    """At every possible step, and the next answer is as if nothing had happened."""
    expected = greedy_text(TableModel(seed=1), PROMPT, 10, never)
    for num_steps in range(6):
        target, draft = TableModel(seed=1), TableModel(seed=1, order=2)
        loop = speculate(target, draft, 3)
        steps = steps_of(loop, PROMPT)
        for _ in range(num_steps):
            next(steps)
        steps.close()
        for model in (target, draft):
            assert model.cached == loop.tokens[: model.num_cached]
        assert tokens_of(steps_of(loop, PROMPT, max_tokens=10)) == expected


@pytest.mark.parametrize("who", ["target", "draft"])
@pytest.mark.parametrize("fail_at", range(8))
def test_a_failing_decode_leaves_both_caches_a_prefix(who, fail_at):
    """The error passes through; the text so far is intact and can go on."""
    target, draft = TableModel(seed=1), TableModel(seed=1, order=2)
    {"target": target, "draft": draft}[who].fail_at = fail_at
    loop = speculate(target, draft, 3)
    with pytest.raises(DecodeError, match="asked for"):
        list(steps_of(loop, PROMPT, max_tokens=30))
    for model in (target, draft):
        assert model.cached == loop.tokens[: model.num_cached]
    so_far = len(loop.tokens) - len(PROMPT)
    text = tokens_of(loop.steps(request(max_tokens=30 - so_far)))
    expected = greedy_text(TableModel(seed=1), PROMPT, 30, never)
    assert [*loop.tokens[3 : 3 + so_far], *text] == expected


def test_beyond_the_drafts_context_decoding_is_plain_with_a_reason():
    """The text goes on past what the draft can hold, and is still the target's."""
    target, draft = TableModel(seed=1), TableModel(seed=1, context_length=10)
    text, steps = check(target, draft, 3, request(max_tokens=30))
    assert text == greedy_text(TableModel(seed=1), PROMPT, 30, never)
    assert steps[-2].draft_off is DraftOff.DRAFT_CONTEXT_FULL
    assert draft.num_cached <= 10
    assert sum(step.num_draft_tokens for step in steps[:3]) > 0


def test_text_may_fill_the_context_to_its_last_token():
    target, draft = TableModel(context_length=12), TableModel(context_length=12)
    text, _ = check(target, draft, 8, request(max_tokens=9))
    assert len(text) == 9


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_draft_comes_back_when_the_text_holds_no_token_that_it_lacks(kept):
    """And it notices one that takes the place of a token it knew."""
    draft = TableModel(5)
    proposer = DraftModel(draft, all_shared(TableModel(8), draft), never)
    for token, knows in ((4, True), (6, False), (4, True)):
        proposer.truncate(kept)
        state = proposer.state([*PROMPT[:kept], token, 1, 2])
        assert (state.draft_off is None) == knows
        state = proposer.state([*PROMPT[:kept], token, 1, 2, 3])
        assert (state.draft_off is None) == knows


def test_a_target_that_cannot_be_cut_back_starts_over():
    """It is emptied where others would be cut, and the text is right all the same."""
    target = TableModel(max_rollback=0)
    loop = speculate(target, None, 0)
    list(steps_of(loop, PROMPT, max_tokens=4))
    assert loop.start([1, 2, 7]) == 0
    text = tokens_of(loop.steps(request(max_tokens=4)))
    assert text == greedy_text(TableModel(), [1, 2, 7], 4, never)


def test_no_more_rows_are_asked_for_than_the_target_gives():
    """K is bounded by the outputs that the target was opened for."""
    _, steps = check(TableModel(max_outputs=3), TableModel(), 8, request())
    assert max(step.num_draft_tokens for step in steps) == 2


class Seeing(TableModel):
    """It reads the cells of pictures, numbers below 0, as any tokens."""

    def decode(self, tokens, num_logits):
        return super().decode([token % self.vocab_size for token in tokens], num_logits)


class Learning(FixedDraftPolicy):
    """Keeps what it is told of steps."""

    records = None

    def learn(self, record):
        self.records.append(record)


@pytest.mark.parametrize(("prompt", "sizes", "read"), [
    ([1, 2, 3, 4], [4, 3, 3], 5), ([1, -7, -8, 4], [3, 3], 3),
])  # fmt: skip
def test_policies_learn_nothing_from_a_step_that_reads_a_picture(prompt, sizes, read):
    """Nor is the draft, which passes over it, taken to have read its cells."""
    target, draft, policy = Seeing(), Seeing(), Learning(2)
    Learning.records = []
    proposers = [DraftModel(draft, all_shared(target, draft), never)]
    loop = loop_of(target, proposers, policy)
    list(itertools.islice(steps_of(loop, prompt, max_tokens=9), 3))
    assert [each.num_target_tokens for each in policy.records] == sizes
    assert policy.records[-2].num_read == read


@pytest.mark.parametrize(
    "penalty", ["repetition_penalty", "frequency_penalty", "dry_multiplier"]
)
def test_the_draft_looks_back_on_its_own_draft_tokens(penalty):
    """So a draft that is the target is always right, whatever the text so far takes away."""
    params = replace(GREEDY, **{penalty: 3.0}, dry_allowed_length=1)
    target, draft = (TableModel(seed=4, order=1) for _ in range(2))
    loop = speculate(target, draft, 4)
    steps = list(steps_of(loop, PROMPT, params, max_tokens=40))
    assert all(step.num_accepted == step.num_draft_tokens for step in steps)
    plain = speculate(TableModel(seed=4, order=1), None, 0)
    assert loop.tokens[3:] != tokens_of(steps_of(plain, PROMPT, max_tokens=40))
