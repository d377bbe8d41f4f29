"""Sides timed in turn: the interval holds the truth as often as it says, whatever the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.evaluation.ratio_estimate import (
    RatioEstimate,
    estimate_ratio,
    in_equal_parts,
)

NOISES = ["even", "heavy tails", "stalls", "machine that drifts"]


def test_an_estimate_by_hand():
    found = estimate_ratio([2.0, 4.0, 3.0], [1.0, 2.0, 2.0])
    assert found is not None
    assert found.value == pytest.approx(9 / 5)
    residuals = (0.2, 0.4, -0.6)
    deviation = math.sqrt(sum(r**2 for r in residuals) / 2) / (9 / 5 * 5 / 3)
    assert (found.error, found.freedom) == (pytest.approx(deviation / math.sqrt(3)), 2)
    reach = math.exp(4.3027 * deviation / math.sqrt(3))
    assert (found.low, found.high) == pytest.approx((1.8 / reach, 1.8 * reach), rel=1e-4)


def test_as_much_of_each_by_hand():
    """The time of as many tokens of each; one that is slow counts more."""
    found = in_equal_parts([RatioEstimate(2.0, 0.02, 9), RatioEstimate(1.0, 0.03, 4)])
    assert found.value == pytest.approx(2 / (1 / 2 + 1))
    parts = (0.02 / 3) ** 2, (0.03 * 2 / 3) ** 2
    assert found.error == pytest.approx(math.sqrt(sum(parts)))
    assert found.freedom == int(sum(parts) ** 2 / (parts[0] ** 2 / 9 + parts[1] ** 2 / 4))
    alone = RatioEstimate(1.5, 0.1, 5)
    assert in_equal_parts([alone]) == RatioEstimate(pytest.approx(1.5), pytest.approx(0.1), 5)
    assert in_equal_parts([RatioEstimate(1.0, 0.0, 2)] * 2).freedom == 4


def stretches(random, count: int, noise: str, ratio: float) -> tuple[list[float], list[float]]:
    """Seconds of plain decoding for a stretch's tokens, and with drafts, as `bench` has them.

    Of 5 plain steps and 6 steps that write 1 to 4 tokens each, `ratio` times as fast on average
    over any text.
    """
    drift, found = 0.0, ([], [])
    for _ in range(count):
        seconds = []
        num_written = int(random.integers(1, 5, size=6).sum())
        for step in range(11):
            took = 1.0 if step < 5 else 2.5 / ratio
            if noise == "machine that drifts":
                drift += 0.02 * random.normal()
                took *= math.exp(drift + 0.03 * random.normal())
            elif noise == "heavy tails":
                took *= math.exp(0.03 * random.standard_t(2))
            else:
                took *= math.exp(0.05 * random.normal())
            if noise == "stalls" and random.random() < 0.02:
                took *= 4.0
            seconds.append(took)
        found[0].append(num_written * sum(seconds[:5]) / 5)
        found[1].append(sum(seconds[5:]))
    return found


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("count", [3, 6, 20])
@pytest.mark.parametrize("ratio", [1.0, 1.4])
def test_intervals_hold_the_truth(noise, count, ratio):
    """95 of 100 times; of 600 four standard errors less is 549."""
    random = np.random.default_rng(count)
    estimates = [estimate_ratio(*stretches(random, count, noise, ratio)) for _ in range(600)]
    assert sum(found.low <= ratio <= found.high for found in estimates) >= 549
