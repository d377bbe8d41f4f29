"""Trained heads in GGUF files, checked by their header before libllama sees the file.

An MTP head lies in its target's file, or in one of its own. The others have an architecture and
a file of their own. EAGLE-3 (arXiv 2503.01840) is one layer that reads, at each token, the
inputs of some layers of its target. The layers of DFlash (arXiv 2602.06036) read the same, and
draft a whole block in one decode, of the last token and masks. libllama tells two further kinds
of it apart by their tensors: DSpark (a Markov head corrects each row by the likeliest token of
the row before, and a confidence head says how likely each token is right) and DFlash2 (a
selector scores pairs of the best tokens of neighbouring rows). Both may lack what they share
with their target: the token embeddings and the output layer, which may know some of the
target's tokens only.

Head k of Medusa (arXiv 2401.10774, section 2.1) reads what its target's output layer reads, h,
and predicts the token k + 1 positions behind the one that this layer predicts: output_k(r(h)),
where each residual block is r(h) = h + SiLU(W h + b). libllama knows no such heads; the layout
of these files is ours:

- `general.architecture` is "medusa", `medusa.block_count` the number of heads,
  `medusa.residual_count` that of residual blocks in each, `medusa.embedding_length` the width;
- `blk.K.residual.J.weight` (width, width) and `.bias` (width,), `blk.K.output.weight` (tokens,
  width), as F32, F16 or BF16;
- `d2t`, int64 (tokens,), the tokens that they know if not all; and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from localspec.errors import ModelFileError
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.header import Header
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
    """Its name in the field."""

    mask: int
    """The token in place of those that are to be drafted."""

    size: int
    """Tokens that it was trained to decode at once, the last token of the text included."""

    first_row: int
    """The first row of a decode that drafts a token."""

    num_candidates: int
    """Tokens of each row that the selector of DFlash2 scores; 0 without one."""

    has_confidences: bool
    """Whether it says how likely each token is right."""

    is_causal: bool
    """Whether a token attends to those before it only."""

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
    """Read to draft one token."""

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
    """How DFlash drafts; its num_read_bytes are those of a whole block."""

    @property
    def description(self) -> str:
        """The head in the field's words."""
        if self.graph in (HeadGraph.LAYERS, HeadGraph.BLOCK):
            reads = f"head that reads layers {', '.join(map(str, self.layers_read))}"
            if self.block is None:
                return f"an EAGLE-3 {reads}"
            most = self.block.most_tokens
            return f"a {self.block.kind} {reads} and drafts up to {most} tokens at once"
        what = "Medusa head" if self.graph is HeadGraph.OUTPUT else "MTP layer"
        return f"{self.num_layers} {what}{'s' if self.num_layers > 1 else ''}"


def head_facts(header: Header) -> HeadFacts | None:
    """The facts of the head in a model's file or in its own file; None if there is none."""
    shape = ModelShape(header)
    if shape.num_head_layers == 0 and not shape.architecture.is_head:
        return None
    kind = _KINDS.get(shape.architecture.head_graph, _MTP)
    return replace(kind.facts(header, shape), why_not=next(kind.refusals(header), ""))


def has_only_head(header: Header) -> bool:
    """Whether a file has nothing but a head."""
    facts = head_facts(header)
    return facts is not None and facts.is_apart


def check_target(header: Header) -> None:
    """Raise ModelFileError if a file has nothing but a head, which ends libllama's process."""
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
    ours = HeaderVocabulary(target)
    theirs = HeaderVocabulary(head)
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


# --- MTP layers ---


