"""Trained heads in GGUF files, checked by their header before libllama sees the file.

libllama ends the process if the tensors of a head were not loaded, if its architecture has no
graph for it, or if a file with nothing but a head is used as a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from localspec.errors import ModelFileError
from localspec.gguf_file.architectures import HEADS_APART, HeadGraph
from localspec.gguf_file.head_kinds import (
    OWN_TOKENS,
    READ_BY_ROWS,
    BlockFacts,
    block_facts,
    block_refusals,
    layers_misfits,
    layers_read,
    medusa_misfits,
    medusa_refusals,
)
from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.gguf_file.shape import ModelShape, whole_numbers

# Tensors of each MTP layer that libllama's graphs use without checking that they are there.
_NEEDED = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
_NEEDED_MORE = {"mimo2": ("attn_qkv", "ffn_gate", "ffn_up", "ffn_down")}
# Share of tokens that two copies of one tokenizer may spell differently.
_MAX_DIFFERENT = 0.01


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The trained head in a file.

    graph: how it is computed. num_layers: of the head, or the number of Medusa heads.
    num_bytes: of its own weights, in memory. num_read_bytes: read to draft one token. why_not:
    why it cannot be used, in words; empty if it can. is_apart: whether the file holds nothing
    else. layers_read: layers of the target that EAGLE-3 or DFlash reads. block: how DFlash
    drafts; its num_read_bytes are those of a whole block. num_chained: layers in a chain,
    each of which drafts one token and reads the whole text; else 1. is_cropped: as in
    `Architecture`.
    """

    graph: HeadGraph
    num_layers: int
    num_bytes: int
    num_read_bytes: int
    why_not: str
    is_apart: bool = True
    layers_read: tuple[int, ...] = ()
    num_chained: int = 1
    is_cropped: bool = False
    block: BlockFacts | None = None

    @property
    def shares_cache(self) -> bool:
        """Whether it attends with the target's keys and values, and keeps none."""
        return self.graph is HeadGraph.SHARED

    @property
    def description(self) -> str:
        """The head in the field's words."""
        if self.graph in (HeadGraph.LAYERS, HeadGraph.BLOCK):
            reads = f"head that reads layers {', '.join(map(str, self.layers_read))}"
            if self.block is None:
                return f"an EAGLE-3 {reads}"
            most = self.block.most_tokens
            return f"a {self.block.kind} {reads} and drafts up to {most} tokens at once"
        if self.graph is HeadGraph.OUTPUT:
            return f"{self.num_layers} Medusa head{'s' if self.num_layers > 1 else ''}"
        return _layers(self.num_layers)


def head_facts(header: Header) -> HeadFacts | None:
    """The facts of the head in a model's file or in its own file; None if there is none."""
    shape = ModelShape(header)
    known, graph = shape.architecture, shape.architecture.head_graph
    if shape.num_head_layers == 0 and not known.is_head:
        return None
    sizes = {tensor.name: tensor.size_bytes for tensor in header.tensors}
    if graph in HEADS_APART:
        return _facts_apart(header, graph, sizes)
    num_chained = shape.num_head_layers if graph is HeadGraph.CHAIN else 1
    own = {name for name in sizes if known.is_head or _layer(shape, name) >= 0}
    read = {name for name in own if num_chained == 1 or _layer(shape, name) <= 0}
    if not any("nextn.shared_head_head" in name for name in read):
        read.add("output.weight" if "output.weight" in sizes else "token_embd.weight")
    read = {name for name in read if "nextn.embed_tokens" not in name}  # except for a row
    return HeadFacts(
        graph=graph,
        num_layers=shape.num_head_layers,
        num_bytes=sum(sizes[name] for name in own),
        num_read_bytes=sum(sizes.get(name, 0) for name in read),
        why_not=next(_refusals(header, shape, sizes.keys()), ""),
        is_apart=_is_apart(shape, sizes.keys()),
        num_chained=num_chained,
        is_cropped=known.is_cropped,
    )


