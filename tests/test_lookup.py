"""Prompt lookup: against a search of the whole text, at every step and after every cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.lookup import Lookup
from localspec.speculative.policy_api import (
    DraftOff,
    FixedDraftPolicy,
    PolicyContext,
    ProposerState,
    UpTo,
)
from toy_constraint import ToyConstraint


def never(_token: int) -> bool:
    return False


def proposed(lookup: Lookup, text: list[int], num_tokens: int) -> list[int]:
    state = lookup.state(text)
    decision = FixedDraftPolicy(num_tokens).choose(PolicyContext(len(text), 16, 99, (state,)))
    if decision.extent is None:
        return []
    chain = SamplerChain(SamplingParams(), num_prompt_tokens=1)
    proposal = lookup.propose(
        text, decision.extent, chain, lambda _index, distribution: distribution.draw(0.5)
    )
    for token, distribution in zip(proposal.draft_tokens, proposal.distributions, strict=True):
        assert distribution.prob(token) == 1.0
    assert len(proposal.confidences) == len(proposal.draft_tokens)
    return proposal.draft_tokens


def longest_match(text: list[int]) -> int:
    """Tokens at the end of the text that stood somewhere before, with something after."""
    return max(
        (
            length
            for length in range(len(text))
            if length >= 2
            and any(
                text[i : i + length] == text[len(text) - length :]
                for i in range(len(text) - length)
            )
        ),
        default=0,
    )


def followers(text: list[int], end: list[int], length: int) -> list[int]:
    """What followed the last `length` tokens of `end` where they stand in the text."""
    return [
        text[i + length]
        for i in range(len(text) - length)
        if text[i : i + length] == end[len(end) - length :]
    ]


@settings(deadline=None)
@given(
    text=st.lists(st.integers(0, 3), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_it_finds_a_longest_match_however_the_text_came_about(text, cuts):
    """Growing at once or token by token, cut back in between; the index is that of the text."""
    lookup = Lookup(never)
    for cut in cuts:
        lookup.state(text)
        lookup.truncate(min(cut, len(text)))
    state = lookup.state(text)
    length = longest_match(text)
    if length == 0:
        assert state == ProposerState(0, draft_off=DraftOff.NOTHING_REPEATS)
    else:
        after = followers(text, text, length)
        assert len(after) > 8 or proposed(lookup, text, 1)[0] in after
    fresh = Lookup(never)
    assert fresh.state(text) == state
    assert proposed(fresh, text, 8) == proposed(lookup, text, 8)


@pytest.mark.parametrize("place", range(12))
def test_an_interrupt_leaves_an_index_of_the_text(place):
    """Ctrl-C can come anywhere."""
    text = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]

    class Interrupting(list):
        def __getitem__(self, index):
            return Interrupting(super().__getitem__(index))

        def __iter__(self):
            for number, token in enumerate(super().__iter__()):
                if number == place:
                    raise KeyboardInterrupt
                yield token

    lookup = Lookup(never)
    with pytest.raises(KeyboardInterrupt):
        lookup.state(Interrupting(text))
    lookup.truncate(place)
    assert lookup.state(text) == Lookup(never).state(text)
    lookup.truncate(2)
    assert lookup.state(text) == Lookup(never).state(text)


@settings(deadline=None)
@given(
    reference=st.lists(st.integers(0, 3), max_size=30),
    text=st.lists(st.integers(0, 3), max_size=12),
)
def test_a_reference_is_looked_up_beside_the_text(reference, text):
    """Its longest match wins where the text has none as long; nothing comes after its end."""
    lookup = Lookup(never)
    lookup.refer_to(reference)
    found = proposed(lookup, text, 4)
    of_text = longest_match(text)
    of_reference = max(
        (
            length
            for length in range(2, len(text) + 1)
            if any(
                reference[i : i + length] == text[len(text) - length :]
                for i in range(len(reference) - length)
            )
        ),
        default=0,
    )
    if max(of_text, of_reference) == 0:
        assert found == []
    elif of_reference > of_text and len(reference) <= 8:  # so that all places are compared
        joined = [*text[len(text) - of_reference :], *found]
        assert any(
            reference[i : i + len(joined)] == joined
            and (len(found) == 4 or i + len(joined) == len(reference))
            for i in range(len(reference))
        )
    lookup.refer_to([])
    assert proposed(lookup, text, 4) == proposed(Lookup(never), text, 4)


def test_it_proposes_what_followed_the_longest_match():
    text = [1, 2, 3, 4, 9, 2, 3, 5, 6, 1, 2, 3]
    assert proposed(Lookup(never), text, 3) == [4, 9, 2]


def test_a_period_goes_on_beyond_the_end_of_the_text():
    assert proposed(Lookup(never), [7, 8, 9, 7, 8, 9, 7, 8, 9], 8) == [7, 8, 9, 7, 8, 9, 7, 8]


def test_nothing_is_proposed_behind_an_end_token():
    lookup = Lookup(lambda token: token == 4)
    assert proposed(lookup, [1, 2, 3, 4, 5, 1, 2, 3], 8) == [4]


def test_a_new_text_is_told_that_nothing_repeats():
    assert proposed(Lookup(never), [1, 2, 3, 4], 8) == []


def test_nothing_is_proposed_behind_a_forbidden_token():
    """It would be decoded for nothing; the forbidden one itself is judged like any other."""
    text = [1, 2, 3, 4, 5, 1, 2, 3]
    constraint = ToyConstraint(9, lambda history: {7} if history else {4}, None)
    chain = SamplerChain(SamplingParams(), num_prompt_tokens=len(text), constraint=constraint)
    lookup = Lookup(never)
    lookup.state(text)
    proposal = lookup.propose(text, UpTo(8), chain, lambda _, row: row.draw(0.5))
    assert proposal.draft_tokens == [4, 5]


def follow(lookup: Lookup, text: list[int], begin: int) -> None:
    """Let it see the text grow token by token, as an answer does."""
    for length in range(begin, len(text) + 1):
        lookup.state(text[:length])


SOURCE = list(range(100, 140))


@pytest.mark.parametrize("replaced", [[7], [7, 8, 9], []], ids=["one", "more", "less"])
def test_behind_a_replacement_what_was_followed_goes_on(replaced):
    """One token that agrees is enough near there, though it stood elsewhere since."""
    decoy = [5, 112, 6, 5, 112, 6]
    text = [*SOURCE, *decoy, *SOURCE[:10], *replaced, 112]
    lookup = Lookup(never)
    follow(lookup, text, len(SOURCE))
    assert proposed(lookup, text, 4) == [113, 114, 115, 116]
    # Without having followed anything, one token says nothing.
    assert proposed(Lookup(never), text, 4) == []


def test_a_longer_match_elsewhere_wins_over_resuming():
    text = [*SOURCE, 7, 112, 8, 9, *SOURCE[:10], 7, 112]
    lookup = Lookup(never)
    follow(lookup, text, len(SOURCE))
    assert proposed(lookup, text, 2) == [8, 9]


@pytest.mark.parametrize(("num_others", "found"), [(20, True), (30, False)])
def test_nothing_is_resumed_long_after(num_others, found):
    text = [*SOURCE, *SOURCE[:10], *range(1, num_others), 125]
    lookup = Lookup(never)
    follow(lookup, text, len(SOURCE))
    assert (proposed(lookup, text, 1) == [126]) is found


def test_a_cut_text_resumes_nothing():
    text = [*SOURCE, *SOURCE[:10], 7, 112]
    lookup = Lookup(never)
    follow(lookup, text[:-2], len(SOURCE))
    lookup.truncate(len(text) - 4)
    assert proposed(lookup, text, 1) == []


def test_resuming_is_surer_than_a_match_as_short_elsewhere():
    text = [*SOURCE, *SOURCE[:10], 7, 112, 113]
    lookup = Lookup(never)
    follow(lookup, text, len(SOURCE))
    resumed, elsewhere = lookup.state(text), Lookup(never).state(text)
    assert resumed.confidence is not None
    assert elsewhere.confidence is not None
    assert resumed.confidence > elsewhere.confidence
