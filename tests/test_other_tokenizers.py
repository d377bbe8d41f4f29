"""What two vocabularies share: tokens by tokens, and pairs of files whose tokenizers differ."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from command_line import run

import localspec
from gguf_maker import write_random_model, write_renumbered, write_spm_model
from localspec.errors import PairError
from localspec.gguf_file.check import check_model_file
from localspec.presets.folder_import import search_folder
from localspec.presets.pairing import compare_vocabularies, have_one_tokenizer
from localspec.speculative.shared_vocabulary import shared_vocabulary


@pytest.fixture(scope="module")
def drafts(tmp_path_factory, demo_draft) -> dict[str, Path]:
    """The demo pair's draft with other ids, of another kind, and without some words."""
    folder = tmp_path_factory.mktemp("drafts")
    return {
        "ids": write_renumbered(folder / "ids.gguf", demo_draft),
        "spm": write_renumbered(folder / "spm.gguf", demo_draft, sentencepiece=True),
        "lost": write_renumbered(folder / "lost.gguf", demo_draft, num_lost=900),
        "random": write_spm_model(folder / "random.gguf"),
    }


def test_what_headers_say_is_what_the_models_have_and_a_load_logs(demo_target, drafts, caplog):
    caplog.set_level(logging.INFO)
    target = check_model_file(demo_target)
    for name, draft in drafts.items():
        found = compare_vocabularies(target, check_model_file(draft))
        assert not have_one_tokenizer(target, check_model_file(draft))
        with localspec.load(target=demo_target, draft=draft) as engine:
            assert engine.shared_vocabulary == found, name
        assert f"{draft.name} and its target have {found}" in caplog.text


def test_explain_says_what_two_tokenizers_have_in_common(demo_target, drafts):
    options = ["explain", "--target", str(demo_target), "--draft", str(drafts["lost"])]
    told = run(*options)
    assert told.exit_code == 0
    assert "Tokens     other tokenizers, 3196 tokens in common: 78% of the" in told.stdout
    assert "NO PAIR" not in told.stdout
    found = json.loads(run(*options, "--json").stdout)
    assert found["vocabulary"] == {"number": 3196, "target_size": 4096, "draft_size": 4096}


@pytest.mark.usefixtures("own_config")
def test_import_takes_another_tokenizer_only_where_no_model_has_the_same(
    tmp_path, demo_target, drafts
):
    shutil.copy(drafts["random"], tmp_path / "other.gguf")
    write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    named = {one.name: one for one in search_folder(tmp_path).proposals}
    assert named["large"].draft == tmp_path / "other.gguf"
    assert named["other"].draft is None
    shown = run("models", "import", tmp_path).stderr
    assert "other.gguf (other tokenizers, " in shown
    write_random_model(tmp_path / "same.gguf", demo_target, width=64)
    named = {one.name: one for one in search_folder(tmp_path).proposals}
    assert (named["large"].draft, named["large"].common) == (tmp_path / "same.gguf", None)
    assert run("models", "import", tmp_path, "--yes").exit_code == 0


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
