"""What shapes a distribution, and the distribution itself."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from localspec.errors import OptionError
from localspec.sampling.distribution import Distribution
from localspec.sampling.params import SamplingParams


def test_draw_follows_the_distribution():
    """Each token gets the share of the unit interval that is its probability."""
    distribution = Distribution(np.array([3, 7, 9]), np.array([0.25, 0.5, 0.25]))
    grid = (np.arange(1000) + 0.5) / 1000
    drawn = [distribution.draw(u) for u in grid]
    assert [drawn.count(token) for token in (3, 7, 9)] == [250, 500, 250]


def test_prob_of_an_unlisted_token_is_zero():
    """Below, between and above the listed ids."""
    distribution = Distribution(np.array([3, 7]), np.array([0.25, 0.75]))
    assert [distribution.prob(t) for t in (0, 3, 5, 7, 8)] == [0, 0.25, 0, 0.75, 0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-0.1, math.nan, math.inf, 10**400, True)),
        *(("top_k", value) for value in (-1, 40.5, "40", True)),
        *(("top_p", value) for value in (-0.1, 1.1, math.nan)),
        *(("min_p", value) for value in (-0.1, 1.1)),
        *(("ignore_eos", value) for value in (math.nan, "no")),
        *(("dry_sequence_breakers", value) for value in (("",), ("x" * 41,))),
        *(("typical_p", value) for value in (-0.1, 1.1, "0")),
        ("top_n_sigma", -2.0),
        *(("repetition_penalty", value) for value in (-1.0, 0.001, "0", False)),
        ("presence_penalty", math.inf),
        ("penalty_last_n", -1),
        ("dry_base", 0.9),
        ("dry_allowed_length", 0),
        ("min_tokens", -1),
    ],
)
def test_values_outside_their_range_are_refused(name, value):
    """With the value in the message and the range in the hint."""
    shown = repr(value[0] if isinstance(value, tuple) else value)
    with pytest.raises(OptionError, match=re.escape(shown)) as caught:
        SamplingParams(**{name: value})
    assert "Choose" in caught.value.hint


@pytest.mark.parametrize("name", ["repetition_penalty", "typical_p"])
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_0_is_off_where_many_clients_mean_that_by_it(name, zero):
    assert SamplingParams(**{name: zero}) == SamplingParams(**{name: 1.0}) == SamplingParams()


@pytest.mark.parametrize(
    "bias", [{-1: 1.0}, {1.5: 1.0}, {"x": 1.0}, {1: math.nan}, {1: 1e30}, {1: "much"}]
)
def test_a_bias_that_is_none_is_refused(bias):
    ((token, value),) = bias.items()
    shown = f"token {token!r} is {value!r}"
    with pytest.raises(OptionError, match=re.escape(shown)) as caught:
        SamplingParams(logit_bias=bias)
    assert "-inf" in caught.value.hint


def test_breakers_are_texts_not_one_text():
    with pytest.raises(OptionError, match="the text 'abc'"):
        SamplingParams(dry_sequence_breakers="abc")


def test_params_do_not_change_behind_the_callers_back():
    """Nor can a mapping that was handed in change them; keys of JSON are ids, too."""
    bias = {"5": -math.inf, 7: 2}
    params = SamplingParams(logit_bias=bias)
    bias[9] = 1.0
    assert params.logit_bias == {5: -math.inf, 7: 2.0}
    assert params == SamplingParams(logit_bias={5: -math.inf, 7: 2.0})
    assert hash(params) == hash(SamplingParams())


def test_changes_by_name():
    """As a preset's table or a command line gives them."""
    params = SamplingParams(top_k=10).changed({"temperature": 0.5, "min_p": 0.0})
    assert params == SamplingParams(top_k=10, temperature=0.5, min_p=0.0)
    with pytest.raises(OptionError, match="temprature is not a sampling option") as caught:
        params.changed({"temprature": 1.0})
    assert "temperature" in caught.value.hint


@pytest.mark.parametrize(
    "name",
    ["xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "adaptive_target"],
)
def test_samplers_that_are_no_distribution_of_a_row_are_refused(name):
    """With the reason, since llama.cpp has them."""
    with pytest.raises(OptionError, match=f"{name} cannot be set: .* no draft"):
        SamplingParams().changed({name: 1.0})
