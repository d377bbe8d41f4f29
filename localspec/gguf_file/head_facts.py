"""Trained heads in GGUF files, checked by their header before libllama sees the file.

An MTP head is in its target's file, or in a file of its own. The other heads have an
architecture and a file of their own. EAGLE-3 (arXiv 2503.01840) is one layer that reads, at
each token, the inputs of some layers of its target. The layers of DFlash (arXiv 2602.06036)
read the same inputs, and draft a whole block in one decode of the last token and masks.
libllama recognises two other kinds of DFlash by their tensors: DSpark (a Markov head corrects
each row by the likeliest token of the row before, and a confidence head says how likely each
token is right) and DFlash2 (a selector scores pairs of the best tokens of neighbouring rows).
EAGLE-3 and DFlash heads may lack what they share with their target: the token embeddings and
the output layer. An output layer of their own may have only some of the target's tokens.

Head k of Medusa (arXiv 2401.10774, section 2.1) reads what its target's output layer reads, h.
It predicts the token k + 1 positions after the one that this layer predicts: output_k(r(h)),
where each residual block is r(h) = h + SiLU(W h + b). libllama knows no such heads; the layout
of these files is ours:

- `general.architecture` is "medusa", `medusa.block_count` the number of heads,
  `medusa.residual_count` that of residual blocks in each, `medusa.embedding_length` the width;
- `blk.K.residual.J.weight` (width, width) and `.bias` (width,), `blk.K.output.weight` (tokens,
  width), as F32, F16 or BF16;
- `d2t`, int64 (tokens,), the tokens of the output if they are not all; and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import NamedTuple

from localspec.errors import ModelFileError
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.header import Header, Value
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.gguf_file.shape import ModelShape, block_of
from localspec.gguf_file.tensor_types import BF16, F16, F32

OWN_TOKENS = "d2t"
_TABLE = "token_embd.weight"
_OUTPUT = "output.weight"
_MARKOV = "markov_w1.weight"
_SELECTOR = "selector_hidden.weight"
_CONFIDENCE = "conf_proj"
# Tensors of which a draft reads a few rows.
_READ_BY_ROWS = {
    _TABLE, OWN_TOKENS, _MARKOV, "selector_predecessor.weight", "selector_successor.weight",
}  # fmt: skip
_USUAL_BLOCK = 16  # tokens, if a header says nothing
_NO_TOKEN = -1
# Tensors of each MTP layer that libllama's graphs use without checking that they are there.
_NEEDED = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
# Share of tokens that two copies of one tokenizer may spell differently.
_MAX_DIFFERENT = 0.01


class BlockFacts(NamedTuple):
    """How a DFlash head drafts a block."""

    kind: str
    """Its name in the literature: DFlash, DFlash2 or DSpark."""

    mask: int
    """The token that stands in place of a token to draft."""

    size: int
    """Tokens that it was trained to decode at once, the last token of the text included."""

    first_row: int
    """The first row of a decode that drafts a token."""

    num_candidates: int
    """Tokens of each row that the selector of DFlash2 scores; 0 without one."""

    has_confidences: bool
    """Whether it says how likely each token is right."""

    is_causal: bool
    """Whether a token attends only to the tokens before it."""

    @property
    def most_tokens(self) -> int:
        """The most tokens that it can draft at once."""
        return self.size - self.first_row


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The trained head in a file."""

    graph: HeadGraph
    """How it is computed."""

    num_layers: int
    """The layers of the head, or the number of Medusa heads."""

    num_bytes: int
    """Bytes of its own weights in memory."""

    num_read_bytes: int
    """Bytes of weights that are read to draft one token."""

    why_not: str = ""
    """Why it cannot be used, in words; empty if it can."""

    is_apart: bool = True
    """Whether the file holds nothing else."""

    layers_read: tuple[int, ...] = ()
    """Layers of the target that EAGLE-3 or DFlash reads."""

    num_chained: int = 1
    """Layers in a chain, each of which drafts one token and reads the whole text; else 1."""

    is_cropped: bool = False
    """Whether it is cropped, as in `Architecture`."""

    block: BlockFacts | None = None
    """How DFlash drafts; num_read_bytes are then those for a whole block."""

    @property
    def description(self) -> str:
        """The head in the field's words."""
        if self.graph in (HeadGraph.LAYERS, HeadGraph.BLOCK):
            layers = ", ".join(map(str, self.layers_read))
            reads = f"head that reads layers {layers}"
            if self.block is None:
                return f"an EAGLE-3 {reads}"
            most = self.block.most_tokens
            return f"a {self.block.kind} {reads} and drafts up to {most} tokens at once"
        what = "MTP layer"
        if self.graph is HeadGraph.OUTPUT:
            what = "Medusa head"
        if self.num_layers > 1:
            what += "s"
        return f"{self.num_layers} {what}"


