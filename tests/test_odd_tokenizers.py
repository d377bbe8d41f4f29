"""Drafts whose tokenizers do odd things with a text: they read its very bytes, or rest."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_translated import Pieces, bytes_of, translated

from localspec.speculative.policy_api import DraftOff
from toy import TableModel

SINGLES = [bytes([byte]) for byte in range(256)]
WORDS = ["ab", " a", "the", " the", "The", " THE", "ß", "é", "e\u0301", "日", "日本", "😀"]
WORDS += [".\n", "\n\n", "  ", " 12", "1", "ﬁ", "fi"]
PARTS = [*WORDS, " ", "  ", "\t", "\u00a0", "\u200d", "\ufffd", "<turn>", "İ", "ᄀ\u1161"]


@dataclass
class Odd(Pieces):
    """Does something with a text before it is cut into tokens."""

    of_text: Callable[[str], str] = str
    reads_backwards: bool = False
    unknown: int = -1  # what a character becomes that is no token

    def tokenize(self, text: str, *, parse_special: bool, after: int) -> list[int]:
        text = self.of_text(text)
        if self.unknown >= 0:
            ids = {piece: token for token, piece in enumerate(self.pieces)}
            return [ids.get(character.encode(), self.unknown) for character in text]
        if not self.reads_backwards:
            return super().tokenize(text, parse_special=parse_special, after=after)
        turned = replace(self, reads_backwards=False, of_text=str)
        turned.pieces = [piece[::-1] for piece in self.pieces]
        data, ids = text.encode()[::-1], []
        while data:
            ids.append(
                max(
                    (i for i in range(self.size) if i not in self.controls),
                    key=lambda i: len(turned.pieces[i]) * data.startswith(turned.pieces[i]),
                )
            )
            data = data[max(1, len(turned.pieces[ids[-1]])) :]
        return ids[::-1]


ODD: dict[str, Callable[[list[bytes]], Odd]] = {
    "adds a space": lambda p: Odd(p, (0, 1), of_text=lambda text: f" {text}"),
    "composes": lambda p: Odd(p, (0, 1), of_text=lambda t: unicodedata.normalize("NFKC", t)),
    "lowers": lambda p: Odd(p, (0, 1), of_text=str.lower),
    "drops spaces": lambda p: Odd(p, (0, 1), of_text=lambda text: text.replace(" ", "")),
    "says nothing": lambda p: Odd(p, (0, 1), of_text=lambda _text: ""),
    "reads backwards": lambda p: Odd(p, (0, 1), reads_backwards=True),
    "knows characters": lambda p: Odd(p, (0, 1), unknown=0),
}

byte_lists = st.lists(
    st.sampled_from([b" ", b"\n", b"a", b"\xc3", b"\xe6", b"\x80"]), max_size=2
)
edits = st.lists(
    st.one_of(
        st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join),
        st.lists(st.integers(0, 1000), min_size=1, max_size=3),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("kind", ODD)
@given(words=st.sets(st.sampled_from(WORDS)), lost=byte_lists, edits=edits)
def test_an_odd_tokenizer_reads_the_very_bytes_or_rests(kind, words, lost, edits):
    """Texts that grow by characters and by any tokens, and are cut anywhere."""
    target = Pieces([b"<turn>", b"</s>", *SINGLES, *(word.encode() for word in WORDS)], (0, 1))
    more = sorted(word.encode() for word in words)
    kept = [one for one in SINGLES if one not in lost]
    own = ODD[kind]([b"<unk>", b"<turn>", *kept, *more])
    table = TableModel(own.size, seed=1, context_length=4000)
    draft = translated(target, own, table)
    text = [2 + ord("a")]
    for edit in edits:
        if isinstance(edit, int):
            del text[max(1, len(text) - edit) :]
            draft.truncate(len(text))
        elif isinstance(edit, str):
            text += target.tokenize(edit, parse_special=False, after=99)
        else:
            text += [number % target.size for number in edit]
        state = draft.state(text)
        if state.max_tokens <= 0:
            assert state.draft_off is DraftOff.TOKEN_UNKNOWN_TO_DRAFT
            assert any(byte in bytes_of(target, text) for byte in lost)
            continue
        draft.rows(text, 1)
        assert draft.model.num_cached == len(text)
        assert b"".join(own.pieces[token] for token in table.cached) == bytes_of(target, text)
