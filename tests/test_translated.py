"""A draft with another tokenizer: exact laws, and the same bytes in the tokens of both."""

from __future__ import annotations

import functools
import random
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from localspec.errors import PairError
from localspec.sampling.chain import SamplerChain
from localspec.speculative.own_text import OwnText, TokenMaps
from localspec.speculative.policy_api import DraftOff, FixedDraftPolicy, UpTo
from localspec.speculative.shared_vocabulary import common_tokens
from localspec.speculative.translated import TranslatedDraft, TranslatedModel
from test_loop_distribution import (
    FILTERED,
    PENALISED,
    UNFILTERED,
    Case,
    Unsure,
    assert_targets_distribution,
    automatic,
)
from toy import TableModel


@dataclass
class Pieces:
    """A vocabulary of byte strings; text becomes the longest that match, from the left."""

    pieces: list[bytes]
    controls: tuple[int, ...] = ()
    eos: int = -1
    bos: int = -1
    add_bos: bool = False
    kind: int = 2
    of_text: Callable[[str], str] = str  # what a text becomes before it is cut into tokens
    unknown: int = -1  # what a character becomes that is no token by itself

    @property
    def size(self) -> int:
        return len(self.pieces)

    def spelled_out(self) -> list[bytes]:
        return list(self.pieces)

    def control_ids(self) -> list[int]:
        return list(self.controls)

    def tokenize(self, text: str, *, parse_special: bool, after: int) -> list[int]:
        assert not parse_special
        assert after not in self.controls
        text = self.of_text(text)
        if self.unknown >= 0:
            singles = {piece: token for token, piece in enumerate(self.pieces)}
            return [singles.get(character.encode(), self.unknown) for character in text]
        data, ids = text.encode(), []
        by_length = sorted(
            (i for i in range(self.size) if i not in self.controls and self.pieces[i]),
            key=lambda i: -len(self.pieces[i]),
        )
        while data:
            ids.append(next((i for i in by_length if data.startswith(self.pieces[i])), 0))
            data = data[len(self.pieces[ids[-1]]) :]
        return ids


def bytes_of(vocabulary: Pieces, tokens: Sequence[int]) -> bytes:
    return b"".join(vocabulary.pieces[token] for token in tokens)


def translated(
    target: Pieces, draft: Pieces, table: TableModel, is_end=lambda token: False
) -> TranslatedDraft:
    maps = TokenMaps(target, draft)
    return TranslatedDraft(TranslatedModel(table, OwnText(maps, draft)), is_end)


AB = Pieces([b"a", b"b", b"ab"])
OTHER = Pieces([b"ba", b"b", b"aa", b"a"])
WITH_END = Pieces([b"</s>", b"a", b"b"], controls=(0,), eos=0)
OTHER_END = Pieces([b"ba", b"b", b"<end>", b"a"], controls=(2,), eos=2)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    ("pair", "policy", "num_draft_tokens", "max_tokens", "params", "end"),
    [
        pytest.param((AB, OTHER), FixedDraftPolicy, 2, 4, UNFILTERED, None, id="K 2"),
        pytest.param((AB, OTHER), FixedDraftPolicy, 1, 4, UNFILTERED, None, id="K 1"),
        pytest.param((OTHER, AB), FixedDraftPolicy, 2, 3, UNFILTERED, None, id="wider"),
        pytest.param((AB, OTHER), Unsure, 2, 4, UNFILTERED, None, id="stops by its rows"),
        pytest.param((AB, OTHER), automatic, 0, 4, UNFILTERED, None, id="automatic"),
        pytest.param((AB, OTHER), FixedDraftPolicy, 2, 4, FILTERED, None, id="filters"),
        pytest.param((AB, OTHER), FixedDraftPolicy, 2, 4, PENALISED, None, id="penalties"),
        pytest.param(
            (WITH_END, OTHER_END), FixedDraftPolicy, 2, 4, UNFILTERED, 0, id="an end token"
        ),
    ],
)
def test_texts_have_the_targets_distribution(
    rule, pair, policy, num_draft_tokens, max_tokens, params, end
):
    """To 1e-12: a draft whose vocabulary overlaps in part, with rows of its own tokens."""
    target = TableModel(pair[0].size, seed=5, spread=1.0)
    table = TableModel(pair[1].size, seed=99, spread=1.0)
    case = Case(policy, num_draft_tokens, max_tokens, params, end)
    assert_targets_distribution(
        rule, target, translated(*pair, table, lambda token: token == end), case
    )


