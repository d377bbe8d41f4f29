"""Projectors: known by their headers, matched with their models, found beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import numpy as np
import pytest
import vision_maker
from click.testing import CliRunner
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

import localspec
from examples import num_examples
from localspec import LocalModel, ModelFileError, PairError, Preset
from localspec.cli import main
from localspec.cli.explain import explanation_text
from localspec.errors import LocalspecError, OptionError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.projector import (
    checked_projector,
    projector_beside,
    projector_facts,
    require_projector_of,
)
from localspec.hub.hub_file import choose_quantization
from localspec.presets.preset_file import read_presets
from localspec.presets.source import Quantized, parse_source

USUAL = {
    "clip.has_vision_encoder": True,
    "clip.projector_type": "gemma3",
    "clip.vision.image_size": 64,
    "clip.vision.patch_size": 16,
    "clip.vision.embedding_length": 32,
    "clip.vision.feed_forward_length": 64,
    "clip.vision.block_count": 1,
    "clip.vision.attention.head_count": 2,
    "clip.vision.image_mean": [0.5, 0.5, 0.5],
    "clip.vision.image_std": [0.5, 0.5, 0.5],
}


def write_projector(path, width, architecture="clip", patches="v.patch_embd.weight", **changes):
    """A file with a projector's header. changes: with __ for a dot; None leaves a key out."""
    changed = {f"clip.{name.replace('__', '.')}": value for name, value in changes.items()}
    writer = GGUFWriter(path, architecture)
    stated = {**USUAL, "clip.vision.projection_dim": width, **changed}
    for key, value in stated.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    if patches is not None:
        writer.add_tensor(patches, np.ones((32, 3, 16, 16), dtype=np.float32))
    writer.add_tensor("v.position_embd.weight", np.ones((16, 32), dtype=np.float32))
    writer.add_tensor("mm.input_projection.weight", np.ones((32, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def target(demo_target):
    return check_model_file(demo_target)


@pytest.fixture(scope="module")
def width(target):
    return target.number(f"{target.architecture}.embedding_length")


def test_a_projector_is_read(tmp_path, target, width):
    header = checked_projector(write_projector(tmp_path / "mmproj.gguf", width))
    assert projector_facts(header).kind == "gemma3"
    require_projector_of(target, header)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "llama"}, r"is no projector \(its architecture is 'llama'"),
        ({"has_vision_encoder": False}, "hears and does not see"),
        (
            {
                "has_vision_encoder": None,
                "projector_type": None,
                "audio__projector_type": "ultravox",
            },
            "hears and does not see",
        ),
    ],
)
def test_another_file_is_refused_before_it_is_loaded(tmp_path, changes, said):
    path = write_projector(tmp_path / "mmproj.gguf", 64, **changes)
    with pytest.raises(ModelFileError, match=said) as caught:
        checked_projector(path)
    assert caught.value.hint


def test_a_projector_of_a_wider_model_is_refused(tmp_path, target, width):
    header = checked_projector(write_projector(tmp_path / "mmproj.gguf", width + 64))
    with pytest.raises(PairError, match=f"models of width {width + 64}; that of .* is {width}"):
        require_projector_of(target, header)


def test_a_width_in_the_weights_counts_where_the_header_states_another(tmp_path, width):
    """Early files of LLaVA state the width of what they were trained with."""
    path = write_projector(tmp_path / "mmproj.gguf", 768)
    header = checked_projector(path)
    assert {8, 32, 768} == projector_facts(header).widths


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
        write_projector(tmp_path / name, width)
    beside = dataclasses.replace(target, path=tmp_path / "Eagle-4B-it-Q4_K_M.gguf")
    assert projector_beside(beside) == (None if found is None else tmp_path / found)


@pytest.mark.parametrize(
    ("others", "is_taken"),
    [
        (["Eagle-4B-it-Q8_0.gguf", "Eagle-4B-it-IQ2_XS-00001-of-00002.gguf"], True),
        (["draft-Owl-1B.gguf"], True),
        (["Owl-4B-it-Q8_0.gguf"], False),
    ],
)
def test_one_without_a_name_is_taken_where_there_is_one_model(
    tmp_path, target, width, others, is_taken
):
    write_projector(tmp_path / "mmproj-F16.gguf", width)
    for name in (*others, "Eagle-4B-it-Q4_K_M.gguf"):
        (tmp_path / name).write_bytes(b"")
    beside = dataclasses.replace(target, path=tmp_path / "Eagle-4B-it-Q4_K_M.gguf")
    assert (projector_beside(beside) is not None) == is_taken


def test_one_that_does_not_fit_is_not_taken(tmp_path, target, width):
    write_projector(tmp_path / "mmproj-F16.gguf", width + 1)
    (tmp_path / "mmproj-F32.gguf").write_bytes(b"GGUF")
    beside = dataclasses.replace(target, path=tmp_path / "x.gguf")
    assert projector_beside(beside) is None
    assert (
        projector_beside(dataclasses.replace(target, path=tmp_path / "no" / "x.gguf")) is None
    )


