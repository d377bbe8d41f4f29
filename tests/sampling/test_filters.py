"""The cuts: their edges, ties, and the distribution that is left."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from localspec.errors import DecodeError
from localspec.sampling.distribution import Distribution
from localspec.sampling.filters import filtered_distribution
from localspec.sampling.params import SamplingParams

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def dense(distribution: Distribution, size: int) -> np.ndarray:
    row = np.zeros(size)
    row[distribution.ids] = distribution.probs
    return row


def logits_of(*probs: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs)).astype(np.float32)


def test_greedy_is_one_hot_whatever_the_filters():
    """Temperature 0 is the argmax row, not a softmax at temperature 1."""
    distribution = filtered_distribution(
        logits_of(0.2, 0.5, 0.3), SamplingParams(temperature=0, top_k=3)
    )
    assert distribution.ids.tolist() == [1]
    assert distribution.probs.tolist() == [1.0]


@pytest.mark.parametrize(
    ("params", "survivors"),
    [
        (SamplingParams(temperature=1, top_k=2, top_p=1, min_p=0), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=0.75, min_p=0), [0, 1, 2]),
        (SamplingParams(temperature=1, top_k=0, top_p=0.65, min_p=0), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=1e-9, min_p=0), [0]),
        (SamplingParams(temperature=1, top_k=0, top_p=0, min_p=0), [0]),
        (SamplingParams(temperature=1, top_k=0, top_p=0, min_p=0.05), [0]),
        (SamplingParams(temperature=1, top_k=3, top_p=0), [0]),
        (SamplingParams(temperature=1, top_k=0, min_p=0, typical_p=0.75, top_p=0), [0]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0.5), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=1.0), [0]),
        # top-p counts mass among what top-k left: 0.4 / 0.7 is short of 0.6.
        (SamplingParams(temperature=1, top_k=2, top_p=0.6, min_p=0), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, typical_p=0.2), [1]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, typical_p=0.5), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, typical_p=0.75), [0, 1, 2]),
        # The most typical token need not be the best, at any temperature.
        (SamplingParams(temperature=0, typical_p=0.2), [1]),
        (SamplingParams(temperature=0, top_k=4, top_p=0.9, min_p=0.1), [0]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, top_n_sigma=1.0), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, top_n_sigma=1.75), [0, 1, 2]),
        # The temperature comes last: a hot one does not widen what the filters keep.
        (SamplingParams(temperature=50, top_k=0, top_p=0.65, min_p=0), [0, 1]),
    ],
)
def test_each_filter_keeps_what_it_should(params, survivors):
    """Worked by hand on the distribution 0.4, 0.3, 0.15, 0.1, 0.05."""
    distribution = filtered_distribution(logits_of(0.4, 0.3, 0.15, 0.1, 0.05), params)
    assert distribution.ids.tolist() == survivors


@pytest.mark.parametrize("size", [5000, 200_000])
@pytest.mark.parametrize("top_k", [0, 40, 300])
def test_top_p_0_leaves_the_first_of_the_likeliest_tokens(size, top_k):
    """In long rows, which thresholds and histograms cut."""
    row = np.random.default_rng(1).normal(0, 1, size).astype(np.float32)
    row[[1234, 2345]] = 9.0
    params = replace(OFF, top_p=0, top_k=top_k)
    assert filtered_distribution(row, params).ids.tolist() == [1234]


@pytest.mark.parametrize("top_k", [2, 3, 4])
def test_banned_tokens_are_left_out_also_where_fewer_are_left_than_a_cut_keeps(top_k):
    logits = logits_of(0.4, 0.3, 0.15, 0.1, 0.05)
    logits[[0, 3]] = -np.inf
    params = SamplingParams(temperature=1, top_k=top_k, top_p=1, min_p=0)
    distribution = filtered_distribution(logits, params)
    assert distribution.ids.tolist() == ([1, 2] if top_k == 2 else [1, 2, 4])
    assert distribution.probs.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("size", [100, 5000])
@pytest.mark.parametrize(
    ("name", "tokens"), [("top_k", 3), ("top_p", 2.9), ("typical_p", 2.5), ("min_p", 3)]
)
def test_lowest_ids_survive_a_tie(name, tokens, size):
    """Which of equal logits a cut keeps is defined."""
    row = np.full(size, -30.0, dtype=np.float32)
    tied = range(7, size, 10)
    row[tied] = 2.0
    if name == "min_p":  # a threshold: it keeps every tie
        params, expected = replace(OFF, min_p=1.0), list(tied)
    else:
        value = tokens if name == "top_k" else tokens / len(tied)
        params, expected = replace(OFF, **{name: value}), [7, 17, 27]
    assert filtered_distribution(row, params).ids.tolist() == expected


def test_typical_mass_must_exceed_its_share():
    """Where top-p's may just reach it: of four equal tokens two make up a half."""
    row = np.zeros(4, dtype=np.float32)
    assert filtered_distribution(row, replace(OFF, typical_p=0.5)).ids.tolist() == [0, 1, 2]
    for top_k in (0, 4):  # of few tokens as of many
        found = filtered_distribution(row, replace(OFF, top_p=0.5, top_k=top_k))
        assert found.ids.tolist() == [0, 1]


