"""The campaign's class of the law: its statistics are right, and it notices what is planted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from fault_classes import law
from fault_classes.chi_square import deviation, noticed_bias, survival
from fault_classes.law_cells import law_of, loop_cells, rule_cells

from localspec.speculative import verify


@pytest.mark.parametrize(
    ("chi_square", "freedom", "chance"),
    [
        (3.841458821, 1, 0.05),
        (18.30703805, 10, 0.05),
        (2.0, 2, math.exp(-1.0)),
        (60.0, 2, math.exp(-30.0)),
        (0.0, 5, 1.0),
        (math.inf, 3, 0.0),
    ],
)
def test_chances_of_chi_square(chi_square, freedom, chance):
    assert survival(chi_square, freedom) == pytest.approx(chance, rel=1e-6)


def test_what_cannot_be_is_infinitely_far():
    assert deviation({"a": 9, "b": 1}, {"a": 1.0}).chance == 0.0
    assert deviation({"a": 10}, {"a": 1.0}).chance == 1.0


def test_rare_texts_count_together():
    found = deviation({"a": 990, "b": 10}, {"a": 0.99, "b": 0.004, "c": 0.003, "d": 0.003})
    assert found == (0.0, 1)


def test_the_stated_power_is_there():
    """Of 400 experiments with the bias that is noticed 99 times of 100, hardly any is not."""
    random, count, alpha = np.random.default_rng(0), 20_000, 1e-4
    probs = np.array([0.3, 0.2, 0.3, 0.2])
    bias = noticed_bias(count, 3, alpha)
    wrong = probs + bias * np.array([0.6, 0.4, -0.6, -0.4])  # the hardest to notice
    right = dict(enumerate(probs))

    def num_noticed(real):
        drawn = random.multinomial(count, real, size=400)
        return sum(deviation(dict(enumerate(each)), right).chance < alpha for each in drawn)

    assert 388 <= num_noticed(wrong) <= 400
    assert num_noticed(probs) <= 1


def test_a_law_sums_to_one():
    assert sum(next(rule_cells(0)).law.values()) == pytest.approx(1.0)
    assert law_of(lambda text: np.array([0.5, 0.5]), lambda token: token == 0) == {
        (0,): 0.5,
        (1, 0): 0.25,
        (1, 1, 0): 0.125,
        (1, 1, 1): 0.125,
    }


def test_a_planted_bias_of_two_percent_is_noticed_at_once():
    assert law.planted(3000, 0, bias=0.02).losses == []
    assert law.planted(3000, 0, bias=0.0).losses != []


@pytest.mark.slow
def test_a_planted_bias_of_three_per_mille_is_noticed():
    assert law.planted(60_000, 0).losses == []


def of_draft_model():
    """A few of the loop's cells."""
    cells = loop_cells(0)
    return [cell for cell in cells if cell.row == "the loop with a draft model"][:9]


def test_a_wrong_residual_is_noticed(monkeypatch):
    monkeypatch.setattr(verify, "residual", lambda target, draft, share=1.0: target)
    lost = [
        each for row in law.drawn(of_draft_model(), 0.0, 0, least=400) for each in row.losses
    ]
    assert any("token" in each for each in lost)
    assert any("block" in each for each in lost)


def test_the_same_loses_nothing_where_nothing_is_planted():
    (row,) = law.drawn(of_draft_model(), 0.0, 0, least=400)
    assert row.losses == []
    assert row.count == 9 * 448
    assert "9 cells" in row.holds


@pytest.mark.slow
def test_a_short_run_loses_nothing():
    """Of all rules, loops and some engines."""
    cells = itertools.chain(rule_cells(3), loop_cells(3))
    rows = list(law.drawn(cells, 0.0, 3, least=64))
    assert len(rows) == 3 + 13
    engines = itertools.islice(law.engine_cells(1.0, 3), 12)
    rows += law.drawn(engines, 0.0, 3, least=64)
    assert [loss for row in rows for loss in row.losses] == []
