"""Headers are read within their file, and files that are no model are refused with words."""

from __future__ import annotations

import math
import os
import shutil
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import num_examples
from gguf_maker import add_keys, write_random_model, write_spm_model
from llama_chain import vocabulary_of
from localspec.errors import ModelFileError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.header import read_header, read_source_header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.llama.model_vocabulary import LlamaVocabulary
from model_writer import ModelWriter

MAGIC = b"GGUF"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def file_of(tensors: int, entries: list[bytes], rest: bytes = b"", version: int = 3) -> bytes:
    counts = struct.pack("<IQQ", version, tensors, len(entries))
    return MAGIC + counts + b"".join(entries) + rest


def write(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def test_reads_what_gguf_wrote(demo_target):
    """Every scalar and string of a real file, and its tokens, as the gguf package reads it."""
    header = read_header(demo_target)
    reader = gguf.GGUFReader(demo_target)
    scalars = {
        key: field.contents()
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.") and field.types[0] is not gguf.GGUFValueType.ARRAY
    }
    assert {k: header.metadata[k] for k in scalars} == pytest.approx(scalars)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert [token.decode() for token in header.tokens] == tokens
    assert len(header.tensors) == len(reader.tensors)
    for tensor, real in zip(header.tensors, reader.tensors, strict=True):
        assert (tensor.name, tensor.kind) == (real.name, real.tensor_type)
        assert tensor.shape == tuple(real.shape)
        assert real.n_bytes <= tensor.size_bytes < real.n_bytes + 32
    assert header.size_bytes == demo_target.stat().st_size
    assert header.architecture == scalars["general.architecture"]


def test_short_arrays_of_numbers_are_kept(tmp_path):
    """One number for each layer; longer ones and other strings are passed over."""
    path = tmp_path / "model.gguf"
    writer = ModelWriter(path, "llama")
    stated = {"heads": [4, 2, 0], "scales": [0.5, 2.0], "long": [*range(1000)], "names": ["a"]}
    add_keys(writer, stated)
    writer.finish()
    metadata = read_header(path).metadata
    assert (metadata["heads"], metadata["scales"]) == ((4, 2, 0), (0.5, 2.0))
    assert (metadata["long"], metadata["names"]) == (None, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"Once upon a time", "not a GGUF file"),
        (b"GGUF", "ends after 4 bytes"),
        (file_of(0, [], version=1), "version 1"),
        (file_of(0, [], version=0x03000000), "version"),  # big-endian
        (file_of(2**40, []), "claims"),
        (MAGIC + struct.pack("<IQQ", 3, 0, 2**40), "claims"),
        (file_of(0, [struct.pack("<Q", 2**60)]), "ends after"),
        (file_of(0, [text(b"k") + struct.pack("<I", 99)]), "unknown type 99"),
        (file_of(0, [text(b"k") + struct.pack("<IIQ", 9, 4, 2**62)]), "ends after"),
        (file_of(0, [text(b"k") + struct.pack("<IIQ", 9, 8, 2**62)]), f"{2**62} strings"),
        (file_of(0, [text(b"k") + struct.pack("<IIQQ", 9, 8, 1, 2**62)]), "ends after"),
        (file_of(0, [text(b"k") + struct.pack("<IIQ", 9, 9, 1)]), "unknown type 9"),
        (file_of(0, [text(b"general.alignment") + struct.pack("<II", 4, 7)]), "alignment is 7"),
        (file_of(1, [], text(b"t") + struct.pack("<I", 9)), "9 dimensions"),
        (file_of(1, [], text(b"t") + struct.pack("<IQIQ", 1, 4, 0, 2**50)), "reach beyond"),
    ],
)
def test_damage_is_named(tmp_path, data, message):
    """A clear error for each way a header can lie."""
    with pytest.raises(ModelFileError, match=message):
        read_header(write(tmp_path, data))


@dataclass
class Piecewise:
    """A file of which only ranges are read."""

    data: bytes
    name: str = "owner/repo/model.gguf"
    num_read: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        assert offset + size <= len(self.data)
        self.num_read += size
        return self.data[offset : offset + size]


@pytest.mark.parametrize("num_tokens", [10, 600_000])
def test_a_header_is_read_without_its_file(tmp_path, num_tokens):
    """From the first bytes alone, and from more where the vocabulary is long."""
    path = tmp_path / "model.gguf"
    writer = ModelWriter(path, "llama")
    writer.add_token_list([f"token{n}" for n in range(num_tokens)])
    writer.add_tensor("weights", np.zeros((1 << 13, 1 << 10), dtype=np.float32))
    writer.finish()
    source = Piecewise(path.read_bytes())
    header = read_source_header(source)
    here = read_header(path)
    assert (header.metadata, header.tokens) == (here.metadata, here.tokens)
    assert header.tensors == here.tensors
    assert len(header.tokens) == num_tokens
    assert source.num_read <= 32 << 20 < len(source.data)


