"""What could draft on this machine for a model that has no draft."""

from __future__ import annotations

import json

import pytest
from command_line import run
from head_maker import write_head_model

from gguf_maker import write_random_model, write_spm_model
from localspec.preflight.explanation import explain

pytestmark = pytest.mark.usefixtures("own_config")


def proposed(folder):
    """The model that could draft for that model, as `explain` says in JSON."""
    return json.loads(run("explain", folder / "large.gguf", "--json").stdout)["draft_here"]


def test_a_draft_that_is_here_is_proposed_if_it_has_the_tokenizer_and_is_small(
    tmp_path, demo_target
):
    large = write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    assert proposed(tmp_path) is None  # the demo's draft knows its own topics only
    write_spm_model(tmp_path / "other.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert proposed(tmp_path) is None
    write_random_model(tmp_path / "middle.gguf", demo_target, width=192)
    assert proposed(tmp_path) is None
    same = write_random_model(tmp_path / "same.gguf", demo_target, width=64)
    assert proposed(tmp_path) == str(same)
    assert "could be --draft" in run("explain", large).stdout


def test_a_model_with_a_head_or_a_draft_gets_no_proposal(tmp_path, demo_target):
    whole = write_head_model(tmp_path / "whole.gguf", demo_target, "glm4moe")
    trunk = write_head_model(tmp_path / "trunk.gguf", demo_target, "glm4moe", part="trunk")
    draft = write_random_model(tmp_path / "same.gguf", demo_target, width=8)
    assert explain(target=trunk).draft_here == draft
    assert explain(target=whole).draft_here is None
    assert explain(target=trunk, draft=draft).draft_here is None
