"""Where a CPU does without flash attention, and that this changes nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import inside
import localspec
from hollow_model import SHAPES, write_hollow_model
from localspec.gguf_file.check import check_model_file
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.preflight.memory import compute_bytes
from localspec.preflight.room import suited_attention, with_suited_attention


@pytest.mark.parametrize(
    ("name", "context_length", "suited"),
    [
        ("Llama 3.1 8B", 8192, "off"),
        ("Llama 3.1 8B", 32768, "off"),
        ("Llama 3.1 8B", 65536, "auto"),
        ("Gemma 3 4B", 32768, "off"),
        ("Qwen3 4B", 131072, "auto"),
    ],
)
def test_it_is_done_without_where_that_takes_little_memory(
    tmp_path, demo_target, name, context_length, suited
):
    header = check_model_file(
        write_hollow_model(tmp_path / "hollow.gguf", demo_target, SHAPES[name])
    )
    assert suited_attention(header, context_length, 17, uses_gpu=False) == suited
    more = compute_bytes(header, context_length, 17, "off") - compute_bytes(
        header, context_length, 17, "auto"
    )
    assert (more <= 128 << 20) is (suited == "off")
    assert suited_attention(header, context_length, 17, uses_gpu=True) == "auto"


@pytest.mark.parametrize(
    "asked",
    [LlamaOptions(flash_attention="on"), LlamaOptions(cache_type_v="q8_0")],
)
def test_a_user_and_quantised_values_have_the_last_word(demo_target, asked):
    header = check_model_file(demo_target)
    assert with_suited_attention(asked, header, 2048, uses_gpu=False) == asked


def test_an_engine_says_what_was_chosen(demo_target):
    """The costs that are learned belong to one way of computing."""
    with localspec.load(num_gpu_layers=0) as engine:
        assert "flash attention off" in inside.target(engine).identity
    options = replace(LlamaOptions(num_gpu_layers=0), flash_attention="on")
    with localspec.load(target_options=options) as engine:
        assert "flash attention on" in inside.target(engine).identity


def test_rows_of_a_batch_in_several_graphs_are_in_order(demo_target):
    """A graph takes 128 tokens here; the rows of all of them come back."""
    tokens = [token % 500 + 300 for token in range(300)]
    rows = {}
    for setting in ("on", "off"):
        options = LlamaOptions(
            context_length=512, max_outputs=200, flash_attention=setting, num_threads=1
        )
        model = LlamaModel.open(demo_target, options)
        rows[setting] = model.decode(tokens, 200).copy()
        assert model.num_cached == 300
        model.close()
    # Rounding moves a logit by 0.02 on average; two rows differ by far more.
    assert np.abs(rows["off"] - rows["on"]).mean() < 0.1
    assert np.abs(rows["off"][1:] - rows["on"][:-1]).mean() > 1.0