@settings(max_examples=num_examples(300))
@given(at=st.integers(4, 4000), value=st.integers(0, 255))
def test_a_flipped_byte_is_read_or_refused(demo_target, tmp_path_factory, at, value):
    """Never anything but a header or a ModelFileError."""
    data = bytearray(demo_target.read_bytes()[:200_000])
    data[at] = value
    path = tmp_path_factory.mktemp("flipped") / "model.gguf"
    path.write_bytes(data)
    try:
        read_header(path)
    except ModelFileError as error:
        assert str(path) in str(error)  # noqa: PT017  both outcomes are right


@settings(max_examples=num_examples(60))
@given(st.integers(0, 200_000))
def test_a_header_cut_anywhere_is_refused(demo_target, tmp_path_factory, length):
    path = tmp_path_factory.mktemp("cut") / "model.gguf"
    path.write_bytes(demo_target.read_bytes()[:length])
    with pytest.raises(ModelFileError):
        read_header(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.gguf", "does not exist"),
        (".", "is a directory"),
        ("pipe", "pipe or a device"),
        (os.devnull, "pipe or a device"),
        ("model\0.gguf", "not a path"),
    ],
)
def test_a_path_that_is_no_file_is_refused(tmp_path, name, words):
    if "pipe or" in words and not hasattr(os, "mkfifo"):
        pytest.skip("pipes and devices have no names here")
    if name == "pipe":  # rather than waited for
        os.mkfifo(tmp_path / name)
    with pytest.raises(ModelFileError, match=words):
        read_header(tmp_path / name)


def test_a_hint_names_the_folder_that_was_looked_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFileError) as caught:
        read_header(Path("absent.gguf"))
    assert caught.value.hint == f"{tmp_path} holds no .gguf file."


# --- vocabularies ---

BEGINS = "tokenizer.ggml.add_bos_token"


@pytest.mark.parametrize(
    ("name", "drop", "extra"),
    [
        ("demo", (), {}),
        ("spm", (), {}),
        ("silent", (BEGINS,), {}),
        ("llama3", (BEGINS, "tokenizer.ggml.pre"), {"tokenizer.ggml.pre": "llama-bpe"}),
        ("qwen", (BEGINS, "tokenizer.ggml.pre"), {"tokenizer.ggml.pre": "qwen2"}),
        ("tekken", (BEGINS, "tokenizer.ggml.pre"), {"tokenizer.ggml.pre": "tekken"}),
    ],
)
def test_the_facts_are_libllamas(tmp_path, demo_target, name, drop, extra):
    if name == "spm":
        path = write_spm_model(tmp_path / "spm.gguf")
    else:
        path = write_random_model(
            tmp_path / f"{name}.gguf", demo_target, drop=drop, extra=extra, num_padding=3
        )
    found = HeaderVocabulary(read_header(path))
    with vocabulary_of(path) as pointer:
        real = LlamaVocabulary(pointer, lambda: None, threading.Lock())
        assert (found.kind, found.size, found.add_bos) == (real.kind, real.size, real.add_bos)
        assert found.bos == real.bos
        assert found.entries() == real.entries()


# --- models ---


@pytest.mark.parametrize(
    ("extra", "drop", "message"),
    [
        ({"llama.pooling_type": 1}, (), "embedding model"),
        ({"llama.attention.causal": False}, (), "embedding model"),
        ({"general.type": "adapter"}, (), "is of type 'adapter'"),
        ({}, ("tokenizer.ggml.model",), "no tokenizer"),
        ({"split.count": 2}, (), "not named as one"),
        ({"llama.block_count": 2**31 - 1}, (), "block_count is 2147483647"),
        ({"llama.block_count": 0}, (), "block_count is 0"),
        *(
            ({"llama.attention.layer_norm_rms_epsilon": value}, (), f"epsilon is {value}")
            for value in (-1.0, math.nan, math.inf, -math.inf)
        ),
        (
            {"tokenizer.ggml.tokens": ["a", "b", "a"]},
            (),
            "two of its tokens have the same text",
        ),
    ],
)
def test_other_kinds_of_file_are_refused(tmp_path, demo_target, extra, drop, message):
    """Embedding models, adapters, no tokenizer, lost names of parts, memory without end."""
    path = write_random_model(tmp_path / "model.gguf", demo_target, extra=extra, drop=drop)
    with pytest.raises(ModelFileError, match=message):
        check_model_file(path)


@pytest.mark.parametrize(
    ("architecture", "tensor", "words"),
    [("llama", None, "no weights"), ("clip", "v.weight", "image encoder")],
)
def test_files_of_parts_of_a_model_are_refused(tmp_path, architecture, tensor, words):
    path = tmp_path / "model.gguf"
    writer = ModelWriter(path, architecture)
    if tensor is not None:
        writer.add_tensor(tensor, np.zeros(8, dtype=np.float32))
    writer.finish()
    with pytest.raises(ModelFileError, match=words):
        check_model_file(path)


def test_parts_of_a_split_model(tmp_path, demo_target):
    """The first part is accepted with the others beside it; else the error names the part."""
    made = write_random_model(tmp_path / "m.gguf", demo_target, extra={"split.count": 2})
    first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    shutil.copy(made, first)
    with pytest.raises(ModelFileError, match=second.name):
        check_model_file(first)
    shutil.copy(made, second)
    assert check_model_file(first)
    with pytest.raises(ModelFileError, match="part 2 of 2") as caught:
        check_model_file(second)
    assert first.name in caught.value.hint
