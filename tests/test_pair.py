"""Target and draft have to speak the same tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from localspec.errors import PairError
from localspec.pair import shared_vocab_size


@dataclass
class Words:
    texts: list[bytes] = field(default_factory=lambda: [b"a", b"b", b"c", b"d"])
    kind: int = 2
    bos: int = 0
    add_bos: bool = False

    @property
    def size(self) -> int:
        return len(self.texts)

    def entries(self) -> list[bytes]:
        return self.texts


def test_equal_vocabularies_share_everything():
    assert shared_vocab_size(Words(), Words()) == 4


@pytest.mark.parametrize("longer_is_draft", [True, False])
def test_padding_is_not_shared(longer_is_draft):
    padded = Words([b"a", b"b", b"c", b"d", b"[PAD4]", b"[PAD5]"])
    pair = (Words(), padded) if longer_is_draft else (padded, Words())
    assert shared_vocab_size(*pair) == 4


def test_the_first_tokens_that_differ_are_shown():
    with pytest.raises(PairError, match=r"2 of 4 tokens differ: 1 is b'b' and b'x', 3 is"):
        shared_vocab_size(Words(), Words([b"a", b"x", b"c", b"y"]))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Words(kind=1), "different types"),
        (Words(add_bos=True), "begin a text"),
    ],
)
def test_other_tokenizers_are_refused(draft, message):
    with pytest.raises(PairError, match=message):
        shared_vocab_size(Words(), draft)


def test_an_unused_bos_may_differ():
    assert shared_vocab_size(Words(bos=0), Words(bos=3)) == 4