def head_facts(header: Header) -> HeadFacts | None:
    """The facts of the head in a model's file or in its own file; None if there is none."""
    shape = ModelShape(header)
    if shape.num_head_layers == 0 and not shape.architecture.is_head:
        return None
    kind = _KINDS.get(shape.architecture.head_graph, _MTP)
    why_not = next(kind.refusals(header), "")
    return replace(kind.facts(header, shape), why_not=why_not)


def has_only_head(header: Header) -> bool:
    """Whether a file has nothing but a head."""
    facts = head_facts(header)
    return facts is not None and facts.is_apart


def check_target(header: Header) -> None:
    """Raise ModelFileError if a file has nothing but a head: libllama would end the process."""
    if has_only_head(header):
        raise ModelFileError(
            f"{header.path} holds only a head, without its model's layers",
            "Give it as head=…, and the model that it was made for as target=….",
        )


def head_misfit(target: Header, head: Header) -> str:
    """Why the head in a file cannot draft for a target, in words; empty if it can."""
    facts = head_facts(head)
    if facts is None:
        return f"{head.path.name} has no head"
    misfits = _KINDS.get(facts.graph, _MTP).misfits(target, head)
    reasons = (facts.why_not, *misfits, _vocabulary_misfit(target, head))
    return next(filter(None, reasons), "")


def _vocabulary_misfit(target: Header, head: Header) -> str:
    """How a head's vocabulary differs from its target's, in words; empty if they agree.

    They agree even if a few tokens are spelled differently: see `_MAX_DIFFERENT`.
    """
    ours = HeaderVocabulary(target)
    theirs = HeaderVocabulary(head)
    if ours.size != theirs.size:
        return f"it has {theirs.size} tokens, the target has {ours.size}"
    if ours.kind != theirs.kind:
        return f"its tokenizer is of type {theirs.kind}, the target's of type {ours.kind}"
    our_texts = ours.entries()
    their_texts = theirs.entries()
    different = [token for token in range(ours.size) if our_texts[token] != their_texts[token]]
    if len(different) <= _MAX_DIFFERENT * ours.size:
        return ""
    first = different[0]
    return (
        f"{len(different)} of its {ours.size} tokens differ from the target's: "
        f"{first} is {their_texts[first]!r}, and {our_texts[first]!r} there"
    )


# --- MTP layers ---


def _mtp_facts(header: Header, shape: ModelShape) -> HeadFacts:
    """The facts of MTP layers."""
    known = shape.architecture
    num_chained = 1
    if known.head_graph is HeadGraph.CHAIN:
        num_chained = shape.num_head_layers
    num_bytes = 0
    num_read_bytes = 0
    has_output = False
    for tensor in header.tensors:
        layer = _mtp_layer(shape, tensor.name)
        if not known.is_head and layer < 0:
            continue
        num_bytes += tensor.size_bytes
        if num_chained > 1 and layer > 0:  # another token's layer
            continue
        if "nextn.shared_head_head" in tensor.name:
            has_output = True
        if "nextn.embed_tokens" not in tensor.name:  # only a row of it is read
            num_read_bytes += tensor.size_bytes
    by_name = header.by_name()
    if not has_output and not known.is_head:  # the target's output; else it is counted already
        output = by_name.get(_OUTPUT) or by_name.get(_TABLE)
        if output is not None:
            num_read_bytes += output.size_bytes
    # As libllama tests it; and architectures that are heads.
    is_apart = known.is_head or not shape.num_layers or "blk.0.attn_norm.weight" not in by_name
    return HeadFacts(
        graph=known.head_graph,
        num_layers=shape.num_head_layers,
        num_bytes=num_bytes,
        num_read_bytes=num_read_bytes,
        is_apart=is_apart,
        num_chained=num_chained,
        is_cropped=known.is_cropped,
    )