def rows_that_defeat_thresholds(size: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    bell = generator.normal(size=size).astype(np.float32)
    every_2560th, every_320th = np.zeros((2, size), dtype=np.float32)
    for row, stride in ((every_2560th, 64 * 40), (every_320th, 64 * 40 // 8)):
        row[::stride] = np.arange(1, 1 + len(row[::stride]))
    holes = bell.copy()
    holes[generator.random(size) < 0.999] = -np.inf
    return {
        "all equal": np.zeros(size, dtype=np.float32),
        "ascending": np.sort(bell),
        "descending": np.sort(bell)[::-1].copy(),
        "few values": np.round(bell),
        "the best in one column": every_2560th,
        "the best in columns of one column": every_320th,
        "the best last": np.append(bell[:-1], np.float32(50.0)),
        "mostly holes": holes,
        "flat": 1e-6 * bell,
        "steep": 1e6 * bell,
    }


@pytest.mark.parametrize("name", rows_that_defeat_thresholds(2))
@pytest.mark.parametrize("size", [3000, 40_000])
def test_no_row_defeats_the_thresholds(name, size):
    """What survives is the beginning of the row in full order, whatever its shape."""
    row = rows_that_defeat_thresholds(size)[name]
    order = np.lexsort((np.arange(size), -row))
    weights = np.exp(row[order].astype(np.float64) - row[order[0]])
    mass = np.cumsum(weights) / weights.sum()
    for k in (1, 7, 40, 1000):
        distribution = filtered_distribution(row, replace(OFF, top_k=k))
        first = order[:k]
        assert distribution.ids.tolist() == np.sort(first[row[first] > -np.inf]).tolist()
    for top_p in (0.1, 0.5, 0.9):
        distribution = filtered_distribution(row, replace(OFF, top_p=top_p))
        kept = len(distribution.ids)
        assert distribution.ids.tolist() == np.sort(order[:kept]).tolist()
        assert mass[kept - 1] >= top_p - 1e-6
        assert kept == 1 or mass[kept - 2] < top_p + 1e-6


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("size", [5000, 152_064])
def test_a_long_row_without_a_cut_has_the_softmax_in_single_precision(size, temperature):
    """The masses move by 1e-6 of each, and so does what is drawn in two levels."""
    generator = np.random.default_rng(size)
    row = generator.normal(0, 3, size).astype(np.float32)
    row[::7] = -np.inf
    distribution = filtered_distribution(row, replace(OFF, temperature=temperature))
    exact = np.exp((row.astype(np.float64) - row.max()) / temperature)
    exact /= exact.sum()
    np.testing.assert_allclose(distribution.probs, exact, rtol=1e-5, atol=1e-30)
    assert np.abs(distribution.probs - exact).sum() / 2 < 1e-6
    reached = exact.cumsum()
    for uniform in [0.0, *generator.random(500), np.nextafter(1.0, 0.0)]:
        token = distribution.draw(uniform)
        assert exact[token] > 0
        assert reached[token] - exact[token] - 1e-6 <= uniform <= reached[token] + 1e-6


@pytest.mark.parametrize("temperature", [1e-30, 1e-300, 5e-324])
def test_the_lowest_temperatures_leave_the_best(temperature):
    """Neighbouring floats and holes too; no quotient overflows on the way."""
    row = np.array([1.0, np.nextafter(np.float32(1), np.float32(2)), -np.inf, -3e38])
    distribution = filtered_distribution(
        row.astype(np.float32), replace(OFF, temperature=temperature)
    )
    assert dense(distribution, 4).tolist() == [0.0, 1.0, 0.0, 0.0]


def test_impossible_tokens_are_never_drawn():
    """Holes (-inf) keep probability 0 at both ends of the row and of the unit interval."""
    distribution = filtered_distribution(logits_of(0, 0.5, 0, 0.5, 0), OFF)
    drawn = {distribution.draw(u) for u in (0.0, 0.25, 0.5, 0.75, math.nextafter(1, 0))}
    assert drawn == {1, 3}


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0), OFF])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_an_error(params, bad):
    """NaN and infinite logits are reported, not sampled from, wherever they are."""
    for place in (0, 4321, 5119, 5999):  # the last is behind the whole columns of `top_k`
        row = np.arange(6000, dtype=np.float32)
        row[place] = bad
        with pytest.raises(DecodeError, match=f"largest logit of a row is {bad}"):
            filtered_distribution(row, params)
