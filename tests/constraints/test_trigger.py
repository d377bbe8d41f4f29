"""A trigger of common letters: the same masks, asked for once, and a cancellation is heard."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import inside
import localspec
from localspec.constraints.after_boundary import AfterBoundary, Start, Trigger
from localspec.constraints.spelling import Spelling
from localspec.errors import Interrupted, OptionError
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt
from toy_constraint import ToyConstraint, ToyVocabulary

TEXTS = ["a", "b", "c", "ab", "ba", "cab", "abc", "bca", "aab", "caba", "cc", ""]
END = len(TEXTS) - 1
LETTERS = {"b": 1, "c": 2}


class CountingConstraint(ToyConstraint):
    """Allows b, then b and c in turn; counts what it is asked."""

    num_asked = 0

    def validate(self, tokens):
        type(self).num_asked += 1
        return super().validate(tokens)


def allowed(history):
    return {LETTERS["b"]} if len(history) % 2 == 0 else {LETTERS["c"], END}


def free_until(triggers, is_cancelled=lambda: False):
    spelling = Spelling(ToyVocabulary(TEXTS, END), len(TEXTS))
    inner = CountingConstraint(len(TEXTS), allowed, END)
    start = Start(None, frozenset(), may_end=True)
    boundary = Trigger(triggers)
    crossing = spelling.crossing(triggers)
    return AfterBoundary(inner, boundary, spelling, crossing, start, is_cancelled)


def may_come(said, token, triggers):
    """The definition: what stands behind the first trigger begins with b, then c, then b."""
    text = said + TEXTS[token]
    ends = [text.find(each) + len(each) for each in triggers if each in text]
    behind = text[min(ends) :] if ends else ""
    return all(letter == "bc"[index % 2] for index, letter in enumerate(behind))


@pytest.mark.parametrize("triggers", [("a",), ("ab",), ("aab", "bb"), ("caba", "cc"), ("ccc",)])
def test_the_mask_in_the_free_part_is_the_definition_s(triggers):
    for said in itertools.product(range(3), repeat=4):
        state = free_until(triggers)
        text = ""
        for token in said:
            text += TEXTS[token]
            state.commit([token])
            if any(each in text for each in triggers):
                break
            mask = state.mask()
            for each in range(END):
                expected = may_come(text, each, triggers)
                assert (mask is None or bool(mask[each])) == expected, (text, TEXTS[each])
                assert (state.validate([each]) == 1) == expected


def test_what_stays_the_same_is_asked_for_once():
    state = free_until(("a",))
    first = state.mask()
    asked = CountingConstraint.num_asked
    assert asked > 0
    for token in (1, 2, 1, 1):
        state.commit([token])
        again = state.copy().mask()
        assert np.array_equal(again, first)
        again[:] = False  # it is the caller's
    assert CountingConstraint.num_asked == asked


def test_what_is_held_is_only_what_may_begin_a_trigger():
    trigger = Trigger(("hello there", "hence"))
    for text, partial in (
        ("He said", ""),
        (" he", "he"),
        ("n", "hen"),
        ("x", ""),
        ("hehe", "he"),
    ):
        assert trigger.push(text) is None
        assert trigger.partial_boundary == partial
    assert trigger.copy().push("nce, hello there") == ", hello there"
    assert trigger.partial_boundary == "he"


def test_a_cancellation_is_heard_within_a_mask():
    asked = iter([False, False, True])
    state = free_until(("a",), lambda: next(asked))
    with pytest.raises(Interrupted):
        state.mask()


def test_an_answer_s_cancellation_reaches_its_constraint(demo_target):
    options = AnswerOptions(regex="[a-z]+", trigger="a")
    with localspec.load(target=demo_target) as engine:
        constraint = inside.constraint(engine, options, Prompt([1]), lambda: True)
        with pytest.raises(Interrupted):
            constraint.mask()


def test_triggers_are_bounded():
    with pytest.raises(OptionError, match="65 triggers are given; the limit is 64"):
        AnswerOptions(regex="a", trigger=[f"t{number}" for number in range(65)])
