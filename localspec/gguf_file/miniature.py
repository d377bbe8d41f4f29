"""Writes a miniature of a model: a small model with which devices are timed in its place.

The miniature has the first layers of the model, with their weights, and the same share of the
rows of the embeddings and of the output layer. So a decode takes that share of the whole
model's time. Its file has no tokenizer.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from localspec.gguf_file.header import Header, Tensor, raw_entries
from localspec.gguf_file.shape import ModelShape, block_of

_MIN_LAYERS = 4
_MIN_TOKENS = 256
_DEFAULT_ALIGNMENT = 32  # bytes, if the file states none
# GGUF's numbers for the types of values, and the bytes of a number of each type.
_UINT32 = 4
_STRING = 8
_ARRAY = 9
_NUMBER_BYTES = {
    0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8,
}  # fmt: skip
# Tensors of no layer that have the numbers of all layers side by side, and along which axis.
# Gemma 3n and the small models of Gemma 4 have them.
_LAYERS_AXES = {"per_layer_token_embd.weight": 0, "per_layer_model_proj.weight": -1}
_KIND_BYTES = 4  # of a type's number in an entry
_LENGTH_BYTES = 8  # of the length of a string or an array
_GENERAL_KEYS = ("general.architecture", "general.alignment", "general.quantization_version")


@dataclass(frozen=True, slots=True)
class Miniature:
    """A miniature that was written."""

    path: Path
    scale: float
    """The whole model's time divided by the miniature's."""

    num_tokens: int
    """The size of its vocabulary."""

    num_layers: int
    """The number of its layers, without the output layer."""


class _CutTensor(NamedTuple):
    """A tensor of the miniature: all of a tensor of the model, or the beginning of it."""

    source: Path
    """The file that has the model's tensor."""

    tensor: Tensor
    """The model's tensor."""

    shape: tuple[int, ...]
    """The shape in the miniature."""

    size_bytes: int
    """The number of bytes to copy."""


def write_miniature(header: Header, path: Path, num_bytes: int) -> Miniature:
    """Write a miniature of a model to a file.

    Args:
        header: The model's header, from `check_model_file`.
        path: The file to write.
        num_bytes: The least size of the miniature's layers together, if the model's are that
            large.

    Raises:
        OSError: The disk is full, or the model's file is gone.
    """
    parts = header.parts or (header,)
    num_layers = _num_layers(header, num_bytes)
    scale = ModelShape(header).num_layers / num_layers
    vocab_size = len(header.tokens)
    num_tokens = max(_MIN_TOKENS, math.ceil(vocab_size / scale))
    num_tokens = min(vocab_size, num_tokens)
    num_blocks = ModelShape(header).num_blocks
    tensors = _cut_tensors(parts, num_blocks, vocab_size, num_layers, num_tokens)
    entries = _metadata_entries(header, parts[0].path, num_layers, num_tokens)
    alignment = header.number("general.alignment") or _DEFAULT_ALIGNMENT
    with path.open("wb") as file:
        file.write(b"GGUF")
        file.write(struct.pack("<IQQ", 3, len(tensors), len(entries)))  # GGUF version 3
        file.write(b"".join(entries))
        offset = 0
        for cut in tensors:
            num_dimensions = len(cut.shape)
            file.write(_string_bytes(cut.tensor.name))
            file.write(struct.pack("<I", num_dimensions))
            file.write(struct.pack(f"<{num_dimensions}Q", *cut.shape))
            file.write(struct.pack("<IQ", cut.tensor.kind, offset))
            offset += cut.size_bytes + _num_padding(cut.size_bytes, alignment)
        _write_padding(file, alignment)
        for cut in tensors:
            _copy_bytes(cut.source, cut.tensor.offset, cut.size_bytes, file)
            _write_padding(file, alignment)
    return Miniature(path, scale, num_tokens, num_layers)


def _num_layers(header: Header, num_bytes: int) -> int:
    """The miniature's number of layers: as few as have `num_bytes` together, at least 4.

    If some layers look back at a window only, there is at least one that does not. All layers
    of a model that has fewer layers or bytes.
    """
    shape = ModelShape(header)
    num_layers = shape.num_layers
    min_layers = _MIN_LAYERS
    has_window = shape.value("attention.sliding_window_pattern")
    if isinstance(has_window, tuple) and False in has_window:
        # Without such a layer libllama refuses Gemma 4's `rope_freqs.weight` as left over.
        min_layers = max(min_layers, 1 + has_window.index(False))
    layers_bytes = 0
    for tensor in header.tensors:
        if block_of(tensor.name) is not None:
            layers_bytes += tensor.size_bytes
    num_needed = math.ceil(num_bytes * num_layers / max(layers_bytes, 1))
    return min(num_layers, max(min_layers, num_needed))


