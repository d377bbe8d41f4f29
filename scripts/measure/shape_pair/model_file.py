"""Writes a model of a pair, tensor by tensor, so that its size is not needed in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from localspec.errors import OptionError
from shape_pair import blocks
from shape_pair.shapes import Shape
from shape_pair.vocabulary import WordList, add_tokenizer
from shape_pair.weights import Ends


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file: its size first, its numbers (None: zeros) when it is written."""

    name: str
    kind: Kind
    shape: tuple[int, ...]  # of the weights

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of the array in the file: bytes, or float32 numbers."""
        if self.kind is Kind.F32:
            return self.shape
        return (self.shape[0], blocks.row_bytes(self.kind, self.shape[1]))

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.stored_shape)) * (4 if self.kind is Kind.F32 else 1)


def tensors(shape: Shape, quantization: str) -> list[Tensor]:
    """Every tensor, in the file's order."""
    width, vocab = shape.width, shape.vocab_size
    head = blocks.fitting(blocks.head_kind(quantization), width)
    listed = [
        Tensor("token_embd.weight", Kind.Q8_0, (vocab, width)),
        Tensor("output_norm.weight", Kind.F32, (width,)),
        Tensor("output.weight", head, (vocab, width)),
    ]
    for layer in range(shape.num_layers):
        for name, (rows, columns) in shape.matrices().items():
            kind = blocks.layer_kind(quantization, name, layer, shape.num_layers)
            kind = blocks.fitting(kind, columns)
            listed.append(Tensor(f"blk.{layer}.{name}.weight", kind, (rows, columns)))
            if name in ("attn_q", "attn_k", "attn_v"):
                listed.append(Tensor(f"blk.{layer}.{name}.bias", Kind.F32, (rows,)))
        for name in ("attn_norm", "ffn_norm"):
            listed.append(Tensor(f"blk.{layer}.{name}.weight", Kind.F32, (width,)))
    return listed


def check_room(folder: Path, shapes: list[tuple[Shape, str]]) -> None:
    """Raises OptionError if files of these shapes and quantizations do not fit the disk."""
    needed = sum(t.num_bytes for shape, kind in shapes for t in tensors(shape, kind))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OptionError(
            f"the files need {needed / 1e9:.1f} GB, {folder} has {free / 1e9:.1f} GB free",
            "Choose another folder (--out) or smaller shapes.",
        )


def write_model(
    path: Path, shape: Shape, quantization: str, words: WordList, ends: Ends, seed: int
) -> None:
    """A complete file at `path`; under another name until it is complete."""
    part = path.with_name(path.name + ".part")
    listed = tensors(shape, quantization)
    writer = gguf.GGUFWriter(part, "qwen2")
    _add_header(writer, path.stem, shape, quantization)
    add_tokenizer(writer, shape, words)
    for tensor in listed:
        kind = np.dtype(np.float32 if tensor.kind is Kind.F32 else np.uint8)
        writer.add_tensor_info(
            tensor.name, tensor.stored_shape, kind, tensor.num_bytes, tensor.kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for data in _contents(listed, ends, seed):
        writer.write_tensor_data(data)
    writer.close()
    part.replace(path)


def _add_header(writer: gguf.GGUFWriter, name: str, shape: Shape, quantization: str) -> None:
    writer.add_name(name)
    writer.add_description("Real shape, invented text: for measuring speed only.")
    writer.add_file_type(blocks.QUANTIZATIONS[quantization][1])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)


def _contents(listed: list[Tensor], ends: Ends, seed: int) -> Iterator[NDArray[Any]]:
    given: dict[str, NDArray[Any]] = {
        "token_embd.weight": ends.embedding,
        "output_norm.weight": ends.output_norm,
        "output.weight": ends.head,
    }
    matrices = blocks.RandomMatrices(seed)
    for tensor in listed:
        if tensor.name in given:
            yield given[tensor.name]
        elif tensor.name.endswith("norm.weight"):
            yield np.ones(tensor.shape, dtype=np.float32)
        elif tensor.kind is Kind.F32:
            yield np.zeros(tensor.shape, dtype=np.float32)
        elif "attn_output" in tensor.name or "ffn_down" in tensor.name:
            # What the layer computed goes no further: see the package's docstring.
            yield np.zeros(tensor.stored_shape, dtype=np.uint8)
        else:
            yield matrices.matrix(tensor.kind, *tensor.shape)
