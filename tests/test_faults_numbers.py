"""The campaign's class "numbers": it notices what is planted, and loses nothing otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from fault_classes import numbers

import localspec
from localspec.sampling import chain, filters
from localspec.sampling.params import SamplingParams
from localspec.speculative import rules, verify

EACH = {"_try_settings": 400, "_try_row": 300, "_try_answer": 120}


def lost(name: str, count: int) -> list[str]:
    attempt = getattr(numbers, name)
    found = (numbers.tried(attempt, 3, number) for number in range(count))
    return [each for each in found if each]


@pytest.mark.parametrize("name", EACH)
def test_nothing_is_lost(name):
    assert lost(name, EACH[name]) == []


@pytest.mark.parametrize("number", [209, 802, 928, 2216, 4373, 5433, 7459, 8338])
def test_rows_without_numbers_that_no_token_needs_end_no_answer(number):
    """Of the target behind a refused token, and of a draft; each was lost before."""
    *_, answers = EACH
    assert numbers.tried(getattr(numbers, answers), 7, number) == ""


def test_a_number_that_is_taken_unchecked_is_noticed(monkeypatch):
    monkeypatch.setattr(SamplingParams, "__post_init__", lambda _params: None)
    assert lost("_try_settings", 400)


def test_a_cut_that_keeps_what_is_banned_is_noticed(monkeypatch):
    monkeypatch.setattr(chain, "filtered_distribution", _flat)
    assert any("banned" in each for each in lost("_try_row", 300))


def _flat(row, _params):
    return filters.Distribution(np.arange(len(row)), np.full(len(row), 1.0 / len(row)))


def test_probabilities_that_are_none_are_noticed(monkeypatch):
    def heavier(row, params):
        ids, probs = filters.filtered_distribution(row, params)
        return filters.Distribution(ids, probs * 1.01)

    monkeypatch.setattr(chain, "filtered_distribution", heavier)
    assert any("whose sum is" in each for each in lost("_try_row", 300))


def test_a_rule_that_draws_a_token_without_probability_is_noticed(monkeypatch):
    def last(targets, draft_tokens, choose):
        return verify.Verdict(0, choose(0, targets[0]) ^ 1)

    monkeypatch.setattr(rules.verify, "match", last)
    assert lost("_try_answer", 120)


@pytest.mark.parametrize("context_length", [1, 2, 3])
def test_contexts_of_a_few_tokens(unrelated_draft, context_length):
    """With more drafted than there is room for: as many tokens as fit, or an error in words."""
    given = {"target": unrelated_draft, "draft": unrelated_draft, "draft_tokens": 16}
    with localspec.load(**given, context_length=context_length, num_threads=1) as engine:
        answer = engine.generate_raw([5], max_tokens=9, seed=1)
        if context_length == 1:
            with pytest.raises(localspec.ContextError, match="the context holds 1"):
                answer.reply()
        else:
            assert len(answer.reply().token_ids) == context_length - 1