def _cut_tensors(
    parts: Sequence[Header],
    num_blocks: int,
    vocab_size: int,
    num_layers: int,
    num_tokens: int,
) -> list[_CutTensor]:
    """The tensors of the first layers and those of no layer, cut to the miniature's tokens.

    Args:
        parts: The headers of the model's files.
        num_blocks: The model's number of blocks.
        vocab_size: The size of the model's vocabulary.
        num_layers: The miniature's number of layers.
        num_tokens: The size of the miniature's vocabulary.
    """
    cut_tensors = []
    for part in parts:
        for tensor in part.tensors:
            block = block_of(tensor.name)
            if block is not None and block >= num_layers:
                continue
            shape = list(tensor.shape)
            size = tensor.size_bytes
            if block is None and shape[-1] == vocab_size:  # it has a row for each token
                shape[-1] = num_tokens
                size = size // vocab_size * num_tokens
            layers_axis = _LAYERS_AXES.get(tensor.name)
            if layers_axis is not None:
                shape[layers_axis] = shape[layers_axis] // num_blocks * num_layers
                # Where rows are shortened, numbers move to other rows: the time is the same.
                size = size // num_blocks * num_layers
            cut_tensors.append(_CutTensor(part.path, tensor, tuple(shape), size))
    return cut_tensors


def _metadata_entries(
    header: Header,
    path: Path,
    num_layers: int,
    num_tokens: int,
) -> list[bytes]:
    """The entries of the miniature's metadata, in GGUF's bytes.

    Args:
        header: The model's header.
        path: The file that has the model's metadata.
        num_layers: The miniature's number of layers.
        num_tokens: The size of the miniature's vocabulary.
    """
    prefix = f"{header.architecture}."
    model = ModelShape(header)
    num_blocks = model.num_blocks
    block_count = f"{prefix}block_count"
    vocab_size = f"{prefix}vocab_size"
    tokenizer = "tokenizer.ggml.model"
    entries = {
        block_count: _number_entry(block_count, num_layers),
        vocab_size: _number_entry(vocab_size, num_tokens),
        tokenizer: _string_entry(tokenizer, "none"),
    }
    # The last layers of the model, which share the caches of earlier ones.
    num_sharing = model.number("attention.shared_kv_layers")
    if num_sharing:
        num_left_out = model.num_layers - num_layers
        sharing = f"{prefix}attention.shared_kv_layers"
        entries[sharing] = _number_entry(sharing, max(0, num_sharing - num_left_out))
    for key, entry in raw_entries(path).items():
        # Without the number of the head's layers, since the miniature has no head.
        is_of_shape = key.startswith(prefix) and not key.endswith("nextn_predict_layers")
        is_kept = is_of_shape or key in _GENERAL_KEYS
        if is_kept and key not in entries:
            entries[key] = _cut_entry(key, entry, num_blocks, num_layers)
    return list(entries.values())


def _cut_entry(
    key: str,
    entry: bytes,
    num_blocks: int,
    num_layers: int,
) -> bytes:
    """The entry with its array cut to `num_layers` numbers, if it has one for each block.

    The blocks are the model's layers and those of its head. Any other entry is returned as it
    is. The bytes of an entry are the key's
    length and the key, the type of the value, and the value: of an array, the type of the
    numbers, their count, and the numbers.
    """
    value_kind_begin = _LENGTH_BYTES + len(key.encode())
    value_begin = value_kind_begin + _KIND_BYTES
    value_kind = struct.unpack_from("<I", entry, value_kind_begin)[0]
    if value_kind != _ARRAY:
        return entry
    number_kind, count = struct.unpack_from("<IQ", entry, value_begin)
    if count != num_blocks or number_kind not in _NUMBER_BYTES:
        return entry
    numbers_begin = value_begin + _KIND_BYTES + _LENGTH_BYTES
    numbers_end = numbers_begin + num_layers * _NUMBER_BYTES[number_kind]
    key_and_kind = entry[:value_begin]
    kind_and_count = struct.pack("<IQ", number_kind, num_layers)
    return key_and_kind + kind_and_count + entry[numbers_begin:numbers_end]


def _number_entry(key: str, value: int) -> bytes:
    """An entry of the metadata with a 32-bit number."""
    return _string_bytes(key) + struct.pack("<II", _UINT32, value)


def _string_entry(key: str, value: str) -> bytes:
    """An entry of the metadata with a text."""
    return _string_bytes(key) + struct.pack("<I", _STRING) + _string_bytes(value)


def _string_bytes(text: str) -> bytes:
    """A text as GGUF stores it: the number of bytes, then the bytes."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _num_padding(size: int, alignment: int) -> int:
    """The number of bytes that are missing from `size` to a multiple of the alignment."""
    return -size % alignment


def _write_padding(file: io.BufferedWriter, alignment: int) -> None:
    """Append zeros up to a multiple of the alignment."""
    file.write(bytes(_num_padding(file.tell(), alignment)))


def _copy_bytes(
    source: Path,
    offset: int,
    size: int,
    file: io.BufferedWriter,
) -> None:
    """Append `size` bytes of the source, from an offset on, to the file."""
    with source.open("rb") as weights:
        weights.seek(offset)
        file.write(weights.read(size))
