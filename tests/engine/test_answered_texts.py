"""Which of the texts that were answered last a prompt continues."""

from __future__ import annotations

from localspec.engine.answered_texts import AnsweredTexts
from localspec.speculative.metrics import Provenance
from localspec.streaming.reply import Piece


def text_of(texts, prompt, answer):
    """The text of a prompt, once its answer was read."""
    text = texts.text_for(prompt, "", None)
    text.end([Piece("", tuple(answer), Provenance.PLAIN)])
    return text


def test_which_text_a_prompt_goes_on_with():
    prefixes = AnsweredTexts()
    system, asking = list(range(1000)), [7, 8]
    first, answer = [*system, 1, 2, 3, *asking], [4] * 100
    main = text_of(prefixes, first, answer)
    assert text_of(prefixes, first, answer) is main  # once more
    second = [*first, *answer, 5, 6, *asking]
    assert text_of(prefixes, second, answer) is main
    side = text_of(prefixes, [*system, *[9] * 50], answer)
    assert side is not main  # though they share most
    third = [*second, *answer, 11, *asking]
    assert text_of(prefixes, third, answer) is main
    # Without its thoughts, and asked for in another way.
    fourth = [*third[:-2], 4, 4, 12, *asking]
    assert text_of(prefixes, fourth, answer) is main
    assert prefixes.text_for([*system, *[9] * 50, *answer, 1], "", None) is side
    for number in range(5000, 5100):
        text_of(prefixes, [number] * 20, answer)
    assert prefixes.text_for([*fourth, *answer, 1], "", None) is not main


def test_a_text_is_found_by_the_prompt_that_continues_it():
    """Of the same client, and while it is not being answered; a side question has its own."""
    texts = AnsweredTexts()
    first = texts.text_for(list(range(100)), "a", None)
    assert texts.text_for(list(range(100)), "a", None) is not first  # which is being answered
    first.end([])
    assert texts.text_for(list(range(120)), "b", None) is not first
    assert texts.text_for(list(range(40)), "a", None) is not first
    assert texts.text_for(list(range(120)), "a", None) is first


def test_a_text_that_grows_within_is_one_text():
    """While a person types, only its first tokens stay."""
    texts = AnsweredTexts()
    before, after = list(range(50)), [900, 901]
    first = texts.text_for([*before, *after], "", len(before))
    first.end([])
    for number in range(3):
        before.append(100 + number)
        again = texts.text_for([*before, *after], "", len(before))
        assert again is first
        again.end([])
