"""Trained heads in GGUF files: what a header says of them, before libllama sees the file.

libllama ends the process if a head is used whose tensors were not loaded, or whose
architecture has no graph for it, and if a head alone is used as a model; so what a file has
is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from localspec.errors import ModelFileError
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.eagle import (
    eagle_misfits,
    eagle_refusals,
    is_read_by_steps,
    layers_read,
)
from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.gguf_file.medusa import medusa_misfits, medusa_refusals, weights_bytes
from localspec.gguf_file.shape import ModelShape

# What libllama's graphs take for granted of each MTP layer, and may not have loaded.
_NEEDED = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
_NEEDED_MORE = {"mimo2": ("attn_qkv", "ffn_gate", "ffn_up", "ffn_down")}
# Share of tokens that two copies of one tokenizer may spell differently; if more differ, it is
# another tokenizer.
_MAX_DIFFERENT = 0.01


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The trained head in a file.

    graph: how it is computed. num_layers: it has, or heads of Medusa. layers_read: those of
    the target that EAGLE-3 reads. is_apart: whether it has nothing else but what they need.
    num_chained: heads that follow each other, each of which drafts one token and reads all of
    the text; else 1. is_cropped: see `Architecture`. num_bytes: of its own weights, in memory;
    num_read_bytes: that the draft of one token reads. why_not: why they are of no use, in
    words; empty if they are.
    """

    graph: HeadGraph
    num_layers: int
    layers_read: tuple[int, ...]
    is_apart: bool
    num_chained: int
    is_cropped: bool
    num_bytes: int
    num_read_bytes: int
    why_not: str

    @property
    def shares_cache(self) -> bool:
        """Whether it attends with the target's keys and values, and keeps none."""
        return self.graph is HeadGraph.SHARED

    @property
    def description(self) -> str:
        """What it is, in the field's words."""
        if self.graph is HeadGraph.LAYERS:
            return f"an EAGLE-3 head that reads layers {', '.join(map(str, self.layers_read))}"
        if self.graph is HeadGraph.OUTPUT:
            return f"{self.num_layers} Medusa head{'s' if self.num_layers > 1 else ''}"
        return _layers(self.num_layers)


def head_facts(header: Header) -> HeadFacts | None:
    """The facts of the head in a model's file or in its own file; None if there is none."""
    shape = ModelShape(header)
    known = shape.architecture
    if shape.num_head_layers == 0 and not known.is_head:
        return None
    if known.head_graph is HeadGraph.LAYERS:
        return _eagle_facts(header, shape)
    if known.head_graph is HeadGraph.OUTPUT:
        return _medusa_facts(header, shape)
    sizes = {tensor.name: tensor.size_bytes for tensor in header.tensors}
    num_chained = shape.num_head_layers if known.head_graph is HeadGraph.CHAIN else 1
    own = {name for name in sizes if known.is_head or _layer(shape, name) >= 0}
    read = {name for name in own if num_chained == 1 or _layer(shape, name) <= 0}
    if not any("nextn.shared_head_head" in name for name in read):
        read.add("output.weight" if "output.weight" in sizes else "token_embd.weight")
    read = {name for name in read if "nextn.embed_tokens" not in name}  # but for a row
    return HeadFacts(
        graph=known.head_graph,
        num_layers=shape.num_head_layers,
        layers_read=(),
        is_apart=_is_apart(shape, sizes.keys()),
        num_chained=num_chained,
        is_cropped=known.is_cropped,
        num_bytes=sum(sizes[name] for name in own),
        num_read_bytes=sum(sizes.get(name, 0) for name in read),
        why_not=next(_refusals(header, shape, sizes.keys()), ""),
    )


def _eagle_facts(header: Header, shape: ModelShape) -> HeadFacts:
    sizes = {tensor.name: tensor.size_bytes for tensor in header.tensors}
    return HeadFacts(
        graph=HeadGraph.LAYERS,
        num_layers=shape.num_blocks,
        layers_read=layers_read(shape),
        is_apart=True,
        num_chained=1,
        is_cropped=False,
        num_bytes=sum(sizes.values()),
        num_read_bytes=sum(size for name, size in sizes.items() if is_read_by_steps(name)),
        why_not=next(eagle_refusals(header, shape), ""),
    )


def _medusa_facts(header: Header, shape: ModelShape) -> HeadFacts:
    num_bytes = weights_bytes(header)
    return HeadFacts(
        graph=HeadGraph.OUTPUT,
        num_layers=shape.num_blocks,
        layers_read=(),
        is_apart=True,
        num_chained=1,
        is_cropped=False,
        num_bytes=num_bytes,
        num_read_bytes=num_bytes // max(shape.num_blocks, 1),
        why_not=next(medusa_refusals(header, shape), ""),
    )


def _layer(shape: ModelShape, name: str) -> int:
    """Which of the MTP layers a tensor is of, negative if of none."""
    block = shape.block_of(name)
    return -1 if block is None else block - shape.num_layers


def check_target(header: Header) -> None:
    """Raise ModelFileError if a file has a head alone, which answers nothing by itself.

    libllama ends the process with it.
    """
    facts = head_facts(header)
    if facts is not None and facts.is_apart:
        raise ModelFileError(
            f"{header.path} holds a head alone, none of the layers of its model",
            "Give it as head=…, and the model that it was made for as target=….",
        )


