"""Pairs of real files whose tokenizers differ: the promise holds, and drafts are accepted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import run

import localspec
from gguf_maker import write_random_model, write_renumbered, write_spm_model
from localspec.gguf_file.check import check_model_file
from localspec.presets.folder_import import search_folder
from localspec.presets.pairing import compare_vocabularies, have_one_tokenizer


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


def test_what_headers_say_is_what_the_models_have_and_a_load_warns_of(
    demo_target, drafts, caplog
):
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
