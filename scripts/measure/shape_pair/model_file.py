"""Writes a model of a pair, tensor by tensor, so that its size is not needed in memory."""

from __future__ import annotations

import enum
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from localspec.errors import OptionError
from model_writer import ModelWriter, Stated
from shape_pair import blocks
from shape_pair.shapes import Recurrence, Shape
from shape_pair.vocabulary import WordList, add_tokenizer
from shape_pair.weights import Ends, reading_matrix

Sizes = dict[str, tuple[int, ...]]  # (rows, columns) of a matrix, (length,) of a vector


class Parts(enum.Enum):
    """The part of a model in a file: all but a head, the head with what it needs, or both.

    BLOCK: a head that drafts a block, for which room is made as for HEAD.
    """

    TRUNK = enum.auto()
    HEAD = enum.auto()
    BLOCK = enum.auto()
    WHOLE = enum.auto()


class Contents(NamedTuple):
    """The content of a file. quantization: one of QUANTIZATIONS."""

    shape: Shape
    quantization: str
    parts: Parts

    @property
    def num_blocks(self) -> int:
        """Layers as the header counts them: with the head's."""
        return self.shape.num_layers + (self.parts is not Parts.TRUNK)


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file: its size first, its numbers (None: zeros) when it is written."""

    name: str
    kind: Kind
    shape: tuple[int, ...]  # of the weights

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the array in the file: bytes, or float32 numbers."""
        if self.kind is Kind.F32:
            return self.shape
        return (self.shape[0], blocks.row_bytes(self.kind, self.shape[1]))

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.stored_shape)) * (4 if self.kind is Kind.F32 else 1)


def tensors(contents: Contents) -> list[Tensor]:
    """Every tensor, in the file's order."""
    shape, quantization, parts = contents
    width = shape.width
    vocab = shape.vocab_size
    output = blocks.fitting(blocks.head_kind(quantization), width)
    listed = [
        Tensor("token_embd.weight", Kind.Q8_0, (vocab, width)),
        Tensor("output_norm.weight", Kind.F32, (width,)),
        Tensor("output.weight", output, (vocab, width)),
    ]
    first = shape.num_layers if parts in (Parts.HEAD, Parts.BLOCK) else 0
    for layer in range(first, contents.num_blocks):
        matrices, vectors = _layer_tensors(shape, layer)
        for name, sizes in matrices.items():
            kind = blocks.layer_kind(quantization, name, layer, shape.num_layers)
            kind = blocks.fitting(kind, sizes[1])
            if name == "nextn.eh_proj":
                kind = blocks.exact_kind(quantization)
            listed.append(Tensor(f"blk.{layer}.{name}.weight", kind, sizes))
        for name, sizes in vectors.items():
            listed.append(Tensor(f"blk.{layer}.{name}", Kind.F32, sizes))
    return listed


def _layer_tensors(shape: Shape, layer: int) -> tuple[Sizes, Sizes]:
    """The matrices that are quantised, and what stays float32.

    layer: counted from 0; num_layers is the head's.
    """
    recurrence = shape.recurrence
    attends = (
        recurrence is None
        or layer == shape.num_layers
        or (layer + 1) % recurrence.interval == 0
    )
    if recurrence is None or attends:
        matrices, vectors = _attention(shape)
    else:
        matrices, vectors = _delta_net(recurrence, shape.width)
    matrices |= _feed_forward(shape)
    second_norm = "post_attention_norm" if shape.architecture == "qwen35" else "ffn_norm"
    vectors |= {"attn_norm.weight": (shape.width,), f"{second_norm}.weight": (shape.width,)}
    if layer == shape.num_layers:
        matrices["nextn.eh_proj"] = (shape.width, 2 * shape.width)
        vectors |= {f"nextn.{part}norm.weight": (shape.width,) for part in "eh"}
    return matrices, vectors


