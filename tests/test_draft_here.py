"""What could draft on this machine for a model that has no draft."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import run
from head_maker import write_head_model

from gguf_maker import write_random_model, write_renumbered, write_spm_model
from localspec.gguf_file.check import check_model_file
from localspec.preflight.explanation import explain

pytestmark = pytest.mark.usefixtures("own_config")


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A small model of another tokenizer."""
    return write_spm_model(tmp_path_factory.mktemp("other") / "other.gguf")


@pytest.fixture
def without_draft(tmp_path, demo_target):
    """A folder with a model that is large beside those of the demo."""
    write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    return tmp_path


def proposed(folder):
    """The model that could draft for that model, as `explain` says in JSON."""
    return json.loads(run("explain", folder / "large.gguf", "--json").stdout)["draft_here"]


def test_a_draft_that_is_here_is_proposed_and_one_with_the_same_tokens_first(
    without_draft, demo_target, other
):
    assert proposed(without_draft) is None  # the demo's draft knows its own topics only
    shutil.copy(other, without_draft)
    found = proposed(without_draft)
    assert found["path"] == str(without_draft / "other.gguf")
    assert found["common"]["number"] > 0.25 * found["common"]["draft_size"]
    shown = run("explain", without_draft / "large.gguf").output.replace("\n", " ")
    assert "other.gguf" in shown
    assert "0.59 on MT-bench" in shown
    same = write_random_model(without_draft / "same.gguf", demo_target, width=64)
    assert proposed(without_draft) == {"path": str(same), "common": None}
    assert "could be --draft" in run("explain", without_draft / "large.gguf").stdout


def test_what_is_too_large_or_no_model_is_not_proposed(without_draft, demo_draft):
    (without_draft / "broken.gguf").write_bytes(b"GGUF")
    large, small = without_draft / "large.gguf", without_draft / "small.gguf"
    write_renumbered(large, demo_draft)
    write_spm_model(small, more=("the", "▁fox"))
    share = check_model_file(small).weights_bytes / check_model_file(large).weights_bytes
    assert 1 / 6 < share < 1 / 3
    assert proposed(without_draft) is None


def test_a_model_with_a_head_or_a_draft_gets_no_proposal(tmp_path, demo_target, other):
    shutil.copy(other, tmp_path)
    whole = write_head_model(tmp_path / "whole.gguf", demo_target, "glm4moe")
    trunk = write_head_model(tmp_path / "trunk.gguf", demo_target, "glm4moe", part="trunk")
    assert explain(target=trunk).draft_here.path == tmp_path / "other.gguf"
    assert explain(target=whole).draft_here is None
    assert explain(target=trunk, draft=tmp_path / "other.gguf").draft_here is None
