"""Sides timed in turn: the interval holds the truth as often as it says, whatever the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.checks.ratio_estimate import RatioEstimate, estimate_ratio, student_quantile

NOISES = ["even", "heavy tails", "stalls", "machine that drifts"]


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # tables of Student's t, for 0.975
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (7, 2.3646), (30, 2.0423)],
)
def test_quantiles_match_the_tables(freedom, quantile):
    assert student_quantile(0.975, freedom) == pytest.approx(quantile, abs=1e-4)


def test_an_estimate_by_hand():
    found = estimate_ratio([2.0, 4.0, 3.0], [1.0, 2.0, 2.0])
    assert found is not None
    assert found.value == pytest.approx(9 / 5)
    residuals = (0.2, 0.4, -0.6)
    deviation = math.sqrt(sum(r**2 for r in residuals) / 2) / (9 / 5 * 5 / 3)
    assert found.deviation == pytest.approx(deviation)
    reach = math.exp(4.3027 * deviation / math.sqrt(3))
    assert (found.low, found.high) == pytest.approx((1.8 / reach, 1.8 * reach), rel=1e-4)


def test_it_is_the_same_whichever_side_is_on_top():
    one, other = [1.0, 1.1, 1.3], [1.2, 1.0, 1.4]
    found, turned = estimate_ratio(one, other), estimate_ratio(other, one)
    assert found is not None
    assert turned is not None
    assert (1 / turned.high, 1 / turned.low) == pytest.approx((found.low, found.high), rel=0.01)


@pytest.mark.parametrize("rounds", [[], [1.0]])
def test_one_round_says_nothing_of_its_noise(rounds):
    assert estimate_ratio(rounds, rounds) is None


def sides(random, num_rounds: int, noise: str, ratio: float) -> tuple[list[float], list[float]]:
    """Seconds per round of plain and other answers, the other ones `ratio` times as fast.

    Eight answers of each side a round, who goes first changing, as `bench` does it.
    """
    drift = 0.0
    seconds = np.zeros((2, num_rounds))
    for number in range(num_rounds):
        for place in range(8):
            for side in (0, 1) if (number + place) % 2 == 0 else (1, 0):
                took = 1 / ratio if side else 1.0
                if noise == "machine that drifts":
                    drift += 0.02 * random.normal()
                    took *= math.exp(drift + 0.03 * random.normal())
                elif noise == "heavy tails":
                    took *= math.exp(0.03 * random.standard_t(2))
                else:
                    took *= math.exp(0.05 * random.normal())
                if noise == "stalls" and random.random() < 0.02:
                    took *= 4.0
                seconds[side, number] += took
    return seconds[0].tolist(), seconds[1].tolist()


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("num_rounds", [2, 3, 5])
def test_equal_sides_are_told_apart_no_more_often_than_stated(noise, num_rounds):
    """5 of 100 times; of 600 four standard errors more is 51."""
    random = np.random.default_rng(num_rounds)
    estimates = [estimate_ratio(*sides(random, num_rounds, noise, 1.0)) for _ in range(600)]
    wrong = sum(not found.low <= 1.0 <= found.high for found in estimates)
    assert wrong <= 51


@pytest.mark.parametrize("noise", NOISES)
def test_intervals_hold_the_truth(noise):
    random = np.random.default_rng(7)
    estimates = [estimate_ratio(*sides(random, 5, noise, 1.4)) for _ in range(400)]
    assert sum(found.low <= 1.4 <= found.high for found in estimates) >= 363


def test_what_is_said_to_be_visible_is_seen():
    """By as many rounds as it says, 9 times in 10."""
    wild = RatioEstimate(1.0, 0.1, 10.0, deviation=3.0, num_rounds=2)
    assert 900_000 < wild.rounds_to_see(0.01) < 1_000_000
    noisy = RatioEstimate(1.0, 0.9, 1.1, deviation=0.05, num_rounds=3)
    num_rounds = noisy.rounds_to_see(0.06)
    assert 9 <= num_rounds <= 12
    assert RatioEstimate(1.0, 0.9, 1.1, 0.05, num_rounds).visible <= 0.06
    assert RatioEstimate(1.0, 0.9, 1.1, 0.05, num_rounds - 1).visible > 0.06
    random = np.random.default_rng(0)
    seen = 0
    for _ in range(400):
        above = 1.06 * np.exp(0.05 * random.normal(size=num_rounds))
        found = estimate_ratio(above.tolist(), [1.0] * num_rounds)
        assert found is not None
        seen += found.low > 1.0
    assert seen >= 400 * 0.9 - 4 * math.sqrt(400 * 0.09)