def head_misfit(target: Header, head: Header) -> str:
    """Why what a head's file has does not draft for a target, in words; empty if it does."""
    facts = head_facts(head)
    if facts is None:
        return f"{head.path.name} has no head"
    misfits = _MISFITS.get(facts.graph, _own_misfits)
    reasons = (facts.why_not, *misfits(target, head), _vocabulary_misfit(target, head))
    return next(filter(None, reasons), "")


def _is_apart(shape: ModelShape, names: Collection[str]) -> bool:
    """As libllama finds it out, but for files that have no trunk by their architecture."""
    return (
        shape.architecture.is_head
        or shape.num_layers == 0
        or "blk.0.attn_norm.weight" not in names
    )


def _refusals(header: Header, shape: ModelShape, names: Collection[str]) -> Iterator[str]:
    """Why libllama would not compute the head, or end the process over it."""
    architecture, graph = header.architecture, shape.architecture.head_graph
    count = shape.num_head_layers
    if graph is HeadGraph.NONE:
        what = "heads" if shape.architecture.is_head else "MTP layers"
        yield f"{what} of {architecture!r} cannot be used"
    elif graph is HeadGraph.SHARED:
        if count != shape.num_blocks:
            yield f"its header states {count} MTP layers, it has {shape.num_blocks}"
        if shape.row_width == shape.width:
            yield "its header does not state the width of the target's rows"
        return
    missing = [
        name
        for block in range(shape.num_layers, shape.num_blocks)
        for part in (*_NEEDED, *_NEEDED_MORE.get(architecture, ()))
        if (name := f"blk.{block}.{part}.weight") not in names
    ]
    if missing:
        yield f"its header states {_layers(count)}, and the file lacks {missing[0]}"
    if graph is HeadGraph.ONE and count > 1:
        yield f"{_layers(count)} of {architecture!r} cannot be used, only one"
    if architecture == "deepseek2" and (
        not shape.is_latent or shape.stated("attention.temperature_scale")
    ):
        yield "MTP layers of 'deepseek2' can be used with plain latent attention only"


def _layers(count: int) -> str:
    return f"{count} MTP layer{'s' if count > 1 else ''}"


def _own_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why a head with the architecture of its target does not draft for it."""
    if target.architecture != head.architecture:
        yield _other_architecture(target, head)
    ours, theirs = ModelShape(target), ModelShape(head)
    for what, one, other in (
        ("rows of width", ours.row_width, theirs.row_width),
        ("a number of layers of", ours.num_layers, theirs.num_layers),
        ("a number of attention heads of", ours.num_heads, theirs.num_heads),
        ("keys of width", ours.key_width, theirs.key_width),
        ("values of width", ours.value_width, theirs.value_width),
    ):
        if one != other:
            yield f"it was made for a model with {what} {other}, the target has {one}"


def _shared_misfits(target: Header, head: Header) -> Iterator[str]:
    """The same, for a head that attends with the keys and values of its target."""
    ours, theirs = ModelShape(target), ModelShape(head)
    if target.architecture != theirs.architecture.head_of:
        yield _other_architecture(target, head)
        return
    if ours.row_width != theirs.row_width:
        yield (
            f"it was made for a model with rows of width {theirs.row_width}, "
            f"the target has {ours.row_width}"
        )
    windowed = ours.stated("attention.sliding_window_pattern")
    if not isinstance(windowed, tuple) or windowed[-2:] != (True, False):
        yield "it wants a target whose last layer sees all of the text, and the one before not"
        return
    kinds = theirs.stated("attention.sliding_window_pattern")
    for layer, is_windowed in enumerate(kinds if isinstance(kinds, tuple) else ()):
        with_layer = -2 if is_windowed else -1
        one, other = ours.stated_kv_heads()[with_layer], theirs.stated_kv_heads()[layer]
        if one != other:
            yield f"its layers share {other} heads of keys, the target's have {one}"
    for key in ("key_length", "value_length", "key_length_swa", "value_length_swa"):
        stated, wanted = (shape.stated(f"attention.{key}") for shape in (ours, theirs))
        if stated != wanted:
            yield f"its attention.{key} is {wanted}, the target's {stated}"


_MISFITS = {
    HeadGraph.SHARED: _shared_misfits,
    HeadGraph.LAYERS: eagle_misfits,
    HeadGraph.OUTPUT: medusa_misfits,
}


def _other_architecture(target: Header, head: Header) -> str:
    return f"it is of {head.architecture!r}, the target of {target.architecture!r}"


def _vocabulary_misfit(target: Header, head: Header) -> str:
    ours, theirs = HeaderVocabulary(target), HeaderVocabulary(head)
    if ours.size != theirs.size:
        return f"it has {theirs.size} tokens, the target has {ours.size}"
    if ours.kind != theirs.kind:
        return f"its tokenizer is of type {theirs.kind}, the target's of type {ours.kind}"
    pairs = enumerate(zip(ours.entries(), theirs.entries(), strict=True))
    different = [(token, one, other) for token, (one, other) in pairs if one != other]
    if len(different) <= _MAX_DIFFERENT * ours.size:
        return ""
    token, one, other = different[0]
    return (
        f"{len(different)} of its {ours.size} tokens differ from the target's: "
        f"{token} is {other!r}, and {one!r} there"
    )
