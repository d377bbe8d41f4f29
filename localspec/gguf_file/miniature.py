"""A small model of a model file's shapes and tensor types, with which devices are timed.

It has the first layers of the file, with their weights, and the same share of the output's
rows. So it takes the same share of the whole model's time. Its vocabulary has no words.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from localspec.gguf_file.header import Header, Tensor, raw_entries
from localspec.gguf_file.shape import ModelShape, block_of

_FEWEST_LAYERS = 4
_FEWEST_ROWS = 256
_ALIGNMENT = 32  # bytes, if the file states no other
# Types of entries, as GGUF numbers them.
_UINT32 = 4
_STRING = 8
_ARRAY = 9
_NUMBER_SIZES = {
    0: 1,
    1: 1,
    2: 2,
    3: 2,
    4: 4,
    5: 4,
    6: 4,
    7: 1,
    10: 8,
    11: 8,
    12: 8,
}  # bytes
_KEPT_OF_GENERAL = ("general.architecture", "general.alignment", "general.quantization_version")


@dataclass(frozen=True, slots=True)
class Miniature:
    """A miniature that was written."""

    path: Path
    scale: float
    """The whole model's time over the miniature's."""

    num_tokens: int
    """The size of its vocabulary."""

    num_layers: int
    """Its layers, without the output."""


class _CutTensor(NamedTuple):
    """A tensor of the miniature: the beginning of one of the model's."""

    source: Path
    """The file that has the model's tensor."""

    tensor: Tensor
    """The model's tensor."""

    shape: tuple[int, ...]
    size_bytes: int
    """Bytes that are copied."""


def write_miniature(header: Header, path: Path, num_bytes: int) -> Miniature:
    """Write a miniature.

    Args:
        header: The model's header, from `check_model_file`.
        path: The file to write.
        num_bytes: The least size of its layers, if the model has as much.

    Raises:
        OSError: There is no space for it, or the model's file is gone.
    """
    parts = header.parts or (header,)
    num_layers = _num_layers(header, num_bytes)
    scale = ModelShape(header).num_layers / num_layers
    vocab_size = len(header.tokens)
    num_tokens = max(_FEWEST_ROWS, math.ceil(vocab_size / scale))
    num_tokens = min(vocab_size, num_tokens)
    chosen = []
    for part in parts:
        for tensor in part.tensors:
            block = block_of(tensor.name)
            if block is not None and block >= num_layers:
                continue
            shape = tensor.shape
            size = tensor.size_bytes
            if block is None and shape[-1] == vocab_size:
                shape = (*shape[:-1], num_tokens)
                size = size // vocab_size * num_tokens
            chosen.append(_CutTensor(part.path, tensor, shape, size))
    entries = _entries(header, parts[0].path, num_layers, num_tokens)
    alignment = header.number("general.alignment") or _ALIGNMENT
    with path.open("wb") as file:
        file.write(b"GGUF")
        file.write(struct.pack("<IQQ", 3, len(chosen), len(entries)))
        file.write(b"".join(entries))
        offset = 0
        for cut in chosen:
            num_dimensions = len(cut.shape)
            file.write(_string(cut.tensor.name))
            file.write(struct.pack("<I", num_dimensions))
            file.write(struct.pack(f"<{num_dimensions}Q", *cut.shape))
            file.write(struct.pack("<IQ", cut.tensor.kind, offset))
            offset += cut.size_bytes + -cut.size_bytes % alignment
        file.write(bytes(-file.tell() % alignment))
        for cut in chosen:
            _copy(cut.source, cut.tensor.offset, cut.size_bytes, file)
            file.write(bytes(-cut.size_bytes % alignment))
    return Miniature(path, scale, num_tokens, num_layers)


def _num_layers(header: Header, num_bytes: int) -> int:
    """The number of layers that have at least num_bytes together."""
    num_layers = ModelShape(header).num_layers
    layer_bytes = 0
    for tensor in header.tensors:
        if block_of(tensor.name) is not None:
            layer_bytes += tensor.size_bytes
    wanted = math.ceil(num_bytes * num_layers / max(layer_bytes, 1))
    return min(num_layers, max(_FEWEST_LAYERS, wanted))


def _entries(
    header: Header,
    path: Path,
    num_layers: int,
    num_tokens: int,
) -> list[bytes]:
    """The entries of the miniature's metadata.

    Args:
        header: The model's header.
        path: The file that has the model's metadata.
        num_layers: The miniature's layers.
        num_tokens: The size of its vocabulary.
    """
    prefix = f"{header.architecture}."
    num_blocks = ModelShape(header).num_blocks
    block_count = f"{prefix}block_count"
    vocab_size = f"{prefix}vocab_size"
    tokenizer = "tokenizer.ggml.model"
    entries = {
        block_count: _number_entry(block_count, num_layers),
        vocab_size: _number_entry(vocab_size, num_tokens),
        tokenizer: _string(tokenizer) + struct.pack("<I", _STRING) + _string("none"),
    }
    for key, entry in raw_entries(path).items():
        is_of_shape = key.startswith(prefix) and not key.endswith("nextn_predict_layers")
        if (is_of_shape or key in _KEPT_OF_GENERAL) and key not in entries:
            entries[key] = _shortened(key, entry, num_blocks, num_layers)
    return list(entries.values())


def _shortened(
    key: str,
    entry: bytes,
    num_blocks: int,
    num_layers: int,
) -> bytes:
    """The entry; of an array with a number for each block, only those of the first layers."""
    at = 8 + len(key.encode())
    entry_kind = struct.unpack_from("<I", entry, at)[0]
    if entry_kind != _ARRAY:
        return entry
    kind, count = struct.unpack_from("<IQ", entry, at + 4)
    if count != num_blocks or kind not in _NUMBER_SIZES:
        return entry
    begin = at + 16
    end = begin + num_layers * _NUMBER_SIZES[kind]
    key_and_kind = entry[: at + 4]
    return key_and_kind + struct.pack("<IQ", kind, num_layers) + entry[begin:end]


def _number_entry(key: str, value: int) -> bytes:
    """An entry of the metadata with a 32-bit number."""
    return _string(key) + struct.pack("<II", _UINT32, value)


def _string(text: str) -> bytes:
    """A text as GGUF writes it."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _copy(
    source: Path,
    offset: int,
    size: int,
    file: io.BufferedWriter,
) -> None:
    """Append `size` bytes of the source, from an offset on, to the file."""
    with source.open("rb") as weights:
        weights.seek(offset)
        file.write(weights.read(size))