def _mtp_facts(header: Header, shape: ModelShape) -> HeadFacts:
    known = shape.architecture
    sizes = {tensor.name: tensor.size_bytes for tensor in header.tensors}
    num_chained = shape.num_head_layers if known.head_graph is HeadGraph.CHAIN else 1
    own = {name for name in sizes if known.is_head or _mtp_layer(shape, name) >= 0}
    read = {name for name in own if num_chained == 1 or _mtp_layer(shape, name) <= 0}
    if not any("nextn.shared_head_head" in name for name in read):
        read.add(_OUTPUT if _OUTPUT in sizes else _TABLE)
    read = {name for name in read if "nextn.embed_tokens" not in name}  # except for a row
    return HeadFacts(
        graph=known.head_graph,
        num_layers=shape.num_head_layers,
        num_bytes=sum(sizes[name] for name in own),
        num_read_bytes=sum(sizes.get(name, 0) for name in read),
        # As libllama tests it; and architectures that are heads.
        is_apart=known.is_head or not shape.num_layers or "blk.0.attn_norm.weight" not in sizes,
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
        what = "heads" if known.is_head else "MTP layers"
        yield f"{what} of {header.architecture!r} cannot be used"
    if known.head_graph is HeadGraph.SHARED:
        return
    for block in range(shape.num_layers, shape.num_blocks):
        for part in _NEEDED:
            if (name := f"blk.{block}.{part}.weight") not in names:
                yield f"its header states MTP layers, and the file lacks {name}"
    if known.head_graph is HeadGraph.ONE and count > 1:
        yield f"{count} MTP layers of {header.architecture!r} cannot be used, only one"


def _mtp_misfits(target: Header, head: Header) -> Iterator[str]:
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
    is_dflash2 = _SELECTOR in names
    is_dspark = _MARKOV in names and not is_dflash2
    mask = header.metadata.get("tokenizer.ggml.mask_token_id")
    from_anchor = shape.stated("sample_from_anchor") in (None, True)
    return BlockFacts(
        kind="DFlash2" if is_dflash2 else "DSpark" if is_dspark else "DFlash",
        mask=mask if isinstance(mask, int) else _NO_TOKEN,
        size=shape.most("block_size") or _USUAL_BLOCK,
        first_row=0 if is_dspark and from_anchor else 1,
        num_candidates=shape.most("selector_top_k") if is_dflash2 else 0,
        has_confidences=is_dspark and f"{_CONFIDENCE}.weight" in names,
        is_causal=shape.stated("attention.causal") is True,
    )


def _layers_facts(header: Header, shape: ModelShape) -> HeadFacts:
    is_block = shape.architecture.head_graph is HeadGraph.BLOCK
    block = block_facts(header) if is_block else None
    # EAGLE-3 combines the rows of layers once for each token of the text.
    unread = _READ_BY_ROWS if block else _READ_BY_ROWS | {"fc.weight"}
    return HeadFacts(
        graph=shape.architecture.head_graph,
        num_layers=shape.num_blocks,
        layers_read=shape.layers_read,
        num_bytes=header.weights_bytes,
        num_read_bytes=sum(t.size_bytes for t in header.tensors if t.name not in unread),
        is_cropped=block is not None and not block.num_candidates,
        block=block,
    )


def _block_refusals(header: Header) -> Iterator[str]:
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
    layers = theirs.layers_read
    is_eagle = theirs.architecture.head_graph is HeadGraph.LAYERS
    wanted = theirs.stated("target_hidden_size") if is_eagle else theirs.width
    if not known.gives_layers or ours.row_width != ours.width:
        yield f"libllama gives no access to the layers of {target.architecture!r}"
    if wanted != ours.width:
        yield f"it was made for a model of width {wanted}, the target's is {ours.width}"
    if min(layers, default=0) < 0 or max(layers, default=0) > ours.num_layers:
        yield f"it reads layers {layers}, the target has {ours.num_layers}"
    if ours.num_layers in layers and not known.gives_last:
        yield f"libllama gives no access to the last layer of {target.architecture!r}"
    tensors = head.by_name()
    lacking = [name for name in (_TABLE, _OUTPUT) if name not in tensors]
    if lacking and theirs.width != ours.width:
        yield f"it lacks {lacking[0]}, and the target's is not {theirs.width} wide"
    table = tensors.get(_TABLE)
    if table is not None and table.shape[-1] < len(target.tokens):
        yield f"its table has {table.shape[-1]} tokens, the target {len(target.tokens)}"


# --- Medusa ---


def medusa_names(header: Header) -> list[list[str]]:
    """The tensors of each Medusa head: weight and bias of each residual block, the output."""
    shape = ModelShape(header)
    count = shape.stated("residual_count")
    blocks = range(count if isinstance(count, int) else 1)
    return [
        [
            *(f"blk.{head}.residual.{n}.{part}" for n in blocks for part in ("weight", "bias")),
            f"blk.{head}.output.weight",
        ]
        for head in range(shape.num_blocks)
    ]


def _medusa_facts(header: Header, shape: ModelShape) -> HeadFacts:
    values = sum(prod(each.shape) for each in header.tensors if each.name != OWN_TOKENS)
    num_bytes = 4 * values  # as float32
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
    known = tensors.get(OWN_TOKENS)
    num_tokens = len(header.tokens) if known is None else prod(known.shape)
    if len(header.parts) > 1:
        yield f"it is split into {len(header.parts)} files"
    heads = medusa_names(header)
    if not heads:
        yield "its header states no heads"
    for name in (name for names in heads for name in names):
        shape = (width,) if name.endswith("bias") else (width, width)
        if ".output." in name:
            shape = (width, num_tokens)
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != shape or tensor.kind not in (F32, F16, BF16):
            yield f"it lacks {name} of the shape {shape} in F32, F16 or BF16"


def _medusa_misfits(target: Header, head: Header) -> Iterator[str]:
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
