"""Files with an encoder beside the language model, as Ollama has some: said before a load."""

from __future__ import annotations

from pathlib import Path

import pytest

import localspec
from command_line import run
from gguf_maker import write_random_model
from localspec.presets.local_models import search_folder

# As gemma3, qwen2.5-vl and mistral3 have them in Ollama's library.
INSIDE = {
    "gemma3": ("mm.mm_input_projection.weight", "v.blk.0.attn_k.weight", "v.patch_embd.weight"),
    "qwen25vl": ("v.blk.0.attn_qkv.weight", "v.merger.ln_q.weight"),
    "raw names": ("vision_tower.encoder.weight",),
    "audio": ("a.conv1d.0.weight", "a.blk.0.ffn_up.weight"),
}


@pytest.fixture(params=INSIDE)
def joined(request: pytest.FixtureRequest, tmp_path: Path, demo_target: Path) -> Path:
    """A language model that works by itself, with the encoder's tensors in its file."""
    return write_random_model(
        tmp_path / "joined.gguf",
        demo_target,
        extra={"llama.vision.block_count": 1},
        beside=INSIDE[request.param],
    )


def test_it_is_said_before_the_load_and_by_explain_and_import(joined):
    for load in (localspec.load, lambda draft: localspec.load("demo", draft=draft)):
        with pytest.raises(localspec.ModelFileError, match="encoder beside its lang") as caught:
            load(joined)
        assert caught.value.__cause__ is None
        assert "owner/repo:Q4_K_M" in caught.value.hint
    told = run("explain", joined)
    assert told.exit_code == 1
    assert "encoder beside its language model" in told.stderr
    found = search_folder(joined.parent)
    assert found.proposals == ()
    assert "encoder beside its language model" in found.skipped[joined]


def test_an_encoder_by_itself_is_called_one(tmp_path, demo_target):
    """An mmproj file, with and without the type that newer ones state."""
    for extra in ({}, {"general.type": "mmproj"}):
        path = write_random_model(
            tmp_path / "mmproj.gguf",
            demo_target,
            architecture="clip",
            extra=extra,
            beside=INSIDE["gemma3"],
        )
        with pytest.raises(localspec.ModelFileError) as caught:
            localspec.load(path)
        assert "is an image encoder" in str(caught.value) or "mmproj" in str(caught.value)
        assert "beside" not in str(caught.value)


@pytest.mark.parametrize("architecture", ["llama", "mamba", "gemma3"])
def test_a_language_model_alone_is_not_taken_for_one(tmp_path, demo_target, architecture):
    """Not even where its header tells of an encoder that lies in another file."""
    path = write_random_model(
        tmp_path / "x.gguf",
        demo_target,
        architecture=architecture,
        extra={f"{architecture}.vision.block_count": 27},
    )
    localspec.load(path, num_threads=1).close()