def test_its_rows_are_the_drafts_under_the_targets_ids():
    table = TableModel(OTHER.size, seed=3)
    draft = translated(AB, OTHER, table)
    text = [0, 2, 0, 1]  # a ab a b: to the draft aa ba b
    assert draft.state(text).max_tokens > 0
    row = draft.rows(text, 1)[0]
    own = table.row([2, 0, 1])
    assert table.cached == [2, 0, 1]
    assert row.tolist() == [own[3], own[1], -np.inf]


def test_what_was_accepted_is_read_on_as_its_own_tokens():
    """Its drafts stay as they are; a word that goes on is read anew."""
    target = Pieces([bytes([byte]) for byte in range(128)])
    own = Pieces([*target.pieces, b" he", b"hel", b" hello", b"lo"])
    table = TableModel(own.size, seed=3)
    draft = translated(target, own, table)

    def read(text: bytes) -> list[bytes]:
        draft.state(list(text))
        draft.rows(list(text), 1)
        return [own.pieces[token] for token in table.cached]

    assert read(b"oh he") == [b"o", b"h", b" he"]
    assert read(b"oh hel") == [b"o", b"h", b" he", b"l"]
    assert read(b"oh hello") == [b"o", b"h", b" hello"]
    draft.truncate(7)
    assert draft.model.num_cached == 2
    assert read(b"oh hell! he") == [b"o", b"h", b" he", b"l", b"l", b"!", b" he"]


class Random:
    """Vocabularies and texts of characters of one to four bytes, drawn with a seed."""

    PARTS = (*"ab \n", "é", "e\u0301", "ß", "日本", "😀", "ab", " a", "  ", ".\n", "\u00a0")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def vocabulary(self, **odd: Any) -> Pieces:
        words = {"".join(self.random.choices(self.PARTS, k=3)).encode() for _ in range(30)}
        cut = {word[: self.random.randint(1, len(word))] for word in sorted(words)}
        singles = [bytes([byte]) for byte in range(256)]
        self.random.shuffle(singles)
        more = sorted((words | cut) - set(singles))
        pieces = [b"<s>", b"<end>", b"<turn>", *singles, *more]
        return Pieces(
            pieces, (0, 1, 2), eos=1, bos=0, add_bos=self.random.random() < 0.5, **odd
        )

    def tokens(self, vocabulary: Pieces, count: int) -> list[int]:
        return self.random.choices(range(vocabulary.size), k=count)


# What tokenizers do with a text.
ODD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "adds a space": {"of_text": " {}".format},
    "composes": {"of_text": functools.partial(unicodedata.normalize, "NFKC")},
    "lowers": {"of_text": str.lower},
    "drops spaces": {"of_text": lambda text: text.replace(" ", "")},
    "says nothing": {"of_text": lambda _text: ""},
    "knows characters": {"unknown": 0},
}


@pytest.mark.parametrize("max_rollback", [None, 0, 2])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("seed", range(3))
def test_both_have_the_same_bytes_however_the_text_grows_and_is_cut(seed, odd, max_rollback):
    """Cuts in the middle of characters and words, control tokens, strays; the model's cache has
    the draft's tokens of what is counted as cached, and never more than a decode was for."""
    drawn = Random(seed)
    target, own = drawn.vocabulary(), drawn.vocabulary(**ODD[odd])
    maps = TokenMaps(target, own)
    table = TableModel(own.size, seed=1, context_length=4000, max_rollback=max_rollback)
    draft = translated(target, own, table)
    text = [0] if target.add_bos else drawn.tokens(target, 1)
    start = [own.bos] if own.add_bos else []
    skipped = re.compile(b"<s>") if target.add_bos else re.compile(b"(?!)")
    for _ in range(120):
        text += drawn.tokens(target, drawn.random.choice([1, 1, 2, 7]))
        assert draft.state(text).max_tokens > 0
        if drawn.random.random() < 0.7:
            most = max(1, min(3, len(text) - draft.model.num_cached))
            draft.rows(text, drawn.random.choice([1, 1, most]))
            assert draft.model.num_cached == len(text)
            assert table.cached[: len(start)] == start
            read = b"".join(own.pieces[token] for token in table.cached[len(start) :])
            assert read == skipped.sub(b"", bytes_of(target, text))
        if drawn.random.random() < 0.5:
            draft.propose(text, UpTo(3), chain(), lambda _, row: int(row.ids[-1]))
        if drawn.random.random() < 0.5:
            del text[drawn.random.randint(max(1, len(text) - 9), len(text)) :]
        draft.truncate(len(text))
        assert draft.model.num_cached <= len(text)
    assert maps.common.number >= 256


