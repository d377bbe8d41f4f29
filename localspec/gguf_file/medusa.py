"""Medusa heads in GGUF files (Cai et al., arXiv 2401.10774, section 2.1).

Head k reads what its target's output layer reads, h, and predicts the token k + 1 places behind
the one that this layer predicts: output_k(r(h)), where each residual block is
r(h) = h + SiLU(W h + b). libllama knows no such heads; the layout of these files is ours:

- `general.architecture` is "medusa", `medusa.block_count` the number of heads,
  `medusa.residual_count` that of residual blocks in each, `medusa.embedding_length` the width;
- `blk.K.residual.J.weight` (width, width) and perhaps `.bias` (width,), `blk.K.output.weight`
  (tokens, width), as F32, F16 or BF16; without the latter `output.weight` serves all heads;
- `d2t`, int64 (tokens,), if they know only some tokens: which ones; and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.shape import ModelShape

F32, F16, INT64, BF16 = 0, 1, 27, 30  # of ggml_type
_ITEM_BYTES = {F32: 4, F16: 2, BF16: 2, INT64: 8}
_NAMES = "d2t"


class MedusaTensors(NamedTuple):
    """The tensors of one head. residuals: weight and bias, if there is one, of each block."""

    residuals: tuple[tuple[Tensor, Tensor | None], ...]
    output: Tensor


def medusa_tensors(header: Header) -> tuple[MedusaTensors, ...]:
    """The tensors of every head, in a file without refusals."""
    shape, tensors = ModelShape(header), _by_name(header)
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


def names_of_tokens(header: Header) -> Tensor | None:
    """The tensor that says which tokens they know; None if all."""
    return _by_name(header).get(_NAMES)


def weights_bytes(header: Header) -> int:
    """What the weights take in memory, as float32."""
    return sum(4 * prod(t.shape) for t in header.tensors if t.name != _NAMES)


def medusa_refusals(header: Header, shape: ModelShape) -> Iterator[str]:
    """Why the heads cannot be computed."""
    if len(header.parts) > 1:
        yield f"it is split into {len(header.parts)} files"
    tensors = _by_name(header)
    names = tensors.get(_NAMES)
    num_tokens = len(header.tokens)
    if names is not None:
        num_tokens = prod(names.shape)
        if names.kind != INT64 or len(names.shape) != 1 or _is_cut(names):
            yield f"its {_NAMES} is not a list of 64-bit numbers"
    for name, wanted in _needed(tensors, shape, num_tokens):
        tensor = tensors.get(name)
        if tensor is None:
            if not name.endswith(".bias"):
                yield f"it lacks {name}"
        elif tensor.shape != wanted:
            yield f"its {name} has the shape {tensor.shape}, not {wanted}"
        elif tensor.kind not in (F32, F16, BF16):
            yield f"its {name} is of type {tensor.kind}, not F32, F16 or BF16"
        elif _is_cut(tensor):
            yield f"its {name} is cut short"


def medusa_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why they do not draft for a target."""
    ours, theirs = ModelShape(target).row_width, ModelShape(head).width
    if ours != theirs:
        yield f"it was made for a model of width {theirs}, the target's is {ours}"


def _by_name(header: Header) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in header.tensors}


def _is_cut(tensor: Tensor) -> bool:
    return tensor.size_bytes < prod(tensor.shape) * _ITEM_BYTES[tensor.kind]


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
    """Names of tensors, and their shapes as the file states them."""
    width = shape.width
    for head in range(shape.num_blocks):
        for block in _residuals(shape, head):
            yield f"{block}.weight", (width, width)
            yield f"{block}.bias", (width,)
        yield _output(tensors, head), (width, num_tokens)
