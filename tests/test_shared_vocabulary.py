"""Target and draft have to speak the same tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from localspec.errors import PairError
from localspec.speculative.shared_vocabulary import shared_vocabulary


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
    shared = shared_vocabulary(Words(), Words())
    assert (shared.size, shared.differences, str(shared)) == (4, (), "4 tokens shared")


@pytest.mark.parametrize("longer_is_draft", [True, False])
def test_padding_is_not_shared(longer_is_draft):
    padded = Words([b"a", b"b", b"c", b"d", b"[PAD4]", b"[PAD5]"])
    pair = (Words(), padded) if longer_is_draft else (padded, Words())
    shared = shared_vocabulary(*pair)
    assert (shared.size, shared.differences) == (4, ())
    assert "4 tokens shared; " in str(shared)


def test_the_first_tokens_that_differ_are_shown():
    with pytest.raises(PairError, match=r"2 of 4 tokens differ: 1 is b'b' and b'x', 3 is"):
        shared_vocabulary(Words(), Words([b"a", b"x", b"c", b"y"]))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Words(kind=1), "different types"),
        (Words(add_bos=True), "begin a text"),
    ],
)
def test_other_tokenizers_are_refused(draft, message):
    with pytest.raises(PairError, match=message):
        shared_vocabulary(Words(), draft)


def test_an_unused_bos_may_differ():
    assert shared_vocabulary(Words(bos=0), Words(bos=3)).size == 4


def test_a_few_renamed_tokens_are_left_out_and_named():
    words = [str(n).encode() for n in range(1000)]
    renamed = [b"<|end|>" if n == 7 else text for n, text in enumerate(words)]
    shared = shared_vocabulary(Words(words), Words(renamed))
    assert [d.token for d in shared.differences] == [7]
    assert str(shared) == "999 tokens shared; 1 differ: 7 is b'7' and b'<|end|>'"