def _facts_apart(header: Header, graph: HeadGraph, sizes: Mapping[str, int]) -> HeadFacts:
    """The facts of a head with an architecture of its own."""
    shape = ModelShape(header)
    if graph is HeadGraph.OUTPUT:
        values = sum(prod(t.shape) for t in header.tensors if t.name != OWN_TOKENS)
        num_bytes = 4 * values  # float32
        return HeadFacts(
            graph=graph,
            num_layers=shape.num_blocks,
            num_bytes=num_bytes,
            num_read_bytes=num_bytes // max(shape.num_blocks, 1),
            why_not=next(medusa_refusals(header), ""),
        )
    block = block_facts(header) if graph is HeadGraph.BLOCK else None
    # EAGLE-3 combines the rows of layers once for each token of the text.
    unread = READ_BY_ROWS if block else READ_BY_ROWS | {"fc.weight"}
    return HeadFacts(
        graph=graph,
        num_layers=shape.num_blocks,
        layers_read=layers_read(shape),
        num_bytes=sum(sizes.values()),
        num_read_bytes=sum(size for name, size in sizes.items() if name not in unread),
        why_not=next(block_refusals(header), "") if block else "",
        is_cropped=block is not None and not block.num_candidates,
        block=block,
    )


def _layer(shape: ModelShape, name: str) -> int:
    """Number of the MTP layer that a tensor belongs to; negative if to none."""
    block = shape.block_of(name)
    return -1 if block is None else block - shape.num_layers


def check_target(header: Header) -> None:
    """Raise ModelFileError if a file has nothing but a head, which ends libllama's process."""
    facts = head_facts(header)
    if facts is not None and facts.is_apart:
        raise ModelFileError(
            f"{header.path} holds a head alone, none of the layers of its model",
            "Give it as head=…, and the model that it was made for as target=….",
        )


def head_misfit(target: Header, head: Header) -> str:
    """Why the head in a file cannot draft for a target, in words; empty if it can."""
    facts = head_facts(head)
    if facts is None:
        return f"{head.path.name} has no head"
    misfits = _MISFITS.get(facts.graph, _own_misfits)
    reasons = (facts.why_not, *misfits(target, head), _vocabulary_misfit(target, head))
    return next(filter(None, reasons), "")


def _is_apart(shape: ModelShape, names: Collection[str]) -> bool:
    """Whether it is a head alone: libllama's test, and architectures that are heads."""
    return (
        shape.architecture.is_head
        or shape.num_layers == 0
        or "blk.0.attn_norm.weight" not in names
    )


def _refusals(header: Header, shape: ModelShape, names: Collection[str]) -> Iterator[str]:
    """Why libllama would refuse the head, or end the process over it."""
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
    """Why a head of its target's architecture cannot draft for it."""
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
    """Why a head that attends with its target's keys and values cannot draft for it."""
    ours, theirs = ModelShape(target), ModelShape(head)
    if target.architecture != theirs.architecture.head_of:
        yield _other_architecture(target, head)
        return
    if ours.row_width != theirs.row_width:
        yield (
            f"it was made for a model with rows of width {theirs.row_width}, "
            f"the target has {ours.row_width}"
        )
    windowed = whole_numbers(ours.stated("attention.sliding_window_pattern"))
    if windowed[-2:] != (True, False) or ours.num_blocks < 2:
        yield "it needs a target whose last layer sees the whole text, and the one before not"
        return
    kinds = whole_numbers(theirs.stated("attention.sliding_window_pattern"))
    for is_windowed, other in zip(kinds, theirs.stated_kv_heads(), strict=False):
        one = ours.stated_kv_heads()[-2 if is_windowed else -1]
        if one != other:
            yield f"its layers share {other} heads of keys, the target's have {one}"
    for key in ("key_length", "value_length", "key_length_swa", "value_length_swa"):
        stated, wanted = (shape.stated(f"attention.{key}") for shape in (ours, theirs))
        if stated != wanted:
            yield f"its attention.{key} is {wanted}, the target's {stated}"


_MISFITS = {
    HeadGraph.SHARED: _shared_misfits,
    HeadGraph.LAYERS: layers_misfits,
    HeadGraph.BLOCK: layers_misfits,
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
