"""Weights of a projector that libmtmd takes for granted: without them it ends the process."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from localspec.gguf_file.header import Header

_BLOCK = re.compile(r"v\.blk\.\d+\.(?=attn_)")
_DEEPSTACK = re.compile(r"v\.deepstack\.\d+\.")
_JOINED, _APART = ("attn_qkv",), ("attn_q", "attn_k", "attn_v")
# Of these kinds each attention has biases, and patches are read from two pictures in a row.
_OF_PAIRS = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger")
_OF_ONE_WIDTH = (*_OF_PAIRS, "gemma3", "idefics3")
_NEEDED = {
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
    yield from _misshapen(header, has_one_width=kind in _OF_ONE_WIDTH)


def _misshapen(header: Header, *, has_one_width: bool) -> Iterator[str]:
    """Weights that do not fit their place in the file, their bias or the encoder.

    has_one_width: whether all blocks of the encoder are as wide as its header says.
    """
    width, shapes = header.number("clip.vision.embedding_length"), {}
    for tensor in header.tensors:
        shapes[tensor.name] = tensor.shape
        # No type has less than a bit for a weight.
        if not 0 < math.prod(tensor.shape) <= 8 * tensor.size_bytes:
            yield f"its {tensor.name} has the shape {tensor.shape}"
    side = header.number("clip.vision.patch_size")
    first = shapes.get("v.patch_embd.weight", ())
    if has_one_width and len(first) == 4 and first[:2] != (side, side):
        yield f"its v.patch_embd.weight is for patches of {first[0]} pixels, not {side}"
    for name, shape in shapes.items():
        weight = shapes.get(f"{name.removesuffix('.bias')}.weight", ())
        if name.endswith(".bias") and len(weight) in (1, 2) and shape[:1] != weight[-1:]:
            yield f"its {name} has the shape {shape}, beside a weight of {weight}"
        is_read = (
            has_one_width and _BLOCK.match(name) and re.search(r"attn_(q|qkv)\.weight$", name)
        )
        if is_read and shape[0] != width:
            yield f"its {name} is for a width of {shape[0]}, not {width}"
