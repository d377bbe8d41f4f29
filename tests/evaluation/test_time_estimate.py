"""How long `localspec verify` says that a verdict takes, on checks whose costs are given."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from localspec.cli.evaluation_reports import report_text
from localspec.evaluation.identity import ENOUGH_ACCEPTED, Identity, Rounding
from localspec.evaluation.lossless_check import Report
from localspec.evaluation.time_left import Pace
from localspec.evaluation.time_limit import EndedBy


@dataclass
class Costs:
    """A pair of models: what each text costs, and what it shows."""

    text_tokens: int = 64
    token_s: float = 0.1
    compared: int = 150
    accepted: int = 40
    comparing_s: float = 9.0


def estimates(costs: Costs) -> tuple[list[tuple[float, float | None]], float]:
    """After each text the time so far and the time that is expected; and the whole time."""
    pace, texts = Pace(), [Identity(), Identity()]
    expected: list[tuple[float, float | None]] = [(0.0, pace.seconds_left(texts))]
    while min(one.num_accepted for one in texts) < ENOUGH_ACCEPTED:
        text = min(texts, key=lambda one: one.num_accepted)
        pace.seconds["writing"] += costs.text_tokens * costs.token_s
        pace.num_texts += 1
        pace.num_written += costs.text_tokens
        part = min(1.0, (ENOUGH_ACCEPTED - text.num_accepted) / costs.accepted)
        text.num_tokens += round(part * costs.compared)
        text.num_accepted += round(part * costs.accepted)
        pace.seconds["comparing"] += part * costs.comparing_s
        expected.append((sum(pace.seconds.values()), pace.seconds_left(texts)))
    return expected, sum(pace.seconds.values())


@pytest.mark.parametrize(
    "costs",
    [Costs(), Costs(accepted=90), Costs(accepted=4), Costs(token_s=3.0), Costs(text_tokens=9)],
)
def test_the_time_that_is_expected_is_what_the_check_takes(costs):
    expected, whole_s = estimates(costs)
    (_, before_any), *behind = expected
    assert before_any is None
    for spent_s, left_s in behind:
        assert left_s is not None
        assert 0.6 * whole_s < spent_s + left_s < 1.5 * whole_s


def test_a_text_that_is_being_compared_is_not_written_again():
    """One rule has enough, and the text of the other is there."""
    seconds = {"writing": 64.0, "comparing": 10.0}
    pace = Pace(seconds, num_written=128, num_texts=2, is_comparing=True)
    greedy = Identity(num_tokens=125, num_accepted=100)
    assert pace.seconds_left([greedy, Identity()]) == pytest.approx(10.0)


def test_tokens_beyond_enough_count_for_the_time_of_one():
    """The last step of a rule may accept more tokens than it lacked."""
    seconds = {"writing": 32.0, "comparing": 10.7}
    pace = Pace(seconds, num_written=64, num_texts=1)
    greedy = Identity(num_tokens=125, num_accepted=107)
    assert pace.seconds_left([greedy, Identity()]) == pytest.approx(32.0 + 10.0)


def report(time_s: float, seconds_needed: float | None) -> Report:
    return Report(
        rounding=Rounding(),
        greedy=Identity(),
        seeded=Identity(),
        time_s=time_s,
        seconds_needed=seconds_needed,
        is_hopeless=False,
        ended_by=EndedBy.TIME,
    )


@pytest.mark.parametrize(
    ("needed_s", "words"),
    [
        (13.1, "A verdict needs about 13 s here: --seconds 20."),
        (190.0, "A verdict needs about 3 minutes here: --seconds 240."),
        (1801.0, "A verdict needs about 30 minutes here: --seconds 2400."),
        (12_345.0, "A verdict would take about 3.4 hours here (--seconds 12600)."),
        (None, "How long a verdict takes is not known yet: the target has not finished a"),
    ],
)
def test_a_limit_is_advised_that_a_person_would_type(needed_s, words):
    advice = report_text(report(180.0, needed_s)).splitlines()[-2]
    assert advice.startswith(words)
    if needed_s is None:
        assert advice.endswith("Try --seconds 720.")
