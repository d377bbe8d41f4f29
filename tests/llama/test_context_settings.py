"""Settings that suit a file here: attention without ggml's kernel, files that are read."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

import inside
import localspec
from embedder_maker import MEAN, write_embedder
from gguf_maker import write_random_model
from hollow_model import SHAPES, write_hollow_model
from localspec.gguf_file.check import check_model_file
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.planning.free_memory import (
    Planned,
    free_memory,
    pair_memory,
    with_suited_attention,
    with_suited_mapping,
)
from localspec.planning.memory import compute_bytes

GREEDY = localspec.SamplingParams(temperature=0.0)
_REPACKED = dict.fromkeys(("Q4_0", "Q4_K", "IQ4_NL"), 1.0)


@pytest.mark.parametrize(
    ("name", "context_length", "suited"),
    [
        ("Llama 3.1 8B", 8192, "off"),
        ("Llama 3.1 8B", 65536, "auto"),
        ("Gemma 3 4B", 32768, "off"),
    ],
)
def test_it_is_done_without_where_that_takes_little_memory(
    tmp_path, demo_target, name, context_length, suited
):
    header = check_model_file(
        write_hollow_model(tmp_path / "hollow.gguf", demo_target, SHAPES[name])
    )
    options = LlamaOptions(max_outputs=17)
    chosen = with_suited_attention(options, header, context_length, uses_gpu=False)
    assert chosen.flash_attention == suited
    more = compute_bytes(header, context_length, 17, "off") - compute_bytes(
        header, context_length, 17, "auto"
    )
    assert (more <= 128 << 20) is (suited == "off")
    assert with_suited_attention(options, header, context_length, uses_gpu=True) == options


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


def test_a_small_file_is_read_and_a_large_one_mapped(tmp_path, demo_target):
    small = check_model_file(demo_target)
    large = check_model_file(
        write_hollow_model(
            tmp_path / "large.gguf",
            demo_target,
            replace(SHAPES["Llama 3.1 8B"], num_layers=12),
        )
    )
    assert with_suited_mapping(LlamaOptions(), small, _REPACKED).use_mmap is False
    assert with_suited_mapping(LlamaOptions(), large, _REPACKED).use_mmap is None
    # Nothing is there twice, where a GPU computes or the processor has no order of its own.
    assert with_suited_mapping(LlamaOptions(), small, {}).use_mmap is None


@pytest.mark.skipif(
    not free_memory().repacked,
    reason="this processor repacks no weights",
)
def test_loading_goes_by_it_and_so_does_the_estimate(caplog, demo_target):
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        localspec.load(draft_tokens=0, num_gpu_layers=0).close()
    assert any("CPU model buffer size" in line for line in caplog.messages)
    assert not any("CPU_Mapped" in line for line in caplog.messages)

    room = free_memory()
    header = check_model_file(demo_target)
    read, mapped = (
        pair_memory([Planned(header, options)], 512, room)
        for options in (
            LlamaOptions(use_mmap=use_mmap, num_gpu_layers=0) for use_mmap in (None, True)
        )
    )
    assert read.peak_bytes == read.needed_bytes == mapped.needed_bytes < mapped.peak_bytes


@pytest.fixture
def files(tmp_path, demo_target, demo_draft, demo_head):
    """Copies of a target, a draft and a head, each of which may be written to."""
    found = {"target": demo_target, "draft": demo_draft, "head": demo_head}
    return {role: shutil.copy(path, tmp_path / f"{role}.gguf") for role, path in found.items()}


def loaded(files, roles, *, use_mmap=True):
    options = LlamaOptions(use_mmap=use_mmap)
    chosen = {role: files[role] for role in roles}
    return localspec.load(
        **chosen, draft_tokens=2, target_options=options, draft_options=options, memory=False
    )


def write_to(path):
    """Write to a file where it lies, as another download of the same size does."""
    with path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        last = file.read()
        file.seek(-4096, os.SEEK_END)
        file.write(bytes(255 - byte for byte in last))


def refused(engine, path):
    """Each answer, not only the first one; and the turn on the engine is given back."""
    for _ in range(2):
        with pytest.raises(localspec.ModelFileError, match=f"{path.name} was written to after"):
            engine.generate("Hi", sampling=GREEDY, max_tokens=4).reply()


@pytest.mark.parametrize(
    ("written", "roles"),
    [
        ("target", ["target"]),
        ("draft", ["target", "draft"]),
        ("head", ["target", "head"]),
    ],
)
def test_a_mapped_file_that_is_written_to_answers_no_more(files, written, roles):
    """Its model is another from then on, or half of one: other text, and no word of it."""
    with loaded(files, roles) as engine:
        engine.generate("Hi", sampling=GREEDY, max_tokens=4).reply()
        write_to(files[written])
        refused(engine, files[written])


@pytest.mark.parametrize("change", ["rename", "read"])
def test_a_file_that_cannot_change_the_model_may_change(files, demo_target, change):
    """Another one in its place, or one that was read and not mapped."""
    target = files["target"]
    with loaded(files, ["target", "draft"], use_mmap=change != "read") as engine:
        before = engine.generate("Hi", sampling=GREEDY, max_tokens=9).reply().text
        if change == "rename":
            write_random_model(target.with_name("new"), demo_target).replace(target)
        else:
            write_to(target)
        assert engine.generate("Hi", sampling=GREEDY, max_tokens=9).reply().text == before


def test_an_embedder_whose_file_is_written_to_makes_no_vectors(tmp_path, demo_target):
    path = write_embedder(tmp_path / "mean.gguf", demo_target, MEAN)
    with localspec.load_embedder(path) as embedder:
        embedder.embed("Hi")
        write_to(path)
        with pytest.raises(localspec.ModelFileError, match=r"mean.gguf was written to after"):
            embedder.embed("Hi")
