"""Rounds within an answer: `bench` finds by them what whole answers would show."""

from __future__ import annotations

import copy

import pytest

from localspec.evaluation.ratio_estimate import estimate_ratio
from localspec.evaluation.rounds import Rounds, Stretch
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.speculative.policy_api import (
    DraftOff,
    DraftPolicy,
    FixedDraftPolicy,
    PolicyContext,
    ProposerKind,
    ProposerState,
    StepRecord,
)
from simulated import FLAT, METAL, Q4_0, VOCAB, Clock, Machine, Text, answer, at_random

STARTS = tuple(185 * number % VOCAB for number in range(18))
PLAIN = FixedDraftPolicy(0)


def record(
    seconds: float, num_emitted: int = 1, proposer: int | None = None, num_read: int = 0
) -> StepRecord:
    return StepRecord(
        proposer=proposer, confidences=[0.5] * (num_emitted - 1), num_accepted=num_emitted - 1,
        num_emitted=num_emitted, num_read=num_read, num_target_tokens=num_emitted, num_cached=9,
        draft_time_s=seconds / 4, target_time_s=seconds / 4, sampler_time_s=seconds / 4,
        replay_s=seconds / 4 if proposer is not None else 0.0,
    )  # fmt: skip


class Remembering(FixedDraftPolicy):
    """What a policy sees of the steps."""

    seen: list[StepRecord]

    def learn(self, record):
        self.seen.append(record)


@pytest.fixture
def policy():
    found = Remembering(3)
    object.__setattr__(found, "seen", [])
    return found


CONTEXT = PolicyContext(9, 8, 100, (ProposerState(8),))


def take(rounds: Rounds, plain, drafting) -> None:
    """A round, by the seconds of its steps; of a plain one three quarters count."""
    for seconds in plain:
        assert rounds.choose(CONTEXT).draft_off is DraftOff.SET_TO_ZERO
        rounds.learn(record(seconds * 4 / 3))
    for seconds in drafting:
        assert rounds.choose(CONTEXT).proposer == 0
        rounds.learn(record(seconds, 4, 0))


def test_the_first_step_of_each_side_is_not_counted(policy):
    rounds = Rounds(policy)
    rounds.learn(record(100.0))  # the prompt
    plain, drafting = (50.0, 1.0, 2.0, 3.0, 2.0, 2.0), (60.0, 4.0, 5.0, 4.0, 7.0)
    for _ in range(2):
        take(rounds, plain, drafting)
    whole = Stretch(16, pytest.approx(2.0), 20.0)
    assert rounds.stretches == [whole, whole]
    assert rounds.stretches[0].plain_s == pytest.approx(32.0)
    assert len(policy.seen) == 1 + 2 * 5  # of its own steps alone
    take(rounds, plain, (60.0,))
    assert rounds.stretches == [whole, whole]
    rounds.learn(record(6.0, 3, 0))
    # A short one, as the answer ends.
    assert rounds.stretches == [whole, whole, Stretch(3, pytest.approx(2.0), 6.0)]


def test_to_read_the_prompt_counts_for_the_whole_answer(policy):
    """Wherever that comes; each stretch has its share."""
    rounds = Rounds(policy)
    rounds.learn(record(100.0))
    take(rounds, (50.0, 1.0, 2.0, 3.0, 2.0, 2.0), ())
    rounds.learn(record(80.0, 4, 0, num_read=200))  # half of it before the target's decode
    take(rounds, (), (4.0, 5.0, 4.0, 7.0))
    num_tokens = 6 + 5 * 4
    assert rounds.stretches == [Stretch(16, pytest.approx(2.0), 20.0 + 40.0 * 16 / num_tokens)]


def ratios(policy, text: Text, machine: Machine):
    """Plain ÷ drafting, of whole answers behind their prompts, and as `bench` estimates it."""
    texts = [text._replace(starts=(start,)) for start in STARTS]

    def seconds(policy, texts) -> float:
        return sum(answer(policy, each, machine, Clock()) for each in texts)

    prompts_s = seconds(PLAIN, [each._replace(num_tokens=1) for each in texts])
    plain_s = seconds(PLAIN, texts) - prompts_s
    true = plain_s / (seconds(copy.deepcopy(policy), texts) - prompts_s)
    stretches = []
    for each in texts:
        rounds = Rounds(policy)
        answer(rounds, each, machine, Clock())
        stretches += rounds.stretches
    found = estimate_ratio(
        [each.plain_s for each in stretches], [each.drafting_s for each in stretches]
    )
    return true, found


@pytest.mark.parametrize("agreement", [0.1, 0.8, 0.95])
@pytest.mark.parametrize(
    "machine",
    [Machine("Q4_0", Q4_0, 0.12), Machine("flat", FLAT, 0.05), Machine("Metal", METAL, 0.43)],
    ids=lambda machine: machine.name,
)
def test_they_find_what_whole_answers_show(machine, agreement):
    """With the automatic policy, and costs that it knows; a draft reads 200 tokens first."""
    found, true = [], []
    for seed in (1, 2):
        text = Text(at_random(agreement, seed), num_tokens=128, num_prompt_tokens=200)
        policy = AdaptiveDraftPolicy({ProposerKind.DRAFT: machine.draft_share}, 1)
        answer(policy, text._replace(starts=STARTS), machine, Clock())
        whole, turns = ratios(policy, text, machine)
        true.append(whole)
        found.append(turns.value)
    assert sum(found) == pytest.approx(sum(true), rel=0.02 if max(true) < 2 else 0.05)


def test_rounds_pass_each_question_on_to_their_policy():
    """A method that is left out would give what a policy that learns nothing gives."""
    for name, value in vars(DraftPolicy).items():
        if callable(value) or isinstance(value, property):
            assert name in vars(Rounds), name
    policy = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1)
    policy.prospects[0].pause_left = 7
    assert Rounds(policy).pause_left(0) == 7
