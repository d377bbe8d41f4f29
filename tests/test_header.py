"""The header reader never leaves the file, and says what is wrong with it."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import num_examples
from localspec.errors import ModelFileError
from localspec.gguf_file.header import read_header, read_source_header

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
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("heads", [4, 2, 0])
    writer.add_array("scales", [0.5, 2.0])
    writer.add_array("long", list(range(1000)))
    writer.add_array("names", ["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
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
        (
            file_of(0, [text(b"k") + struct.pack("<IIQ", 9, 8, 2**62)]),
            "2[0-9]* strings|strings",
        ),
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
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"token{n}" for n in range(num_tokens)])
    writer.add_tensor("weights", np.zeros((1 << 13, 1 << 10), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = Piecewise(path.read_bytes())
    header = read_source_header(source)
    here = read_header(path)
    assert (header.metadata, header.tokens) == (here.metadata, here.tokens)
    assert header.tensors == here.tensors
    assert len(header.tokens) == num_tokens
    assert source.num_read <= 32 << 20 < len(source.data)


@pytest.mark.parametrize("length", [0, 3, 100, 200_000])
def test_damage_is_found_without_the_file(demo_target, length):
    with pytest.raises(ModelFileError, match=r"owner/repo/model\.gguf is (damaged|not a GGUF)"):
        read_source_header(Piecewise(demo_target.read_bytes()[:length]))


@settings(deadline=None, max_examples=num_examples(300))
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


@settings(deadline=None, max_examples=num_examples(60))
@given(st.integers(0, 200_000))
def test_a_header_cut_anywhere_is_refused(demo_target, tmp_path_factory, length):
    path = tmp_path_factory.mktemp("cut") / "model.gguf"
    path.write_bytes(demo_target.read_bytes()[:length])
    with pytest.raises(ModelFileError):
        read_header(path)


@pytest.mark.parametrize("name", ["absent.gguf", "."])
def test_a_path_that_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(ModelFileError, match=r"does not exist|is a directory"):
        read_header(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ModelFileError, match="pipe or a device"):
        read_header(pipe)


@pytest.mark.skipif(os.name == "nt", reason="devices have no files here")
def test_a_device_is_refused():
    with pytest.raises(ModelFileError, match="pipe or a device"):
        read_header(Path(os.devnull))


def test_a_name_that_no_file_can_have_is_refused():
    with pytest.raises(ModelFileError, match="not a path"):
        read_header(Path("model\0.gguf"))
