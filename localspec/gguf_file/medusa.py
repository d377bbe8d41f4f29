"""Medusa heads in GGUF files (Cai et al., arXiv 2401.10774, section 2.1).

Head k reads what its target's output layer reads, h, and predicts the token k + 1 places behind
the one that this layer predicts: output_k(r(h)), where each residual block is
r(h) = h + SiLU(W h + b). libllama knows no such heads; the layout of these files is ours:

- `general.architecture` is "medusa", `medusa.block_count` the number of heads,
  `medusa.residual_count` that of residual blocks in each, `medusa.embedding_length` the width;
- `blk.K.residual.J.weight` (width, width) and perhaps `.bias` (width,), `blk.K.output.weight`
  (tokens, width), as F32, F16 or BF16; without the latter `output.weight` serves all heads;
- `d2t`, int64 (tokens,), the tokens that they know if not all; and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.own_tokens import own_tokens, own_tokens_refusals
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import BF16, F16, F32

_ITEM_BYTES = {F32: 4, F16: 2, BF16: 2}


class MedusaTensors(NamedTuple):
    """The tensors of one head. residuals: weight and bias, if there is one, of each block."""

    residuals: tuple[tuple[Tensor, Tensor | None], ...]
    output: Tensor


def medusa_tensors(header: Header) -> tuple[MedusaTensors, ...]:
    """The tensors of every head of a file that has no refusals."""
    shape, tensors = ModelShape(header), header.by_name()
    return tuple(
        MedusaTensors(
            residuals=tuple(
                (tensors[f"{block}.weight"], tensors.get(f"{block}.bias"))
                for block in _residuals(shape, head)
            ),
            output=tensors[_output(tensors, head)],
        )
        for head in range(shape.num_blocks)
    )


def medusa_refusals(header: Header, shape: ModelShape) -> Iterator[str]:
    """Why the heads cannot be computed."""
    if len(header.parts) > 1:
        yield f"it is split into {len(header.parts)} files"
    if shape.num_blocks < 1:
        yield "its header states no heads"
    yield from own_tokens_refusals(header)
    tensors, known = header.by_name(), own_tokens(header)
    num_tokens = len(header.tokens) if known is None else prod(known.shape)
    for name, wanted in _needed(tensors, shape, num_tokens):
        tensor = tensors.get(name)
        if tensor is None:
            if not name.endswith(".bias"):
                yield f"it lacks {name}"
        elif tensor.shape != wanted:
            yield f"its {name} has the shape {tensor.shape}, not {wanted}"
        elif tensor.kind not in (F32, F16, BF16):
            yield f"its {name} is of type {tensor.kind}, not F32, F16 or BF16"
        elif tensor.size_bytes < prod(tensor.shape) * _ITEM_BYTES[tensor.kind]:
            yield f"its {name} is cut short"


def medusa_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why they cannot draft for a target."""
    ours, theirs = ModelShape(target).row_width, ModelShape(head).width
    if ours != theirs:
        yield f"it was made for a model of width {theirs}, the target's is {ours}"


def _residuals(shape: ModelShape, head: int) -> Iterator[str]:
    count = shape.stated("residual_count")
    for place in range(count if isinstance(count, int) else 1):
        yield f"blk.{head}.residual.{place}"


def _output(tensors: dict[str, Tensor], head: int) -> str:
    own = f"blk.{head}.output.weight"
    return own if own in tensors else "output.weight"


def _needed(
    tensors: dict[str, Tensor], shape: ModelShape, num_tokens: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors that the heads need, with their shapes as a file states them."""
    width = shape.width
    for head in range(shape.num_blocks):
        for block in _residuals(shape, head):
            yield f"{block}.weight", (width, width)
            yield f"{block}.bias", (width,)
        yield _output(tensors, head), (width, num_tokens)
