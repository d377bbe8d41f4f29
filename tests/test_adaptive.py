"""The automatic policy on machines whose costs and texts are known: see `simulated`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from simulated import FLAT, Q4_0, Q4_K, FreeProposer, at_random, run

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.speculative.policy_api import (
    DraftOff,
    FixedDraftPolicy,
    PolicyContext,
    ProposerKind,
    ProposerState,
    StepRecord,
)


def policy(learned=None) -> AdaptiveDraftPolicy:
    made = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1)
    if learned is not None:
        made.restore(json.loads(json.dumps(learned.as_dict())))
    return made


@pytest.mark.parametrize("num_prompt_tokens", [32, 2048])
@pytest.mark.parametrize(
    ("ratios", "draft_share"),
    [(Q4_0, 0.12), (Q4_K, 0.12), (Q4_0, 0.36), (FLAT, 0.08)],
    ids=["staircase", "steep", "an expensive draft", "flat"],
)
def test_a_useless_draft_costs_next_to_nothing(ratios, draft_share, num_prompt_tokens):
    """In total time, prompt included, whether or not it was known before."""
    for num_tokens, at_least in ((256, 0.97), (1024, 0.99)):
        setting = {
            "draft_share": draft_share,
            "num_tokens": num_tokens,
            "num_prompt_tokens": num_prompt_tokens,
        }
        target_only_s = run(FixedDraftPolicy(0), at_random(0), ratios, **setting)
        fresh = policy()
        assert target_only_s / run(fresh, at_random(0), ratios, **setting) >= at_least
        assert target_only_s / run(policy(fresh), at_random(0), ratios, **setting) >= at_least


def test_it_drafts_at_once_with_what_was_learned_before():
    learned = policy()
    run(learned, at_random(0.9), Q4_0)
    again = policy(learned)
    assert run(again, at_random(0.9), Q4_0, num_tokens=64) < 0.68 * run(
        FixedDraftPolicy(0), at_random(0.9), Q4_0, num_tokens=64
    )


def test_what_does_not_pay_is_looked_at_now_and_then():
    """A short prompt is read once, and a draft that never pays rests."""

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
    assert 40 <= read.num_read <= 48
    run(rested, at_random(0), Q4_K)
    assert 0 < rested.num_looks < 20


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("ratios", [Q4_0, Q4_K, FLAT], ids=["staircase", "steep", "flat"])
def test_two_useless_proposers_cost_no_more_than_one(ratios, share):
    for num_tokens, at_least in ((256, 0.97), (1024, 0.99)):
        made = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1, ProposerKind.LOOKUP: 0.0}, 1)
        setting = {"num_tokens": num_tokens}
        target_only_s = run(FixedDraftPolicy(0), at_random(0), ratios, **setting)
        others = [FreeProposer(at_random(share, seed=2), at_random(0))]
        took_s = run(made, at_random(0), ratios, others=others, **setting)
        assert target_only_s / took_s >= at_least


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


def test_batches_are_padded_to_a_cheaper_size():
    """Three tokens cost more than four on this machine."""
    learned = policy()
    for size in (2, 3, 4):
        for _ in range(3):
            learned.target_cost.learn(1, 0, 1.0)
            learned.target_cost.learn(size, 0, Q4_0[size])
    run(learned, at_random(0.9), Q4_0)
    learned.choose(PolicyContext(100, 16, 100, (ProposerState(16),)))
    assert learned.padded(3, 17) == 4
    assert learned.padded(3, 3) == 3
    assert learned.padded(4, 17) == 4


@pytest.mark.parametrize("damage", [{"costs": []}, {"costs": {"1": {}}}])
def test_a_damaged_file_is_an_error(damage):
    kept = policy().as_dict()
    policy().restore(kept)
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        policy().restore({**kept, **damage})


def test_costs_belong_to_a_number_of_threads():
    """Those of one are not taken for those of another, and are found again, also when kept."""
    made = policy()
    for _ in range(5):
        made.learn(target_only_step(1.0))
        made.target_cost.learn(4, 0, 2.0)
    made.use_threads(2)
    assert made.target_cost.target_only_s is None
    for _ in range(20):
        made.learn(target_only_step(3.0))
        made.target_cost.learn(4, 0, 4.5)
    assert made.target_cost.target_only_s == 3.0
    made.use_threads(1)
    assert made.target_cost.target_only_s == 1.0
    context = PolicyContext(10, 16, 500, (ProposerState(16, 1, 0, 0),))
    # Some time has gone by, in which the machine may have changed.
    assert made.choose(context).draft_off is DraftOff.MEASURING
    made.learn(target_only_step(1.2))
    assert made.target_cost.target_only_s == 1.2
    again = policy(made)
    assert again.target_cost.measured(0)[4] == pytest.approx(2.0, rel=0.05)
    again.use_threads(2)
    assert again.target_cost.measured(0)[4] == pytest.approx(1.5, rel=0.05)


def target_only_step(seconds: float) -> StepRecord:
    return StepRecord(None, [], 0, 1, 0, 1, 10, 0.0, seconds, 0.0)


def draft_step(seconds: float) -> StepRecord:
    return StepRecord(0, [0.9] * 3, 3, 4, 1, 4, 10, 0.1, seconds, 0.0)


def test_a_machine_that_becomes_faster_is_noticed_while_tokens_are_drafted():
    """Drafting gained a lot where target-only steps were slow, and gains nothing now."""
    made = policy()
    context = PolicyContext(10, 3, 500, (ProposerState(16, 1, 0, 0),))
    for _ in range(9):
        made.learn(target_only_step(2.0))
    drafted = replace(draft_step(2.5), num_accepted=1, num_emitted=2)
    for _ in range(9):
        made.learn(drafted)

    def num_drafts(num_steps: int, target_only_s: float) -> int:
        count = 0
        for _ in range(num_steps):
            is_drafting = made.choose(context).proposer == 0
            count += is_drafting
            made.learn(drafted if is_drafting else target_only_step(target_only_s))
        return count

    assert num_drafts(200, target_only_s=2.0) > 190
    num_drafts(200, target_only_s=1.0)
    assert made.target_cost.target_only_s == 1.0
    assert num_drafts(200, target_only_s=1.0) < 20


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_a_slow_plain_step_behind_a_draft_counts_only_if_the_next_is_slow(slower):
    """Threads that rested while the draft worked take time to wake."""
    made = policy()
    for _ in range(9):
        made.learn(target_only_step(1.0))
    for _ in range(5):
        made.learn(draft_step(2.0))
        made.learn(target_only_step(3.0))
        assert made.target_cost.target_only_s == 1.0
    for _ in range(5):
        made.learn(draft_step(2.0))
        made.learn(target_only_step(3.0))
        made.learn(target_only_step(slower))
    assert made.target_cost.target_only_s == slower


@pytest.mark.parametrize("agreement", [0.3, 0.5, 0.65])
@pytest.mark.parametrize(
    ("ratios", "draft_share"), [(Q4_0, 0.12), (Q4_K, 0.12), (Q4_0, 0.36)],
    ids=["staircase", "steep", "an expensive draft"],
)  # fmt: skip
def test_a_draft_that_is_right_at_times_is_not_followed_into_a_loss(
    ratios, draft_share, agreement
):
    """Near the break-even, too, where luck looks like profit; costs known or not."""
    setting = {"draft_share": draft_share}
    for seed in range(2):
        agrees = at_random(agreement, seed)
        target_only_s = run(FixedDraftPolicy(0), agrees, ratios, **setting)
        first = policy()
        assert target_only_s / run(first, agrees, ratios, **setting) >= 0.97
        assert target_only_s / run(policy(first), agrees, ratios, **setting) >= 0.97


def test_a_proposer_more_than_the_policy_knows_is_an_error_and_not_passed_over():
    """As two of one kind would be, of which it knows one."""
    with pytest.raises(ValueError, match="longer"):
        policy().choose(PolicyContext(100, 16, 100, (ProposerState(16), ProposerState(16))))
