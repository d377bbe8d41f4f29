"""The automatic policy on machines whose costs and texts are known: see `simulated`."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from localspec.policy.acceptance import Acceptance
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.cost import Costs
from localspec.speculative.policy_api import (
    FixedDraftPolicy,
    MatchSource,
    PolicyContext,
    ProposerKind,
    ProposerState,
    ReplayScores,
    StepRecord,
)
from policy_scenarios import ON_H100, SMALL_ON_H100, STAIRS
from simulated import FLAT, Q4_0, Q4_K, Clock, FreeProposer, Text, answer, at_random, run


def policy(learned=None) -> AdaptiveDraftPolicy:
    made = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1)
    if learned is not None:
        made.restore(json.loads(json.dumps(learned.as_dict())))
    return made


@pytest.mark.parametrize(
    ("ratios", "draft_share"),
    [(Q4_0, 0.12), (Q4_K, 0.12), (Q4_0, 0.36), (FLAT, 0.08)],
    ids=["staircase", "steep", "an expensive draft", "flat"],
)
@pytest.mark.parametrize(
    ("agreement", "more"),
    [
        *((0.0, {"num_prompt_tokens": number}) for number in (32, 2048)),
        *((agreement, {"seed": seed}) for agreement in (0.3, 0.5, 0.65) for seed in (0, 1)),
    ],
    ids=str,
)
def test_a_draft_of_little_use_costs_next_to_nothing(ratios, draft_share, agreement, more):
    """In total time, prompt included, whether or not it was known before.

    Near the break-even, too, where luck looks like profit.
    """
    setting = {"draft_share": draft_share, **more}
    agrees = at_random(agreement, setting.pop("seed", 0))
    for num_tokens, at_least in (
        {1024: 0.97} if agreement else {256: 0.97, 1024: 0.99}
    ).items():
        setting["num_tokens"] = num_tokens
        target_only_s = run(FixedDraftPolicy(0), agrees, ratios, **setting)
        fresh = policy()
        assert target_only_s / run(fresh, agrees, ratios, **setting) >= at_least
        assert target_only_s / run(policy(fresh), agrees, ratios, **setting) >= at_least


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("ratios", [Q4_0, Q4_K, FLAT], ids=["staircase", "steep", "flat"])
def test_two_useless_proposers_cost_no_more_than_one(ratios, share):
    """share: of the tokens behind which a lookup, which is never right, has something."""
    for num_tokens, at_least in ((256, 0.97), (1024, 0.99)):
        made = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1, ProposerKind.LOOKUP: 0.0}, 1)
        target_only_s = run(FixedDraftPolicy(0), at_random(0), ratios, num_tokens=num_tokens)
        others = [FreeProposer(at_random(share, seed=2), at_random(0))]
        took_s = run(made, at_random(0), ratios, others=others, num_tokens=num_tokens)
        assert target_only_s / took_s >= at_least


def test_it_drafts_at_once_with_what_was_learned_before():
    learned = policy()
    run(learned, at_random(0.9), Q4_0)
    again = policy(learned)
    assert run(again, at_random(0.9), Q4_0, num_tokens=64) < 0.68 * run(
        FixedDraftPolicy(0), at_random(0.9), Q4_0, num_tokens=64
    )


def test_what_does_not_pay_is_looked_at_now_and_then():
    """A short prompt is read once, and a draft that never pays is paused."""

    class Watched(AdaptiveDraftPolicy):
        num_read = num_looks = 0

        def replay(self, proposer, replay_scores, seconds):
            self.num_looks += 1
            self.num_read += replay_scores.num_read
            super().replay(proposer, replay_scores, seconds)

        def learn(self, record):
            self.num_read += record.num_read
            super().learn(record)

    read, rested = (Watched({ProposerKind.DRAFT: 0.1}, 1) for _ in range(2))
    run(read, at_random(1.0), Q4_0, num_tokens=8, num_prompt_tokens=40)
    assert read.num_read == 32  # the end of the prompt
    run(rested, at_random(0), Q4_K)
    assert 0 < rested.num_looks < 20


def test_it_says_what_would_pay():
    told = policy()
    run(told, at_random(0.9), Q4_0)
    estimate = told.estimate()
    assert estimate.proposer is ProposerKind.DRAFT
    assert 0.75 < estimate.acceptance < 0.97
    assert 0.2 < estimate.break_even < 0.6
    assert estimate.plain_step_s == pytest.approx(1.0)
    assert estimate.draft_token_s == pytest.approx(0.12, rel=0.3)
    assert estimate.step_ratios[1] == 1.0
    measured = [size for size in estimate.step_ratios if size > 1]
    assert measured
    assert [estimate.step_ratios[size] for size in measured] == pytest.approx(
        [Q4_0[size] for size in measured], rel=0.2
    )


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_steps_are_padded_to_a_cheaper_size_and_to_the_last_where_a_change_is_dear(change):
    """Three tokens cost more than four here; a change of size half a step, or nothing."""
    costs = Costs({})
    costs.learn_plain(1.0)
    for size in (2, 3, 4, 8):
        costs.learn_size(size, Q4_0[size])
    costs.learn_change(1.0 + change)
    _, behind_four = costs.step_costs(4)
    assert behind_four[2:5] == [4, 4, 4]
    steps, padded = costs.step_costs(1)
    assert padded[3] == 4
    assert steps[3] == pytest.approx(Q4_0[4] + change)


def test_the_usual_costs_are_those_after_the_shortest_texts_that_were_timed():
    """Who asks long questions only has no costs after short ones."""
    timed, untimed = policy(), policy()
    for _ in range(40):
        timed.learn(step(1.0, 1))
        timed.learn(step(2.0, 4))
    kept = timed.as_dict()
    (costs,) = kept["costs"].values()
    (nothing,) = untimed.as_dict()["costs"].values()
    made = policy()
    made.restore({**kept, "costs": {"1 0": nothing, "1 5": nothing, "1 3": costs}})
    assert made.costs.measured_sizes() == {}
    assert made.usual_costs().measured_sizes()[4] == pytest.approx(2.0)
    assert untimed.usual_costs().measured_sizes() == {}


@pytest.mark.parametrize("damage", [{"costs": []}, {"costs": {"1 0": {}}}])
def test_a_damaged_file_is_an_error(damage):
    kept = policy().as_dict()
    policy().restore(kept)
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        policy().restore({**kept, **damage})


def test_costs_belong_to_a_number_of_threads():
    """Those of one are not taken for those of another, unless for a moment, and are kept."""
    made = policy()
    for num_threads, plain_s in ((1, 1.0), (2, 3.0), (1, 1.0)):
        for _ in range(20):
            made.learn(replace(step(plain_s, 1), num_threads=num_threads))
            made.learn(replace(step(2 * plain_s + num_threads, 4), num_threads=num_threads))
        assert made.costs.plain_s == plain_s
    for _ in range(3):
        made.learn(replace(step(3.0, 1), num_threads=2))
    assert made.costs.plain_s == 1.0
    again = policy(made)
    assert again.costs.measured_sizes()[4] == pytest.approx(3.0)
    again.learn(replace(step(3.0, 1), num_threads=2))
    for _ in range(40):
        again.learn(replace(step(21.0, 4), num_threads=2))
    assert again.costs.measured_sizes()[4] == pytest.approx(7.0, rel=0.01)


def step(seconds: float, size: int) -> StepRecord:
    """A step of a decode of that size, drafted tokens all accepted."""
    proposer = None if size == 1 else 0
    return StepRecord(
        proposer, [0.9] * (size - 1), size - 1, size, 1, size, 10, 0.0, seconds, 0.0
    )


def test_the_first_decode_of_another_size_teaches_what_a_change_costs():
    made, last_size = policy(), 1
    for size in (1, 1, 4, 4, 4, 1, 1, 4, 1, 1, 4, 4, 1):
        has_changed, last_size = size != last_size, size
        made.learn(step((1.0 if size == 1 else 1.5) + 0.4 * has_changed, size))
    assert made.costs.plain_s == 1.0
    assert made.costs.change_cost == pytest.approx(0.4)
    assert made.costs.measured_sizes() == {4: pytest.approx(1.5)}


@pytest.mark.parametrize("machine", [STAIRS, ON_H100, SMALL_ON_H100], ids=lambda m: m.name)
def test_the_same_question_takes_the_same_steps(machine):
    """Behind the first answers, on a machine whose decodes take by 8 % more or less."""

    class Noted(AdaptiveDraftPolicy):
        def reset(self):
            super().reset()
            answers.append([])

        def learn(self, record):
            answers[-1].append(record.num_target_tokens)
            super().learn(record)

    answers: list[list[int]] = []
    random = np.random.default_rng(1)
    noisy = machine._replace(
        slowdown=lambda *_: float(np.exp(0.08 * random.standard_normal())),
        draft_slowdown=lambda *_: float(np.exp(0.08 * random.standard_normal())),
    )
    made = Noted({ProposerKind.DRAFT: 0.1, ProposerKind.LOOKUP: 0.0}, 1)
    lookup = FreeProposer(at_random(0.5, 1), at_random(0.5, 2))
    for _ in range(24):
        text = Text(at_random(0.8, 3), 200)
        answer(made, text, noisy, Clock(), [lookup])
    assert len({tuple(sizes[1:]) for sizes in answers[4:]}) == 1


def test_a_machine_that_becomes_another_is_noticed_while_tokens_are_drafted():
    """Drafting gained a lot where target-only steps were slow, and gains nothing now."""
    made = policy()
    context = PolicyContext(10, 3, 500, (ProposerState(16, 1, 0, 0),))
    for _ in range(9):
        made.learn(step(2.0, 1))
        made.learn(replace(step(2.4, 4), num_accepted=1, num_emitted=2))
    made.reset()

    def num_drafts(num_steps: int, target_only_s: float) -> int:
        count = 0
        for _ in range(num_steps):
            is_drafting = made.choose(context).proposer == 0
            count += is_drafting
            drafted = replace(step(2.4, 4), num_accepted=1, num_emitted=2)
            made.learn(drafted if is_drafting else step(target_only_s, 1))
        return count

    assert num_drafts(200, target_only_s=2.0) > 190
    num_drafts(600, target_only_s=1.0)
    assert made.costs.plain_s == 1.0
    assert num_drafts(200, target_only_s=1.0) < 20


def test_a_proposer_more_than_the_policy_knows_is_an_error_and_not_passed_over():
    """As two of one kind would be, of which it knows one."""
    with pytest.raises(ValueError, match="longer"):
        policy().choose(PolicyContext(100, 16, 100, (ProposerState(16), ProposerState(16))))


def lose(made: AdaptiveDraftPolicy, num_tokens: int = 128) -> float:
    """The time that an answer takes in which nothing pays, beyond that without drafting."""
    took_s = run(made, at_random(0), Q4_0, num_tokens=num_tokens)
    return took_s - run(FixedDraftPolicy(0), at_random(0), Q4_0, num_tokens=num_tokens)


def test_finding_out_is_paid_once_for_a_pair_and_not_by_each_answer():
    """Nor by each process: what is left of the first grant is kept."""
    made = policy()
    assert 2.0 < lose(made) < 7.0
    for _ in range(2):
        lose(made)
    again = policy(made)
    assert again.as_dict()["grant"] < policy().as_dict()["grant"]
    for _ in range(3):
        assert lose(made) < 2.5
        assert lose(again) < 2.5


@pytest.mark.parametrize("grant", [-1.0, 1e9])
def test_a_grant_that_none_was_is_not_believed(grant):
    """As of a profile that was changed by hand."""
    made = policy()
    made.restore({**made.as_dict(), "grant": grant})
    assert lose(made) < 7.0


def test_a_lookup_that_lost_waits_until_it_would_have_gained():
    """What it would have proposed is seen for nothing."""
    made = AdaptiveDraftPolicy({ProposerKind.LOOKUP: 0.0}, 1)
    made.costs.learn_plain(1.0)
    made.costs.learn_plain(1.0)
    for size in (2, 4, 8, 16):
        made.costs.learn_size(size, {2: 2.0, 4: 2.0, 8: 2.3, 16: 2.6}[size])
    state = ProposerState(16, confidence=0.6, source=MatchSource.PROMPT)
    context = PolicyContext(10, 16, 500, (state,))

    def losses() -> int:
        """Bets in a row that it makes while all of them are lost."""
        count = 0
        while made.choose(context).proposer == 0:
            count += 1
            made.learn(
                replace(step(2.6, 16), confidences=[0.6] * 15, num_accepted=0, num_emitted=1)
            )
        return count

    assert 1 <= losses() <= 4
    was_right = ReplayScores([(0.6, 1.0)] * 16, 0, [MatchSource.PROMPT] * 16)
    made.replay(0, was_right, 0.0)
    assert made.choose(context).proposer == 0


def test_matches_in_another_conversation_say_nothing_of_those_in_the_prompt():
    made = AdaptiveDraftPolicy({ProposerKind.LOOKUP: 0.0}, 1)
    (lookup,) = made.prospects

    def expected(source: MatchSource) -> float:
        lookup.prepare(ProposerState(16, confidence=0.6, source=source), 16)
        return float(lookup.acceptance.expected_accepted(lookup.acceptance.weights, 0.6)[16])

    before = {source: expected(source) for source in MatchSource}
    assert before[MatchSource.PROMPT] > before[MatchSource.OTHER]
    made.replay(0, ReplayScores([(0.6, 0.0)] * 8, 0, [MatchSource.OTHER] * 8), 0.0)
    assert expected(MatchSource.OTHER) < 0.7 * before[MatchSource.OTHER]
    assert expected(MatchSource.PROMPT) == before[MatchSource.PROMPT]
    made.replay(0, ReplayScores([(0.6, 1.0)] * 8, 0, [MatchSource.PROMPT] * 8), 0.0)
    assert expected(MatchSource.PROMPT) > 1.5 * before[MatchSource.PROMPT]
    made.reset()  # of what kind the next text is, this one does not say
    assert {source: expected(source) for source in MatchSource} == before


def test_a_token_that_a_replay_judges_ages_the_acceptance_once():
    """As a step lets it pass before, and the policy may look at the acceptance in between."""
    made = policy()
    (draft,) = made.prospects
    expected = Acceptance(ProposerKind.DRAFT)
    made.replay(0, ReplayScores([(0.9, 1.0)], 1), 0.0)
    expected.learn(0.9, 1.0)
    for _ in range(20):
        made.learn(step(1.0, 1))
        assert draft.acceptance.weights.sum() == pytest.approx(1.0)
    made.replay(0, ReplayScores([(0.9, 1.0)] * 8, 8), 0.0)
    expected.age(12)
    for _ in range(8):
        expected.age(1)
        expected.learn(0.9, 1.0)
    assert draft.acceptance.weights == pytest.approx(expected.weights)


def test_matches_of_each_source_age_by_the_length_of_the_text():
    """A token that is judged for one source passes for the others, too."""
    made = AdaptiveDraftPolicy({ProposerKind.LOOKUP: 0.0}, 1)
    (lookup,) = made.prospects
    expected = {source: Acceptance(ProposerKind.LOOKUP, source) for source in MatchSource}
    made.replay(0, ReplayScores([(0.6, 1.0)] * len(expected), 0, list(expected)), 0.0)
    for acceptance in expected.values():
        acceptance.learn(0.6, 1.0)
    text = [MatchSource.PROMPT, MatchSource.ANSWER] * 4
    for _ in text:
        made.learn(step(1.0, 1))
    made.replay(0, ReplayScores([(0.6, 1.0)] * len(text), 0, text), 0.0)
    for source in MatchSource:
        num_judged = text.count(source)
        expected[source].age(len(text) - num_judged)
        for _ in range(num_judged):
            expected[source].age(1)
            expected[source].learn(0.6, 1.0)
        lookup.prepare(ProposerState(16, source=source), 16)
        assert lookup.acceptance.weights == pytest.approx(expected[source].weights)


def test_the_first_answer_begins_with_the_acceptance_that_it_is_given():
    learned = policy()
    run(learned, at_random(0.95), Q4_0)
    given, fresh = policy(), policy()
    given.expect(learned.as_dict()["acceptance"])
    agrees = at_random(0.95, 5)
    settings = {"num_tokens": 96, "draft_share": 0.12}
    assert run(given, agrees, Q4_0, **settings) < run(fresh, agrees, Q4_0, **settings)