def chain():
    return SamplerChain(UNFILTERED, num_prompt_tokens=1)


def test_control_tokens_stay_control_tokens_and_their_names_text():
    target = Pieces([b"<turn>", b"<", b"turn", b">", b"<eos>", b"<own>"], (0, 4, 5), eos=4)
    letters = [bytes([byte]) for byte in range(128)]
    own = Pieces([b"<end>", b"<turn>", *letters], (0, 1), eos=0)
    maps = TokenMaps(target, own)
    text = OwnText(maps, own)
    text.extend([0, 1, 2, 3, 4, 5])
    text.settle()
    spelled = [own.pieces[token] for token in text.own]
    assert spelled[:7] == [b"<turn>", b"<", b"t", b"u", b"r", b"n", b">"]
    assert spelled[7] == b"<end>"  # both end an answer
    assert b"".join(spelled[8:]) == b"<own>"
    assert 0 not in text.own[8:]
    assert maps.to_own[4] == 0


def test_a_text_that_it_cannot_spell_lets_it_rest():
    own = Pieces([b"a", b"b", b"\xc3\xa9"])
    target = Pieces([b"a", b"b", "é".encode(), "ß".encode(), b"ab"])
    draft = translated(target, own, TableModel(own.size))
    assert draft.state([0, 1, 4]).max_tokens > 0
    state = draft.state([0, 1, 4, 3])
    assert (state.max_tokens, state.draft_off) == (0, DraftOff.TOKEN_UNKNOWN_TO_DRAFT)
    draft.truncate(3)
    assert draft.state([0, 1, 4, 0]).max_tokens > 0


def test_too_little_in_common_is_no_pair():
    with pytest.raises(PairError, match="only 1 of their 5 and 6 tokens have the same bytes"):
        common_tokens([b"a", b"b", b"c", b"d", b"e"], [b"a", b"x", b"y", b"z", b"", b""])
    found = common_tokens([b"a", b"b", b"c", b"d"], [b"b", b"a"])
    with pytest.raises(PairError, match="no tokens of single bytes"):
        common_tokens([b"a", b"bc", b"de", b"f"], [b"bc", b"de"])
    assert str(found) == (
        "other tokenizers, 2 tokens in common: 50% of the target's 4, 100% of the draft's 2"
    )


def test_a_replay_judges_by_one_decode_what_it_would_have_proposed():
    """At places where a token of its own ends; it reads the others all the same."""
    table = TableModel(OTHER.size, seed=3)
    draft = translated(AB, OTHER, table)
    text = [0, 1, 1, 1, 0, 1, 2, 0, 1]  # a b b b a b ab a b: to the draft a b b ba ba ba b
    probs = [0.25] * 5
    assert draft.state(text).num_unjudged == 8
    scores = draft.replay(text, probs, chain())
    assert (table.decoded, scores.num_read) == ([[3, 1, 1, 0, 0, 0]], 8)
    assert table.cached == [3, 1, 1, 0, 0, 0]
    expected = []
    alone = translated(AB, OTHER, TableModel(OTHER.size, seed=3))
    for place in range(len(text) - 5, len(text)):
        before = text[:place]
        alone.read_from(0)
        row = alone.rows(before, 1)[0]
        distribution = chain().distribution(row, before)
        expected.append(min(1.0, distribution.prob(text[place]) / 0.25))
    assert [judged for _, judged in scores.chances] == pytest.approx([expected[1], expected[4]])
