"""Looking back at what a proposer would have proposed: exact chances, and no other traces."""

from __future__ import annotations

import pytest

from localspec.sampling.chain import SamplerChain
from localspec.speculative.lookup import Lookup
from localspec.speculative.loop import Request
from localspec.speculative.model_api import result_of
from localspec.speculative.policy_api import (
    Decision,
    FixedDraftPolicy,
    PolicyContext,
    Replay,
)
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import StepStart, make_rule
from toy import GREEDY, UNFILTERED, TableModel, all_shared, loop_of, never

PROMPT = [1, 2, 3]
TEXT = [*PROMPT, 4, 0, 6, 2, 7, 5]


def draft_model(draft: TableModel) -> DraftModel:
    return DraftModel(draft, all_shared(draft, draft), never)


@pytest.mark.parametrize("params", [UNFILTERED, GREEDY], ids=["sampled", "greedy"])
@pytest.mark.parametrize("max_outputs", [2, 17])
def test_chances_are_those_of_an_acceptance(params, max_outputs):
    """min(1, q / p) of each token, p the target's, q of a draft that has read all before it."""
    draft = TableModel(seed=3, max_outputs=max_outputs)
    chain = SamplerChain(params, num_prompt_tokens=len(PROMPT))
    probs = [0.9, 0.5, 0.1, 0.02, 1.0, 0.3]
    replay_scores = result_of(draft_model(draft).replay(TEXT, probs, chain))
    assert replay_scores.num_read == len(TEXT) - 1
    assert draft.cached == TEXT[:-1]
    num_judged = min(max_outputs, len(probs))
    for (_, chance), position in zip(
        replay_scores.chances, range(len(TEXT) - num_judged, len(TEXT)), strict=True
    ):
        distribution = chain.distribution(draft.row(TEXT[:position]), TEXT[:position])
        prob = probs[position - len(PROMPT)]
        assert chance == pytest.approx(min(1.0, distribution.prob(TEXT[position]) / prob))


def test_over_the_targets_distribution_they_add_up_to_the_acceptance():
    """The sum of min(p, q) over the vocabulary: Leviathan et al., theorem 3.5."""
    draft, target = TableModel(seed=3), TableModel(seed=4)
    chain = SamplerChain(UNFILTERED, num_prompt_tokens=len(PROMPT))
    p = chain.distribution(target.row(PROMPT), PROMPT)
    q = chain.distribution(draft.row(PROMPT), PROMPT)
    expected = 0.0
    for token in range(8):
        proposer = draft_model(TableModel(seed=3))
        replay_scores = result_of(proposer.replay([*PROMPT, token], [p.prob(token)], chain))
        expected += p.prob(token) * replay_scores.chances[0][1]
    overlap = sum(min(p.prob(token), q.prob(token)) for token in range(8))
    assert expected == pytest.approx(overlap)


def test_what_is_proposed_behind_it_is_the_same():
    rule = make_rule("token", Randomness(7))
    proposals = []
    for looks in (False, True):
        proposer = draft_model(TableModel(seed=3))
        chain = SamplerChain(UNFILTERED, num_prompt_tokens=len(PROMPT))
        if looks:
            result_of(proposer.replay(TEXT, [0.5] * 6, chain))
        state = proposer.state(TEXT)
        assert state.num_unjudged == (0 if looks else len(TEXT) - 1)
        extent = FixedDraftPolicy(5).choose(PolicyContext(0, 16, 20, (state,))).extent
        proposal = result_of(proposer.propose(TEXT, extent, chain, rule.draw(StepStart(1, 1))))
        proposals.append((proposal.draft_tokens, proposal.confidences))
    assert proposals[0] == proposals[1]


def test_a_lookup_judges_each_token_once():
    text = [5, 1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3]
    chain = SamplerChain(GREEDY, num_prompt_tokens=5)
    lookup = Lookup(never)
    lookup.state(text)
    replay_scores = result_of(lookup.replay(text, [1.0] * 7, chain))
    # After 1 2 came a 3 each time, after 1 2 3 first a 9 and then an 8.
    assert [chance for _, chance in replay_scores.chances] == [1.0, 0.0, 1.0]
    assert lookup.state(text).num_unjudged == 0
    assert result_of(lookup.replay(text, [1.0] * 7, chain)).chances == []
    fresh = Lookup(never)
    assert fresh.state(text)[:3] == lookup.state(text)[:3]


class LooksBack(FixedDraftPolicy):
    """Looks back when there are a few tokens to see; does not draft in the beginning."""

    def choose(self, context: PolicyContext) -> Decision | Replay:
        for index, state in enumerate(context.states):
            if state.num_unjudged > 3 and state.max_tokens > 0:
                return Replay(index)
        return super().choose(context) if context.num_cached > 20 else Decision(None)

    def replay(self, proposer, replay_scores, seconds):
        looks.append((proposer, len(replay_scores.chances)))
        assert seconds == 1.0


looks: list[tuple[int, int]] = []


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_the_text_stays_what_it_was(rule):
    """Whatever is replayed, and both caches hold a prefix of the text."""
    params = GREEDY if rule == "greedy" else UNFILTERED
    texts = []
    for length in (FixedDraftPolicy(0), LooksBack(3)):
        target, draft = TableModel(seed=1), TableModel(seed=1, order=2)
        proposers = [draft_model(draft), Lookup(never)]
        loop = loop_of(target, proposers, length)
        made = make_rule(rule, Randomness(5))
        chain = SamplerChain(params, num_prompt_tokens=len(PROMPT))
        loop.start(PROMPT)
        for _ in loop.steps(Request(chain, made, 40, never)):
            for model in (target, draft):
                assert model.cached == loop.tokens[: model.num_cached]
        texts.append(loop.tokens)
    assert texts[0] == texts[1]
    assert {proposer for proposer, _ in looks} == {0, 1}
    assert max(num for _, num in looks) > 1
