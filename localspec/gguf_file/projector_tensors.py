"""Weights of a projector that libmtmd takes for granted: without them it ends the process."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial

from localspec.gguf_file.header import Header
from localspec.gguf_file.tensor_types import F32, NOT_MULTIPLIED, type_name

_BLOCK = re.compile(r"v\.blk\.\d+\.(?=attn_)")
_DEEPSTACK = re.compile(r"v\.deepstack\.\d+\.")
_JOINED, _APART = ("attn_qkv",), ("attn_q", "attn_k", "attn_v")
# Of these kinds each attention has biases, and patches are read from two pictures in a row.
_OF_PAIRS = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger")
# Whose numbers of rows that become one are stated under this name.
_MERGED = {
    **dict.fromkeys(_OF_PAIRS, "spatial_merge_size"),
    **dict.fromkeys(("gemma3", "idefics3"), "projector.scale_factor"),
}
_FEED_FORWARD = re.compile(r"v\.blk\.\d+\.ffn_(up|down|gate)\.weight")
# One reads what the other gives. The names of some files are the wrong way round.
_IN_A_ROW = (
    (r"(v\.blk\.\d+)\.ffn_up\.weight", r"\1.ffn_down.weight"),
    (r"(v\.deepstack\.\d+)\.fc1\.weight", r"\1.fc2.weight"),
    (r"mm\.0\.weight", "mm.2.weight"),
)
_NEEDED = {
    **dict.fromkeys(("gemma3", "idefics3"), ("v.position_embd.weight",)),
    **dict.fromkeys(_OF_PAIRS, ("v.patch_embd.weight.1",)),
    "qwen3vl_merger": (
        *("v.patch_embd.weight.1", "v.patch_embd.bias", "v.position_embd.weight"),
    ),
}


def tensor_faults(header: Header, kind: str) -> Iterator[str]:
    """What is wrong with its weights. kind: llama.cpp's name of the projector."""
    names = {tensor.name for tensor in header.tensors}
    for name in _NEEDED.get(kind, ()):
        if name not in names:
            yield f"it has no {name}"
    for block in sorted({found[0] for found in map(_BLOCK.match, names) if found}):
        parts = _JOINED if f"{block}attn_qkv.weight" in names else _APART
        ends = (".weight", ".bias") if kind in _OF_PAIRS else (".weight",)
        for name in (f"{block}{part}{end}" for part in parts for end in ends):
            if name not in names:
                yield f"it has no {name}"
    for layer in sorted({found[0] for found in map(_DEEPSTACK.match, names) if found}):
        if not {f"{layer}fc1.weight", f"{layer}fc2.weight"} <= names:
            yield f"it lacks weights of {layer}"
    yield from _mistyped(header)
    if kind in _MERGED:
        yield from _misshapen(header, kind)


def _mistyped(header: Header) -> Iterator[str]:
    """Weights that do not fit their place in the file, their bias or what is done with them."""
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    for tensor in header.tensors:
        # No type has less than a bit for a weight.
        if not 0 < math.prod(tensor.shape) <= 8 * tensor.size_bytes:
            yield f"its {tensor.name} has the shape {tensor.shape}"
        # What is added or multiplied element by element is in float32.
        is_simple = len(tensor.shape) == 1 or tensor.kind in NOT_MULTIPLIED
        if is_simple and tensor.kind != F32:
            yield f"its {tensor.name} is of the type {type_name(tensor.kind)}"
        weight = shapes.get(f"{tensor.name.removesuffix('.bias')}.weight", ())
        # Those of other convolutions have dimensions of 1 around theirs, as they are added.
        is_bias = len(weight) in (1, 2) or tensor.name == "v.patch_embd.bias"
        if is_bias and tensor.name.endswith(".bias") and tensor.shape != weight[-1:]:
            yield f"its {tensor.name} has the shape {tensor.shape}, beside a weight of {weight}"


def _misshapen(header: Header, kind: str) -> Iterator[str]:
    """Weights that are not as wide as the encoder, or whose number of rows is another's."""
    stated = partial(_stated, header)
    width, side, merged = (
        stated("embedding_length"),
        stated("patch_size"),
        stated(_MERGED[kind]),
    )
    joined = width * (merged or 2) ** 2  # what becomes one cell
    if kind in _OF_PAIRS and stated("block_count") < 1:
        yield "it has no blocks, which read the places of its patches"
    heads = stated("attention.head_count") * stated("attention.head_dim") or width
    places = (stated("image_size") // max(side, 1)) ** 2
    wanted: tuple[tuple[str, tuple[int, ...]], ...] = (
        (r"v\.(blk\.\d+\.ln[12]|post_ln|pre_ln)\.weight", (width,)),
        (r"v\.blk\.\d+\.attn_(q|k|v)\.weight", (width, heads)),
        (r"v\.blk\.\d+\.attn_out\.weight", (heads, width)),
        (r"v\.blk\.\d+\.attn_qkv\.weight", (width, 3 * heads)),
        (r"v\.patch_embd\.weight(\.1)?", (side, side, 3, width)),
        (r"v\.position_embd\.weight", (width, 0 if kind in _OF_PAIRS else places)),
        (r"mm\.soft_emb_norm\.weight", (width,)),
        (r"mm\.input_projection\.weight", (0, width)),
        (r"v\.deepstack\.\d+\.norm\.weight", (joined,)),
        (r"(v\.deepstack\.\d+\.fc1|mm\.0|mm\.model\.fc)\.weight", (joined, 0)),
    )
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    for name, shape in shapes.items():
        for pattern, right in wanted:
            if re.fullmatch(pattern, name) and not _fits(shape, right):
                yield f"its {name} has the shape {shape}, not {right}"
        if _FEED_FORWARD.fullmatch(name) and (len(shape) != 2 or width not in shape):
            yield f"its {name} has the shape {shape}, beside a width of {width}"
    for first, second in _IN_A_ROW:
        for name in filter(re.compile(first).fullmatch, shapes):
            behind = shapes.get(re.sub(first, second, name))
            if behind is not None and behind[:1] != shapes[name][1:2]:
                yield f"its {name} has the shape {shapes[name]}, before one of {behind}"
    grid = math.prod(shapes.get("v.position_embd.weight", ())[-1:])
    if math.isqrt(grid) ** 2 != grid:
        yield f"its v.position_embd.weight is for {grid} places, which are no square"


def _stated(header: Header, name: str) -> int:
    return header.number(f"clip.vision.{name}")


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether it is the shape that is wanted, in which 0 is any size."""
    return len(shape) == len(wanted) and all(
        size == most or not most for size, most in zip(shape, wanted, strict=True)
    )
