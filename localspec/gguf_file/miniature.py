"""A small model of a model file's shapes and tensor types, with which devices are timed.

It has the first layers of the file, with their weights, and as large a part of the output's
rows: so it costs as large a part of the whole model's time. Its vocabulary has no words.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from localspec.gguf_file.header import Header, Tensor, raw_entries
from localspec.gguf_file.shape import ModelShape, block_of

_FEWEST_LAYERS = 4
_FEWEST_ROWS = 256
_ALIGNMENT = 32  # bytes, if the file states no other
# Types of entries, as GGUF numbers them.
_UINT32 = 4
_STRING = 8
_ARRAY = 9
_NUMBER_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes
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


def write_miniature(header: Header, path: Path, num_bytes: int) -> Miniature:
    """Write a miniature.

    Args:
        header: of the model, from `check_model_file`.
        path: where the miniature goes.
        num_bytes: its size, at least, if the model is as large.

    Raises:
        OSError: there is no space for it, or the model's file is gone.
    """
    parts = header.parts or (header,)
    num_layers = _num_layers(header, num_bytes)
    scale = ModelShape(header).num_layers / num_layers
    vocab_size = len(header.tokens)
    num_tokens = min(vocab_size, max(_FEWEST_ROWS, math.ceil(vocab_size / scale)))
    chosen: list[tuple[Path, Tensor, tuple[int, ...], int]] = []
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
            chosen.append((part.path, tensor, shape, size))
    entries = _entries(header, parts[0].path, num_layers, num_tokens)
    alignment = header.number("general.alignment") or _ALIGNMENT
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(chosen), len(entries)))
        file.write(b"".join(entries))
        offset = 0
        for _, tensor, shape, size in chosen:
            file.write(_string(tensor.name) + struct.pack("<I", len(shape)))
            file.write(struct.pack(f"<{len(shape)}Q", *shape))
            file.write(struct.pack("<IQ", tensor.kind, offset))
            offset += size + -size % alignment
        file.write(bytes(-file.tell() % alignment))
        for source, tensor, _, size in chosen:
            _copy(source, tensor.offset, size, file)
            file.write(bytes(-size % alignment))
    return Miniature(path, scale, num_tokens, num_layers)


def _num_layers(header: Header, num_bytes: int) -> int:
    """Layers that have num_bytes together."""
    num_layers = ModelShape(header).num_layers
    in_layers = sum(
        tensor.size_bytes for tensor in header.tensors if block_of(tensor.name) is not None
    )
    wanted = math.ceil(num_bytes * num_layers / max(in_layers, 1))
    return min(num_layers, max(_FEWEST_LAYERS, wanted))


def _entries(header: Header, path: Path, num_layers: int, num_tokens: int) -> list[bytes]:
    """The miniature's metadata. path: of the file that has the model's metadata."""
    stated = f"{header.architecture}."
    num_blocks = ModelShape(header).num_blocks
    changed = {
        f"{stated}block_count": _number_entry(f"{stated}block_count", num_layers),
        f"{stated}vocab_size": _number_entry(f"{stated}vocab_size", num_tokens),
        "tokenizer.ggml.model": _string("tokenizer.ggml.model")
        + struct.pack("<I", _STRING)
        + _string("none"),
    }
    for key, entry in raw_entries(path).items():
        is_of_shape = key.startswith(stated) and not key.endswith("nextn_predict_layers")
        if (is_of_shape or key in _KEPT_OF_GENERAL) and key not in changed:
            changed[key] = _shortened(key, entry, num_blocks, num_layers)
    return list(changed.values())


def _shortened(key: str, entry: bytes, num_blocks: int, num_layers: int) -> bytes:
    """An entry, with the first numbers of one for each layer."""
    at = 8 + len(key.encode())
    if struct.unpack_from("<I", entry, at)[0] != _ARRAY:
        return entry
    kind, count = struct.unpack_from("<IQ", entry, at + 4)
    if count != num_blocks or kind not in _NUMBER_SIZES:
        return entry
    begin = at + 16
    end = begin + num_layers * _NUMBER_SIZES[kind]
    return entry[: at + 4] + struct.pack("<IQ", kind, num_layers) + entry[begin:end]


def _number_entry(key: str, value: int) -> bytes:
    return _string(key) + struct.pack("<II", _UINT32, value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _copy(source: Path, offset: int, size: int, file: io.BufferedWriter) -> None:
    with source.open("rb") as weights:
        weights.seek(offset)
        file.write(weights.read(size))
