"""Makes a draft or a head whose output layer knows only some tokens; `trimmed` has the layout.

Weights stay as they are quantised: only rows are left out. So the logits of the tokens that
stay are those of the whole file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.atomic_write import write_whole
from localspec.errors import ModelFileError
from localspec.gguf_file.architectures import HEADS_APART, HeadGraph
from localspec.gguf_file.content import FileContent
from localspec.gguf_file.head import HeadFacts, head_facts
from localspec.gguf_file.header import BEHIND, Header, Tensor
from localspec.gguf_file.own_tokens import OWN_TOKENS, own_tokens
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import F32, INT64, row_bytes
from localspec.gguf_file.trimmed import (
    KIND,
    NUM_TOKENS,
    SOURCE,
    SPARED_BYTES,
    copy_path,
    head_output_path,
)

_U32, _F32, _STRING, _U64 = 4, 6, 8, 10  # of gguf_metadata_value_type
_FORMATS = {_U32: "<I", _F32: "<f", _U64: "<Q"}
_READ_IDS = frozenset({"gemma3n", "gemma4"})  # each layer has a table of its own
_ALIGNMENT = 32
_ZERO_WIDTH = 32  # of the layer that changes nothing
_TINY = 1e-12  # that keeps the root of a mean square from being zero

Bytes = NDArray[np.uint8]
Entry = tuple[str, int, int | float | str]  # key, type, value


class _Written(NamedTuple):
    """A tensor to write. shape: as in a file, the length of a row first."""

    name: str
    kind: int
    shape: tuple[int, ...]
    data: Bytes


def why_not_trimmed(header: Header) -> str:
    """Why no trimmed file can be made of a model's or a head's file, in words."""
    facts = head_facts(header)
    if NUM_TOKENS in header.metadata or SOURCE in header.metadata:
        return "it is trimmed already"
    if len(header.parts) > 1:
        return f"it is split into {len(header.parts)} files"
    names = header.by_name()
    if facts is None:
        if header.architecture in _READ_IDS:
            return f"libllama reads the ids of tokens in {header.architecture!r}, not only rows"
        return "" if "token_embd.weight" in names else "it has no token_embd.weight"
    if facts.why_not:
        return f"its head cannot be used: {facts.why_not}"
    if facts.graph in HEADS_APART:
        if facts.graph is not HeadGraph.LAYERS:
            return f"the output layer of {facts.description} cannot be trimmed"
        return "" if _outputs(header) else "its output layer is in the target's file"
    if facts.graph is HeadGraph.SHARED or facts.is_cropped:
        return f"libllama does not give the rows of a head of {header.architecture!r}"
    scale = ModelShape(header).stated("logit_scale")
    if scale is not None or "output.scale" in names:
        return "its output layer has a scale"
    return "" if _head_output(header, facts) else "it has no output layer"


def trimmed_path(header: Header) -> Path:
    """Where the trimmed file of a draft or a head goes if nobody says."""
    facts = head_facts(header)
    if facts is None or facts.graph in HEADS_APART:
        return copy_path(header.path)
    return head_output_path(header.path)


def output_bytes(header: Header) -> int:
    """Bytes of the output layer of a draft or a head that has no `why_not_trimmed`."""
    facts, names = head_facts(header), header.by_name()
    if facts is None:
        return (names.get("output.weight") or names["token_embd.weight"]).size_bytes
    if facts.graph in HEADS_APART:
        return sum(names[name].size_bytes for name in _outputs(header))
    output = _head_output(header, facts)
    assert output is not None
    return output.size_bytes


def write_trimmed(header: Header, ids: Sequence[int], path: Path) -> None:
    """Write the trimmed file of a draft or a head that has no `why_not_trimmed`.

    header: checked. ids: of the tokens that it may propose. Raises OSError.
    """
    data = np.memmap(header.path, dtype=np.uint8, mode="r")
    facts = head_facts(header)
    wanted = np.unique(np.asarray(ids, dtype=np.int64))
    if facts is None:
        parts = _draft(header, data, wanted)
    elif facts.graph in HEADS_APART:
        parts = _head_apart(header, data, wanted)
    else:
        parts = _head_output_file(header, facts, data, wanted)
    write_whole(path, *parts, durable=False)


def _draft(header: Header, data: Bytes, ids: NDArray[np.int64]) -> Iterator[memoryview]:
    table = header.by_name()["token_embd.weight"]
    rows = _rows(data, table, len(header.tokens))
    behind = [ids.astype("<i4").view(np.uint8), rows.reshape(-1)]
    return _file(
        _kept_metadata(header, data),
        [
            (NUM_TOKENS, _U32, len(ids)),
            (KIND, _U32, table.kind),
            (SOURCE, _STRING, FileContent(header).digest() or ""),
            (BEHIND, _U64, sum(part.nbytes for part in behind)),
        ],
        [
            _of_rows(data, tensor, ids)
            if tensor.name in ("token_embd.weight", "output.weight", "output.bias")
            else _whole(data, tensor)
            for tensor in header.tensors
        ],
        behind,
    )


def _head_apart(header: Header, data: Bytes, ids: NDArray[np.int64]) -> Iterator[memoryview]:
    known = own_tokens(header)
    all_ids = np.arange(len(header.tokens))
    if known is not None:
        end = known.offset + 8 * known.shape[0]
        all_ids = data[known.offset : end].view("<i8")
    places = np.flatnonzero(np.isin(all_ids, ids))
    own = all_ids[places].astype("<i8")
    outputs = _outputs(header)
    tensors = [
        _of_rows(data, tensor, places) if tensor.name in outputs else _whole(data, tensor)
        for tensor in header.tensors
        if tensor.name != OWN_TOKENS
    ]
    tensors.append(_Written(OWN_TOKENS, INT64, (len(own),), own.view(np.uint8)))
    entries: list[Entry] = [(SOURCE, _STRING, FileContent(header).digest() or "")]
    return _file(_kept_metadata(header, data), entries, tensors, [])


def _head_output_file(
    header: Header, facts: HeadFacts, data: Bytes, ids: NDArray[np.int64]
) -> Iterator[memoryview]:
    output = _head_output(header, facts)
    assert output is not None
    shape = ModelShape(header)
    zeros = {
        "attn_q": (shape.width, _ZERO_WIDTH),
        "attn_k": (shape.width, _ZERO_WIDTH),
        "attn_v": (shape.width, _ZERO_WIDTH),
        "attn_output": (_ZERO_WIDTH, shape.width),
        "ffn_gate": (shape.width, _ZERO_WIDTH),
        "ffn_up": (shape.width, _ZERO_WIDTH),
        "ffn_down": (_ZERO_WIDTH, shape.width),
    }
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    chosen = _of_rows(data, output, ids)
    ones = np.ones(shape.width, dtype="<f4").view(np.uint8)
    behind = [ids.astype("<i4").view(np.uint8)]
    return _file(
        (0, b""),
        [
            ("general.architecture", _STRING, "llama"),
            ("tokenizer.ggml.model", _STRING, "none"),
            ("llama.vocab_size", _U32, len(ids)),
            ("llama.context_length", _U32, 64),
            ("llama.embedding_length", _U32, shape.width),
            ("llama.block_count", _U32, 1),
            ("llama.feed_forward_length", _U32, _ZERO_WIDTH),
            ("llama.attention.head_count", _U32, 1),
            ("llama.attention.head_count_kv", _U32, 1),
            ("llama.attention.key_length", _U32, _ZERO_WIDTH),
            ("llama.attention.value_length", _U32, _ZERO_WIDTH),
            ("llama.rope.dimension_count", _U32, _ZERO_WIDTH),
            ("llama.attention.layer_norm_rms_epsilon", _F32, _TINY),
            (NUM_TOKENS, _U32, len(ids)),
            (SOURCE, _STRING, FileContent(header).digest() or ""),
            (SPARED_BYTES, _U64, output.size_bytes),
            (BEHIND, _U64, behind[0].nbytes),
        ],
        [
            chosen._replace(name="token_embd.weight"),
            *(_Written(f"{name}.weight", F32, (shape.width,), ones) for name in norms),
            *(
                _Written(
                    f"blk.0.{name}.weight", F32, size, np.zeros(4 * size[0] * size[1], np.uint8)
                )
                for name, size in zeros.items()
            ),
        ],
        behind,
    )


def _outputs(header: Header) -> set[str]:
    """Names of the output layers in the file of a head that has no model beside it."""
    return {
        tensor.name
        for tensor in header.tensors
        if tensor.name == "output.weight" or tensor.name.endswith(".output.weight")
    }


def whole_output(header: Header) -> tuple[Bytes, int]:
    """The rows of the output layer of an MTP head, still quantised, and ggml's number of their
    type: (tokens, bytes of a row). header: of a file that has a trimmed output layer.
    """
    facts = head_facts(header)
    output = None if facts is None else _head_output(header, facts)
    assert output is not None
    data = np.memmap(header.path, dtype=np.uint8, mode="r")
    return _rows(data, output, output.shape[-1]), output.kind


def _head_output(header: Header, facts: HeadFacts) -> Tensor | None:
    """What computes the logits of an MTP head."""
    names = header.by_name()
    first = ModelShape(header).num_layers
    for layer in range(first, first + facts.num_layers):
        own = names.get(f"blk.{layer}.nextn.shared_head_head.weight")
        if own is not None:
            return own if facts.num_layers == 1 else None
    return names.get("output.weight") or names.get("token_embd.weight")


def _rows(data: Bytes, tensor: Tensor, count: int) -> Bytes:
    """The rows of a matrix, still quantised: (count, bytes of a row)."""
    size = row_bytes(tensor.kind, tensor.shape[0]) if len(tensor.shape) > 1 else 4
    if tensor.shape[-1] != count or not 0 < count * size <= len(data) - tensor.offset:
        raise ModelFileError(
            f"{tensor.name} has {tensor.shape[-1]} rows for {count} tokens",
            "The file is damaged or was converted incorrectly: choose another one.",
        )
    return data[tensor.offset : tensor.offset + count * size].reshape(count, size)


def _of_rows(data: Bytes, tensor: Tensor, places: NDArray[np.int64]) -> _Written:
    rows = _rows(data, tensor, tensor.shape[-1])[places]
    shape = (*tensor.shape[:-1], len(places))
    return _Written(tensor.name, tensor.kind, shape, rows.reshape(-1))


def _whole(data: Bytes, tensor: Tensor) -> _Written:
    rows = data[tensor.offset : tensor.offset + tensor.size_bytes]
    return _Written(tensor.name, tensor.kind, tensor.shape, rows)


def _kept_metadata(header: Header, data: Bytes) -> tuple[int, bytes]:
    """How many entries a file has, and their bytes."""
    return struct.unpack("<Q", data[16:24].tobytes())[0], data[
        24 : header.metadata_end
    ].tobytes()


def _file(
    kept: tuple[int, bytes],
    entries: Sequence[Entry],
    tensors: Sequence[_Written],
    behind: Iterable[Bytes],
) -> Iterator[memoryview]:
    """The bytes of a GGUF file, part by part."""
    count, metadata = kept
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count + len(entries)) + metadata
    head += b"".join(map(_entry, entries))
    offset = 0
    for tensor in tensors:
        head += _string(tensor.name) + struct.pack(
            f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.kind, offset
        )
        offset += _padded(tensor.data.nbytes)
    yield memoryview(head + bytes(_padded(len(head)) - len(head)))
    for tensor in tensors:
        yield np.ascontiguousarray(tensor.data).data
        yield memoryview(bytes(_padded(tensor.data.nbytes) - tensor.data.nbytes))
    for part in behind:
        yield np.ascontiguousarray(part).data


def _entry(entry: Entry) -> bytes:
    key, kind, value = entry
    stated = _string(str(value)) if kind == _STRING else struct.pack(_FORMATS[kind], value)
    return _string(key) + struct.pack("<I", kind) + stated


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