def _mtp_layer(shape: ModelShape, name: str) -> int:
    """Number of the MTP layer that a tensor belongs to; negative if to none."""
    block = block_of(name)
    if block is None:
        return -1
    return block - shape.num_layers


def _mtp_refusals(header: Header) -> Iterator[str]:
    """Why libllama would refuse MTP layers, or end the process over them."""
    shape = ModelShape(header)
    names = header.by_name()
    known = shape.architecture
    count = shape.num_head_layers
    if known.head_graph is HeadGraph.NONE:
        what = "MTP layers"
        if known.is_head:
            what = "heads"
        yield f"{what} of {header.architecture!r} cannot be used"
    if known.head_graph is HeadGraph.SHARED:
        return
    for block in range(shape.num_layers, shape.num_blocks):
        for part in _NEEDED:
            name = f"blk.{block}.{part}.weight"
            if name not in names:
                yield f"its header states MTP layers, and the file lacks {name}"
    if known.head_graph is HeadGraph.ONE and count > 1:
        yield f"{count} MTP layers of {header.architecture!r} cannot be used, only one"


def _mtp_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why MTP layers in a file of their own cannot draft for a target."""
    ours = ModelShape(target)
    theirs = ModelShape(head)
    if target.architecture != (theirs.architecture.head_of or head.architecture):
        yield f"it is of {head.architecture!r}, the target of {target.architecture!r}"
    if ours.row_width != theirs.row_width:
        yield (
            f"it was made for a model with rows of width {theirs.row_width}, "
            f"the target has {ours.row_width}"
        )


# --- EAGLE-3 and DFlash ---


def block_facts(header: Header) -> BlockFacts:
    """How the head in a file drafts a block, by the same facts as libllama."""
    shape = ModelShape(header)
    names = header.by_name()
    kind = "DFlash"
    first_row = 1
    num_candidates = 0
    has_confidences = False
    if _SELECTOR in names:
        kind = "DFlash2"
        num_candidates = shape.most("selector_top_k")
    elif _MARKOV in names:
        kind = "DSpark"
        has_confidences = f"{_CONFIDENCE}.weight" in names
        if shape.stated("sample_from_anchor") in (None, True):
            first_row = 0
    mask = header.metadata.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int):
        mask = _NO_TOKEN
    return BlockFacts(
        kind=kind,
        mask=mask,
        size=shape.most("block_size") or _USUAL_BLOCK,
        first_row=first_row,
        num_candidates=num_candidates,
        has_confidences=has_confidences,
        is_causal=shape.stated("attention.causal") is True,
    )


def _layers_facts(header: Header, shape: ModelShape) -> HeadFacts:
    """The facts of an EAGLE-3 or DFlash head."""
    unread = set(_READ_BY_ROWS)
    block = None
    is_cropped = False
    if shape.architecture.head_graph is HeadGraph.BLOCK:
        block = block_facts(header)
        is_cropped = not block.num_candidates
    else:
        # EAGLE-3 combines the rows of layers once for each token of the text.
        unread.add("fc.weight")
    num_read_bytes = 0
    for tensor in header.tensors:
        if tensor.name not in unread:
            num_read_bytes += tensor.size_bytes
    return HeadFacts(
        graph=shape.architecture.head_graph,
        num_layers=shape.num_blocks,
        layers_read=shape.layers_read,
        num_bytes=header.weights_bytes,
        num_read_bytes=num_read_bytes,
        is_cropped=is_cropped,
        block=block,
    )


def _block_refusals(header: Header) -> Iterator[str]:
    """Why a DFlash head cannot be used."""
    shape = ModelShape(header)
    if shape.most("hyper_connection.count"):
        yield "DSpark heads of DeepSeek V4's layers cannot be used"
    if not shape.layers_read:
        yield "its header does not state which layers of its target it reads"
    if not 0 <= block_facts(header).mask < len(header.tokens):
        yield "its header names no token as the mask"


def _layers_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why a head that reads inputs of layers cannot draft for a target."""
    ours = ModelShape(target)
    theirs = ModelShape(head)
    known = ours.architecture
    if not known.gives_layers or ours.row_width != ours.width:
        yield f"libllama gives no access to the layers of {target.architecture!r}"
    made_for: Value = theirs.width
    if theirs.architecture.head_graph is HeadGraph.LAYERS:
        made_for = theirs.stated("target_hidden_size")
    if made_for != ours.width:
        yield f"it was made for a model of width {made_for}, the target's is {ours.width}"
    layers = theirs.layers_read
    if min(layers, default=0) < 0 or max(layers, default=0) > ours.num_layers:
        yield f"it reads layers {layers}, the target has {ours.num_layers}"
    if ours.num_layers in layers and not known.gives_last:
        yield f"libllama gives no access to the last layer of {target.architecture!r}"
    yield from _table_misfits(target, head)


