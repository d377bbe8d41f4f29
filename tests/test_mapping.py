"""Small files whose weights ggml repacks are read, and then in memory once."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace

import pytest
from test_embedder import MEAN, write_embedder

import localspec
from gguf_maker import write_random_model
from hollow_model import SHAPES, write_hollow_model
from localspec.gguf_file.check import check_model_file
from localspec.llama.options import LlamaOptions
from localspec.preflight.fit import room_here
from localspec.preflight.room import Planned, pair_memory, with_suited_mapping

GREEDY = localspec.SamplingParams(temperature=0.0)
_REPACKED = dict.fromkeys(("Q4_0", "Q4_K", "IQ4_NL"), 1.0)


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
    not room_here().repacked,
    reason="this processor repacks no weights",
)
def test_loading_goes_by_it_and_so_does_the_estimate(caplog, demo_target):
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        localspec.load(draft_tokens=0, num_gpu_layers=0).close()
    assert any("CPU model buffer size" in line for line in caplog.messages)
    assert not any("CPU_Mapped" in line for line in caplog.messages)

    room = room_here()
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
