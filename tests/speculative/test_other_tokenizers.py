"""What two vocabularies share: tokens by tokens, and pairs of files whose tokenizers differ."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import localspec
from command_line import run
from gguf_maker import write_random_model, write_spm_model
from localspec.errors import PairError
from localspec.presets.local_models import search_folder
from localspec.speculative.shared_vocabulary import shared_vocabulary


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A small model of another tokenizer than the demo pair's."""
    return write_spm_model(tmp_path_factory.mktemp("other") / "other.gguf")


def test_another_tokenizer_is_refused_with_what_differs_before_and_at_the_load(
    demo_target, other
):
    why = "the draft does not fit the target: their tokenizers are of different types (2, 1)"
    with pytest.raises(PairError) as caught:
        localspec.load(target=demo_target, draft=other)
    assert str(caught.value).startswith(why)
    assert 'proposer="lookup"' in caught.value.hint
    told = run("explain", "--target", str(demo_target), "--draft", str(other))
    assert (told.exit_code, "NO PAIR" in told.stdout) == (1, True)
    assert why in told.stdout.replace("\n           ", " ")


@pytest.mark.process
@pytest.mark.parametrize("kind", ["load", "IsolatedEngine"])
def test_its_error_is_all_that_is_printed(tmp_path, demo_target, other, kind):
    """At the interpreter's end, too, where the traceback still keeps what was half made."""
    path = tmp_path / "script.py"
    path.write_text(
        "if __name__ == '__main__':\n"
        "    import localspec\n"
        f"    localspec.{kind}(target={str(demo_target)!r}, draft={str(other)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-2:]  # its hint is a note, from Python 3.11 on
    assert any(line.startswith("localspec.errors.PairError: the draft") for line in last)
    assert done.stderr.count("Traceback") == 1


@pytest.mark.usefixtures("own_config")
def test_import_gives_no_draft_of_another_tokenizer(tmp_path, demo_target, other):
    shutil.copy(other, tmp_path / "other.gguf")
    write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    named = {one.name: one for one in search_folder(tmp_path).proposals}
    assert named["large"].draft is None
    assert named["large"].why_no_draft == "no smaller model here has its tokenizer"
    write_random_model(tmp_path / "same.gguf", demo_target, width=64)
    named = {one.name: one for one in search_folder(tmp_path).proposals}
    assert named["large"].draft == tmp_path / "same.gguf"


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