def _attention(shape: Shape) -> tuple[Sizes, Sizes]:
    width = shape.width
    head = shape.head_width
    queries = shape.num_heads * head
    keys = shape.num_kv_heads * head
    gated = 2 if shape.architecture == "qwen35" else 1
    matrices: Sizes = {
        "attn_q": (gated * queries, width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_output": (width, queries),
    }
    if shape.architecture == "llama":
        return matrices, {}
    if shape.architecture == "qwen2":
        return matrices, {f"attn_{part}.bias": (matrices[f"attn_{part}"][0],) for part in "qkv"}
    return matrices, {f"attn_{part}_norm.weight": (head,) for part in "qk"}


def _delta_net(sizes: Recurrence, width: int) -> tuple[Sizes, Sizes]:
    heads = sizes.num_value_heads
    matrices: Sizes = {
        "attn_qkv": (sizes.mixed, width),
        "attn_gate": (sizes.inner, width),
        "ssm_beta": (heads, width),
        "ssm_alpha": (heads, width),
        "ssm_out": (width, sizes.inner),
    }
    vectors: Sizes = {
        "ssm_conv1d.weight": (sizes.mixed, sizes.taps),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_norm.weight": (sizes.head_width,),
    }
    return matrices, vectors


def _feed_forward(shape: Shape) -> Sizes:
    return {
        "ffn_gate": (shape.hidden, shape.width),
        "ffn_up": (shape.hidden, shape.width),
        "ffn_down": (shape.width, shape.hidden),
    }


def check_room(folder: Path, files: list[Contents]) -> None:
    """Raises OptionError if such files do not fit the disk."""
    needed = sum(tensor.num_bytes for contents in files for tensor in tensors(contents))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OptionError(
            f"the files need {needed / 1e9:.1f} GB, {folder} has {free / 1e9:.1f} GB free",
            "Choose another folder (--out) or smaller shapes.",
        )


def write_model(path: Path, contents: Contents, words: WordList, ends: Ends, seed: int) -> None:
    """A complete file at `path`; under another name until it is complete."""
    part = path.with_name(path.name + ".part")
    listed = tensors(contents)
    writer = ModelWriter(part, contents.shape.architecture)
    writer.add_name(path.stem)
    _add_header(writer, contents)
    add_tokenizer(writer, contents.shape, words)
    for tensor in listed:
        writer.announce(tensor.name, tensor.kind, tensor.shape)
    writer.finish_header()
    for data in _contents(listed, ends, seed):
        writer.write_tensor_data(data)
    writer.close()
    part.replace(path)


def _add_header(writer: ModelWriter, contents: Contents) -> None:
    shape = contents.shape
    writer.add_file_type(blocks.QUANTIZATIONS[contents.quantization][1])
    writer.add_description("Real shape, invented text: for measuring speed only.")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    turns_all = shape.has_eagle or shape.architecture == "hy_v3"
    stated = Stated(
        context_length=shape.context_length,
        width=shape.width,
        num_layers=contents.num_blocks,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        hidden=shape.hidden,
        head_width=shape.head_width if shape.has_head else None,
        num_turned=shape.head_width if turns_all else None,
        rope_base=1e6,
    )
    writer.describe(stated)
    if shape.architecture == "hy_v3":
        writer.add_expert_feed_forward_length(shape.hidden)  # asked for, though all is dense
    if shape.recurrence is not None:
        _add_recurrence(writer, shape, shape.recurrence)
    if contents.parts is not Parts.TRUNK:
        writer.add_uint32(f"{shape.architecture}.nextn_predict_layers", 1)


def _add_recurrence(writer: ModelWriter, shape: Shape, sizes: Recurrence) -> None:
    # A quarter of each attention head is turned, by positions of three kinds.
    turned = shape.head_width // 4
    section = turned // 6
    writer.add_rope_dimension_count(turned)
    writer.add_rope_dimension_sections([turned // 2 - 2 * section, section, section, 0])
    writer.add_ssm_conv_kernel(sizes.taps)
    writer.add_ssm_inner_size(sizes.inner)
    writer.add_ssm_state_size(sizes.head_width)
    writer.add_ssm_time_step_rank(sizes.num_value_heads)
    writer.add_ssm_group_count(sizes.num_key_heads)
    writer.add_uint32(f"{shape.architecture}.full_attention_interval", sizes.interval)


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
        elif tensor.name.endswith("nextn.eh_proj.weight"):
            yield reading_matrix(seed, tensor.shape[0], tensor.kind)
        elif tensor.kind is Kind.F32:
            yield np.full(tensor.shape, _number(tensor.name), dtype=np.float32)
        elif any(name in tensor.name for name in ("attn_output", "ssm_out", "ffn_down")):
            # The layer's result is not used further, as the package's docstring says.
            yield np.zeros(tensor.stored_shape, dtype=np.uint8)
        else:
            yield matrices.matrix(tensor.kind, *tensor.shape)


def _number(name: str) -> float:
    """The value of all numbers of a small tensor."""
    if name.endswith("norm.weight"):
        return 1.0
    if name.endswith("ssm_a"):
        return -1.0  # a state fades, else it would grow
    if name.endswith("ssm_conv1d.weight"):
        return 0.25
    return 0.0
