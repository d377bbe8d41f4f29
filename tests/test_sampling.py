"""Filters: llama.cpp's order, their edges, and the law that is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import DecodeError, OptionError
from localspec.sampling import Distribution, SamplingParams, distribution
from reference import target_probs
from toy import TableModel

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def dense(law: Distribution, size: int) -> np.ndarray:
    row = np.zeros(size)
    row[law.ids] = law.probs
    return row


def logits_of(*probs: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs)).astype(np.float32)


@settings(deadline=None, max_examples=300)
@given(
    vocab=st.sampled_from([2, 8, 300, 5000]),
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 100_000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 1e-4, 0.05, 1.0]),
)
def test_law_is_what_sorting_everything_gives(vocab, seed, temperature, top_k, top_p, min_p):
    """Thresholds and partial sorts keep exactly the tokens that a full sort keeps."""
    model = TableModel(vocab, seed=seed)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    law = distribution(model.row([1]), params)
    assert np.all(np.diff(law.ids) > 0)
    np.testing.assert_allclose(dense(law, vocab), target_probs(model, [1], params), atol=1e-6)


def test_greedy_is_one_hot_whatever_the_filters():
    """Temperature 0 is the argmax row, not a softmax at temperature 1."""
    law = distribution(logits_of(0.2, 0.5, 0.3), SamplingParams(temperature=0, top_k=3))
    assert law.ids.tolist() == [1]
    assert law.probs.tolist() == [1.0]


@pytest.mark.parametrize(
    ("params", "survivors"),
    [
        (SamplingParams(temperature=1, top_k=2, top_p=1, min_p=0), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=0.75, min_p=0), [0, 1, 2]),
        (SamplingParams(temperature=1, top_k=0, top_p=0.65, min_p=0), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=1e-9, min_p=0), [0]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0.5), [0, 1]),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=1.0), [0]),
        # top-p counts mass among what top-k left: 0.4 / 0.7 is short of 0.6.
        (SamplingParams(temperature=1, top_k=2, top_p=0.6, min_p=0), [0, 1]),
        # The temperature comes last: a hot one does not widen what the filters keep.
        (SamplingParams(temperature=50, top_k=0, top_p=0.65, min_p=0), [0, 1]),
    ],
)
def test_each_filter_keeps_what_it_should(params, survivors):
    """Worked by hand on the law 0.4, 0.3, 0.15, 0.1, 0.05."""
    law = distribution(logits_of(0.4, 0.3, 0.15, 0.1, 0.05), params)
    assert law.ids.tolist() == survivors


def test_lowest_ids_survive_a_tie():
    """Which of equal logits top-k keeps is defined."""
    law = distribution(
        np.zeros(5000, dtype=np.float32), SamplingParams(top_k=3, top_p=1, min_p=0)
    )
    assert law.ids.tolist() == [0, 1, 2]


def test_impossible_tokens_are_never_drawn():
    """Holes (-inf) keep probability 0 at both ends of the row and of the unit interval."""
    law = distribution(logits_of(0, 0.5, 0, 0.5, 0), OFF)
    drawn = {law.draw(u) for u in (0.0, 0.25, 0.5, 0.75, math.nextafter(1, 0))}
    assert drawn == {1, 3}


def test_draw_follows_the_law():
    """Each token gets the share of the unit interval that is its probability."""
    law = Distribution(np.array([3, 7, 9]), np.array([0.25, 0.5, 0.25]))
    grid = (np.arange(1000) + 0.5) / 1000
    drawn = [law.draw(u) for u in grid]
    assert [drawn.count(token) for token in (3, 7, 9)] == [250, 500, 250]


def test_prob_of_an_unlisted_token_is_zero():
    """Below, between and above the listed ids."""
    law = Distribution(np.array([3, 7]), np.array([0.25, 0.75]))
    assert [law.prob(t) for t in (0, 3, 5, 7, 8)] == [0, 0.25, 0, 0.75, 0]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0), OFF])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_an_error(params, bad):
    """NaN and infinite logits are reported, not sampled from."""
    row = np.zeros(5000, dtype=np.float32)
    row[4321] = bad
    with pytest.raises(DecodeError, match="logits whose maximum is"):
        distribution(row, params)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": math.nan},
    ],
)
def test_values_outside_their_range_are_refused(values):
    """With the value in the message and the range in the hint."""
    with pytest.raises(OptionError, match=str(next(iter(values.values())))) as caught:
        SamplingParams(**values)
    assert "Choose" in caught.value.hint