@settings(max_examples=num_examples(500), deadline=None)
@given(
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=4)), max_size=5)
)
def test_mutated_headers_are_read_or_refused(tmp_path_factory, edits):
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    whole = path.with_suffix(".whole")
    if not whole.exists():
        write_projector(whole, 64)
    data = bytearray(whole.read_bytes())
    for place, new in edits:
        at = int(place * (len(data) - len(new)))
        data[at : at + len(new)] = new
    path.write_bytes(data)
    with contextlib.suppress(LocalspecError):
        checked_projector(path)


def test_a_preset_names_one(tmp_path):
    text = (
        '[seeing]\ndescription = "x"\ncontext_length = 64\n'
        f'[seeing.target]\npath = "{tmp_path}/t.gguf"\n'
        f'[seeing.mmproj]\npath = "{tmp_path}/mmproj.gguf"\n'
    )
    preset = read_presets("mine.toml", text, {})["seeing"]
    assert preset.mmproj == LocalModel(path=tmp_path / "mmproj.gguf")
    assert list(preset.by_role()) == ["target", "mmproj"]
    assert isinstance(preset, Preset)


def test_a_repository_s_is_named_by_its_type():
    names = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "mmproj-m-f16.gguf"]
    assert choose_quantization("o/r", "Q8_0", names) == ["m-Q8_0.gguf"]
    assert choose_quantization("o/r", "mmproj-Q8_0", names) == ["mmproj-m-Q8_0.gguf"]
    assert parse_source("o/r:f16", "mmproj") == Quantized("o/r", "mmproj-f16")
    assert parse_source("o/r:mmproj-f16", "mmproj") == Quantized("o/r", "mmproj-f16")


def test_explain_counts_it(tmp_path, demo_target, width):
    path = write_projector(tmp_path / "mmproj.gguf", width)
    without = localspec.explain(target=demo_target)
    found = localspec.explain(target=demo_target, mmproj=path)
    assert without.projector is None
    assert found.projector is not None
    assert (found.projector.kind, found.projector.misfit) == ("gemma3", "")
    assert found.memory.roles == ("target", "mmproj")
    more_bytes = found.memory.needed_bytes - without.memory.needed_bytes
    assert more_bytes > found.memory.models[1].picture_bytes > 100_000_000
    assert found.is_pair
    told = CliRunner().invoke(
        main, ["explain", "--target", str(demo_target), "--mmproj", str(path)]
    )
    assert told.exit_code == 0, told.output
    assert "mmproj.gguf, gemma3" in told.output
    assert "of that, up to 217.1 MB of images that were shown last" in told.output


def test_explain_without_a_projector(tmp_path, demo_target, width):
    target = tmp_path / "x.gguf"
    target.symlink_to(demo_target)
    write_projector(tmp_path / "mmproj.gguf", width)
    assert localspec.explain(target=target).projector is not None
    found = localspec.explain(target=target, mmproj="none")
    assert found.projector is None
    assert found.memory.roles == ("target",)


def test_explain_says_that_it_does_not_fit(tmp_path, demo_target, width):
    path = write_projector(tmp_path / "mmproj.gguf", width + 1)
    arguments = ["explain", "--target", str(demo_target), "--mmproj", str(path)]
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 1
    assert f"models of width {width + 1}" in told.output
    as_json = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert as_json["projector"]["misfit"]


@pytest.mark.parametrize("is_damaged", [True, False])
def test_explain_says_that_a_presets_is_not_used(tmp_path, demo_target, width, is_damaged):
    """As `load`, which goes on without; one that was named is an error of both."""
    path = write_projector(tmp_path / "mmproj.gguf", width if is_damaged else width + 1)
    if is_damaged:
        path.write_bytes(path.read_bytes()[:99])
    models = {"target": LocalModel(path=demo_target), "mmproj": LocalModel(path=path)}
    preset = Preset(name="seeing", context_length=512, **models)
    with localspec.load(preset, draft_tokens=0) as engine:
        assert engine.vision is None
    found = localspec.explain(preset)
    assert found.is_pair
    assert found.projector is not None
    assert found.projector.misfit
    assert found.memory.roles == ("target",)
    assert "none, since mmproj.gguf is not used: " in explanation_text(found)


def test_where_libmtmd_is_missing_what_shows_pictures_is_skipped(tmp_path, monkeypatch):
    def missing():
        raise OptionError("there is no such library")

    monkeypatch.setattr(vision_maker, "mtmd", missing)
    with pytest.raises(pytest.skip.Exception, match="libmtmd is missing: there is no such"):
        vision_maker.write_vision_pair(tmp_path, "gemma3")
