"""The best tokens of a row, before and after the chain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.sampling.distribution import Distribution
from localspec.sampling.filters import filtered_distribution
from localspec.sampling.logprobs import token_logprobs, top_of_distribution, top_of_row
from localspec.sampling.params import SamplingParams
from localspec.server.completions import logprob_object


@pytest.mark.parametrize("size", [5, 3000, 152_064])
def test_top_of_a_row_is_its_log_softmax(size):
    """The n best of the full log-softmax, best first."""
    row = np.random.default_rng(size).normal(3.0, 4.0, size).astype(np.float32)
    exact = row.astype(np.float64)
    exact -= exact.max()
    exact -= math.log(np.exp(exact).sum())
    order = np.argsort(-exact)
    for n in (1, 4, 20):
        ids, logprobs = zip(*top_of_row(row, n), strict=True)
        assert list(ids) == order[:n].tolist()
        np.testing.assert_allclose(logprobs, exact[order[:n]], atol=1e-5)


def test_equal_tokens_come_in_the_order_of_their_ids():
    row = np.zeros(5000, dtype=np.float32)
    row[[70, 4000]] = 1.0
    assert [token for token, _ in top_of_row(row, 4)] == [70, 4000, 0, 1]


def test_top_of_a_distribution_is_what_the_transforms_left():
    """Renormalised over the survivors; what has no probability is not listed."""
    distribution = Distribution(np.array([2, 5, 6, 9]), np.array([0.25, 0.5, 0.0, 0.25]))
    found = top_of_distribution(distribution, 3)
    assert found == [(5, math.log(0.5)), (2, math.log(0.25)), (9, math.log(0.25))]
    assert top_of_distribution(distribution, 2) == found[:2]


def test_before_and_after_differ_by_the_filters():
    """Greedy is certain of what the model is not."""
    row = np.log(np.array([0.1, 0.6, 0.3])).astype(np.float32)
    before = top_of_row(row, 2)
    after = top_of_distribution(filtered_distribution(row, SamplingParams(temperature=0)), 2)
    assert [math.exp(value) for _, value in before] == pytest.approx([0.6, 0.3])
    assert after == [(1, 0.0)]


def test_an_emitted_tokens_logprobs_are_those_of_its_row_and_distribution():
    """Its own probability in both, whether or not it is among the best."""
    row = np.log(np.array([0.1, 0.6, 0.3])).astype(np.float32)
    distribution = Distribution(np.array([1, 2]), np.array([0.75, 0.25]))
    found = token_logprobs(2, row, distribution, 1, b"%d".__mod__)
    assert (found.token_id, found.text) == (2, "2")
    assert (found.token_id, [top.token_id for top in found.top_before]) == (2, [1])
    assert math.exp(found.before) == pytest.approx(0.3)
    assert math.exp(found.after) == pytest.approx(0.25)
    assert found.top_after == ((1, pytest.approx(math.log(0.75)), "1"),)
    alone = token_logprobs(2, row, distribution, 0, b"%d".__mod__)
    assert (alone.top_before, alone.top_after) == ((), ())
    assert alone.after == found.after


def test_parts_of_a_character_have_their_bytes():
    row = np.log(np.array([0.5, 0.5])).astype(np.float32)
    distribution = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    found = token_logprobs(0, row, distribution, 2, [b"\xc3", "é".encode()].__getitem__)
    assert found.text == "\N{REPLACEMENT CHARACTER}"
    assert found.raw == {0: b"\xc3"}
    assert [each.text for each in found.top_before] == [found.text, "é"]
    assert logprob_object(found)["bytes"] == [0xC3]
    assert [each["bytes"] for each in logprob_object(found)["top_logprobs"]] == [
        [0xC3],
        [0xC3, 0xA9],
    ]


def test_impossible_tokens_are_not_listed():
    """So that no infinity gets into JSON."""
    row = np.array([0.0, -np.inf, 1.0], dtype=np.float32)
    distribution = Distribution(np.array([2]), np.array([1.0]))
    found = token_logprobs(2, row, distribution, 3, b"%d".__mod__)
    assert [top.token_id for top in found.top_before] == [2, 0]
