"""The index of runs of tokens, against a search of the whole text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.speculative.ngram_index import NUM_COMPARED, SIZES, NgramIndex, run_hashes

TOKENS = st.lists(st.integers(0, 2), max_size=60)


def found_in(index: NgramIndex, end: list[int]) -> list[list[int]]:
    """For each size, where the last tokens of `end` are."""
    runs = NgramIndex()
    runs.read(end)
    return [
        index.ends(level, hash_, runs.text[-SIZES[level] :])
        for level, hash_ in enumerate(run_hashes(end))
    ]


def searched(text: list[int], end: list[int]) -> list[list[int]]:
    return [
        [i for i in range(len(text) - 1, size - 1, -1) if text[i - size : i] == end[-size:]]
        for size in SIZES
        if len(end) >= size
    ]


@settings(deadline=None)
@given(texts=st.lists(st.tuples(TOKENS, st.integers(0, 200), st.booleans()), max_size=5))
def test_it_finds_the_latest_places_of_a_run_however_the_text_came_about(texts):
    """Read at once or token by token, cut back in between, and read on."""
    index, text = NgramIndex(), []
    for new, cut, at_once in texts:
        for part in [new] if at_once else [[token] for token in new]:
            index.read(part)
        text = [*text, *new][:cut]
        index.truncate(cut)
        assert list(index.text) == text
        for found, there in zip(found_in(index, text), searched(text, text), strict=True):
            # Another run of the same hash may take one of the few places that are compared.
            assert found == there[: len(found)]
            assert len(found) == min(len(there), NUM_COMPARED)


def test_a_long_text_is_indexed_in_parts_as_it_is_at_once():
    """Its tables grow several times, and many tokens are linked together."""
    text = np.random.default_rng(3).integers(0, 6, 5000).tolist()
    at_once, in_parts = NgramIndex(), NgramIndex()
    at_once.read(text)
    for begin in range(0, 5000, 7):
        in_parts.read(text[begin : begin + 7])
    ends = [text[at - 20 : at] for at in range(20, 5000, 101)]
    for end in ends:
        assert found_in(at_once, end)[2] == searched(text, end)[2][:NUM_COMPARED]
        assert found_in(in_parts, end) == found_in(at_once, end)
    at_once.truncate(2500)
    for end in ends:
        assert found_in(at_once, end)[2] == searched(text[:2500], end)[2][:NUM_COMPARED]


@settings(deadline=None)
@given(text=st.lists(st.integers(0, 1), max_size=80), other=st.lists(st.integers(0, 1)))
def test_it_says_which_long_runs_are_known(text, other):
    index, size = NgramIndex(), SIZES[-1]
    index.read(text)
    there = {tuple(text[i - size : i]) for i in range(size, len(text) + 1)}
    expected = [tuple(other[max(i - size, 0) : i]) in there for i in range(1, len(other) + 1)]
    assert index.known(np.array(other, np.int32)).tolist() == expected


def test_it_says_so_also_behind_a_change_that_ended_half_way(monkeypatch):
    """As by a signal handler's exception, behind which an answer is remembered."""
    index, text = NgramIndex(), list(range(40)) * 2
    index.read(text)
    expected = index.known(np.array(text, np.int32))
    with monkeypatch.context() as patch:
        patch.setattr(np, "append", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index.read(list(range(500)))
    index.truncate(len(text))
    with monkeypatch.context() as patch:
        patch.setattr(np, "append", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index.read(list(range(500)))
    assert (index.known(np.array(text, np.int32)) == expected).all()


def test_a_million_tokens_take_forty_bytes_each_at_most():
    index = NgramIndex()
    index.read(np.random.default_rng(0).integers(0, 50_000, 1_000_000).tolist())
    assert index.num_bytes <= 40 * 1_000_000
