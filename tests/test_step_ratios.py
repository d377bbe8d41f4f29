"""v(n), followed while the machine changes."""

from __future__ import annotations

import pytest

from localspec.policy.step_ratios import StepRatios

SIZES = (4, 8, 16)


@pytest.fixture
def ratios():
    """Of a machine that was measured well: v(n) is n / 2."""
    made = StepRatios(17)
    for _ in range(9):
        for size in SIZES:
            made.learn(size, size / 2, 1.0)
    return made


def test_steps_that_stay_the_same_are_known_as_they_are(ratios):
    assert ratios.at(1.0) == pytest.approx({size: size / 2 for size in SIZES})
    assert ratios.counts[4] == 9
    assert not ratios.known[5]


def test_what_was_timed_long_ago_counts_less(ratios):
    def after_another() -> float:
        before = ratios.at(1.0)[16]
        ratios.learn(16, before * 1.1, 1.0)
        return ratios.at(1.0)[16] / before

    soon = after_another()
    ratios.pass_by(1000)
    assert 1.0 < soon < after_another() < 1.1


def test_how_well_they_are_known_says_the_spread(ratios):
    soon = ratios.spread()
    assert list(soon[:2]) == [0.0, 0.0]
    assert soon[5] == pytest.approx(soon[list(SIZES)].mean())
    ratios.pass_by(100)
    later = ratios.spread()
    assert (later[2:] > soon[2:]).all()
    ratios.pass_by(1e9)
    assert ratios.spread()[8] == pytest.approx(0.15)


def test_what_was_kept_is_known_but_gives_way(ratios):
    restored = StepRatios(17)
    for row in ratios.as_rows():
        restored.restore(*row)
    assert restored.at(1.0) == pytest.approx(ratios.at(1.0))
    restored.learn(8, 4 * 1.2, 1.0)
    assert restored.at(1.0)[8] > 4 * 1.1