def _table_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why a head's embeddings or output layer, or the lack of one, do not suit a target."""
    width = ModelShape(head).width
    tensors = head.by_name()
    if width != ModelShape(target).width:
        for name in (_TABLE, _OUTPUT):
            if name not in tensors:
                yield f"it lacks {name}, and the target's is not {width} wide"
    table = tensors.get(_TABLE)
    if table is None:
        return
    num_tokens = table.shape[-1]
    if num_tokens < len(target.tokens):
        yield f"its table has {num_tokens} tokens, the target {len(target.tokens)}"


# --- Medusa ---


def medusa_names(header: Header) -> list[list[str]]:
    """The tensors of each Medusa head: weight and bias of each residual block, the output."""
    shape = ModelShape(header)
    num_residual = shape.stated("residual_count")
    if not isinstance(num_residual, int):
        num_residual = 1
    names = []
    for head in range(shape.num_blocks):
        of_head = []
        for block in range(num_residual):
            of_head.append(f"blk.{head}.residual.{block}.weight")
            of_head.append(f"blk.{head}.residual.{block}.bias")
        of_head.append(f"blk.{head}.output.weight")
        names.append(of_head)
    return names


def _medusa_facts(header: Header, shape: ModelShape) -> HeadFacts:
    """The facts of Medusa heads."""
    num_values = 0
    for tensor in header.tensors:
        if tensor.name != OWN_TOKENS:
            num_values += prod(tensor.shape)
    num_bytes = 4 * num_values  # as float32
    return HeadFacts(
        graph=HeadGraph.OUTPUT,
        num_layers=shape.num_blocks,
        num_bytes=num_bytes,
        num_read_bytes=num_bytes // max(shape.num_blocks, 1),
    )


def _medusa_refusals(header: Header) -> Iterator[str]:
    """Why Medusa heads cannot be computed."""
    width = ModelShape(header).width
    tensors = header.by_name()
    num_tokens = len(header.tokens)
    known = tensors.get(OWN_TOKENS)
    if known is not None:
        num_tokens = prod(known.shape)
    if len(header.parts) > 1:
        yield f"it is split into {len(header.parts)} files"
    heads = medusa_names(header)
    if not heads:
        yield "its header states no heads"
    for name in chain.from_iterable(heads):
        shape: tuple[int, ...] = (width, width)
        if name.endswith("bias"):
            shape = (width,)
        elif ".output." in name:
            shape = (width, num_tokens)
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != shape or tensor.kind not in (F32, F16, BF16):
            yield f"it lacks {name} of the shape {shape} in F32, F16 or BF16"


def _medusa_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why Medusa heads cannot draft for a target."""
    ours = ModelShape(target).row_width
    theirs = ModelShape(head).width
    if ours != theirs:
        yield f"it was made for a model of width {theirs}, the target's is {ours}"


class _HeadKind(NamedTuple):
    """Behaviour that differs between kinds of heads."""

    facts: Callable[[Header, ModelShape], HeadFacts]
    """The facts of a file."""

    refusals: Callable[[Header], Iterator[str]]
    """Why it cannot be used."""

    misfits: Callable[[Header, Header], Iterator[str]]
    """Why it cannot draft for a target, whose header comes first."""


_MTP = _HeadKind(_mtp_facts, _mtp_refusals, _mtp_misfits)
_KINDS = {
    HeadGraph.LAYERS: _HeadKind(_layers_facts, lambda _header: iter(()), _layers_misfits),
    HeadGraph.BLOCK: _HeadKind(_layers_facts, _block_refusals, _layers_misfits),
    HeadGraph.OUTPUT: _HeadKind(_medusa_facts, _medusa_refusals, _medusa_misfits),
}
