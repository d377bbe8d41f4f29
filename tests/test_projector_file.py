"""Projectors: known by their headers, matched with their models, found beside them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from command_line import run
from vision_maker import write_projector

import localspec
from gguf_maker import add_keys
from localspec import ModelFileError
from localspec.errors import PairError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.projector import (
    cells_at_once,
    checked_projector,
    projector_beside,
    projector_facts,
    require_free_of_position,
    require_projector_of,
)
from model_writer import ModelWriter


@pytest.fixture(scope="module")
def target(demo_target):
    return check_model_file(demo_target)


@pytest.fixture(scope="module")
def width(target):
    return target.number(f"{target.architecture}.embedding_length")


def test_a_projector_is_read(tmp_path, target, width):
    header = checked_projector(write_projector(tmp_path / "mmproj.gguf", "gemma3", width=width))
    assert projector_facts(header).kind == "gemma3"
    require_projector_of(target, header)


def test_another_file_is_refused_before_it_is_loaded(tmp_path, demo_target):
    deaf, ultravox = tmp_path / "deaf.gguf", tmp_path / "ultravox.gguf"
    write_projector(deaf, "gemma3", sees=False)
    writer = ModelWriter(ultravox, "clip")
    add_keys(writer, {"clip.audio.projector_type": "ultravox"})
    writer.add_tensor("mm.weight", np.ones((32, 8), dtype=np.float32))
    writer.finish()
    for path, said in (
        (demo_target, r"is no projector \(its architecture is 'llama'"),
        (deaf, "hears and does not see"),
        (ultravox, "hears and does not see"),
    ):
        with pytest.raises(ModelFileError, match=said) as caught:
            checked_projector(path)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["mmproj-F16.gguf"], "mmproj-F16.gguf"),
        (["mmproj-BF16.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
        (["mmproj-BF16.gguf", "mmproj-F32.gguf"], "mmproj-BF16.gguf"),
        (["mmproj-model-f16.gguf"], "mmproj-model-f16.gguf"),
        (["mmproj-Eagle-4B-it-f16.gguf"], "mmproj-Eagle-4B-it-f16.gguf"),
        (["eagle-4b-it.mmproj-Q8_0.gguf"], "eagle-4b-it.mmproj-Q8_0.gguf"),
        (["mmproj-other-4B-f16.gguf"], None),
        (["other.gguf"], None),
        ([], None),
    ],
)
def test_the_one_beside_a_model_is_found_by_its_name(tmp_path, target, width, names, found):
    for name in names:
        write_projector(tmp_path / name, "gemma3", width=width)
    beside = dataclasses.replace(target, path=tmp_path / "Eagle-4B-it-Q4_K_M.gguf")
    assert projector_beside(beside) == (None if found is None else tmp_path / found)


@pytest.mark.parametrize(
    ("kind", "cells"), [("gemma3", 16), ("gemma4v", 1120), ("internvl", 0)]
)
def test_how_many_cells_are_read_at_once(tmp_path, kind, cells):
    path = write_projector(tmp_path / "mmproj.gguf", kind)
    header = checked_projector(path)
    assert cells_at_once(header) == cells
    require_free_of_position(header)
    with pytest.raises(PairError, match="made for models of width 64, not"):
        require_projector_of(header, header)


def test_pictures_that_depend_on_what_comes_before_are_refused(tmp_path):
    path = write_projector(tmp_path / "mmproj.gguf", "hunyuanvl")
    with pytest.raises(ModelFileError, match="'hunyuanvl', whose pictures depend on"):
        require_free_of_position(checked_projector(path))


def test_explain_counts_it(tmp_path, demo_target, width):
    path = write_projector(tmp_path / "mmproj.gguf", "gemma3", width=width)
    without = localspec.explain(target=demo_target)
    found = localspec.explain(target=demo_target, mmproj=path)
    assert without.projector is None
    assert found.projector is not None
    assert (found.projector.kind, found.projector.misfit) == ("gemma3", "")
    assert found.memory.roles == ("target", "mmproj")
    more_bytes = found.memory.needed_bytes - without.memory.needed_bytes
    assert more_bytes > found.memory.models[1].picture_bytes > 100_000_000
    assert found.is_pair
    told = run("explain", "--target", demo_target, "--mmproj", path)
    assert told.exit_code == 0, told.output
    assert "mmproj.gguf, gemma3" in told.output
    assert "of that, up to 217.1 MB of images that were shown last" in told.output
