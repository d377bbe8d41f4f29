"""Trained heads in GGUF files, checked by their header before libllama opens the file.

A head is a few layers that draft for one target. An MTP head is in its target's file, or in a
file of its own. The other heads have an architecture and a file of their own. EAGLE-3 (arXiv
2503.01840) is one layer that reads, at each token, the inputs of some layers of its target. The
layers of DFlash (arXiv 2602.06036) read the same inputs, and draft a whole block in one decode
of the last token and masks. libllama recognises two other kinds of DFlash by their tensors:
DSpark (a Markov head corrects each row by the likeliest token of the row before, and a
confidence head says how likely each token is right) and DFlash2 (a selector scores pairs of the
best tokens of neighbouring rows). EAGLE-3 and DFlash heads may lack what they share with their
target: the token embeddings and the output layer. An output layer of their own may have only
some of the target's tokens.

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
_EMBEDDINGS = "token_embd.weight"
_OUTPUT = "output.weight"
_MARKOV = "markov_w1.weight"
_SELECTOR = "selector_hidden.weight"
_CONFIDENCE = "conf_proj.weight"
_FIRST_LAYER_NORM = "blk.0.attn_norm.weight"
# Tensors of which a draft reads only a few rows.
_READ_BY_ROWS = {
    _EMBEDDINGS, OWN_TOKENS, _MARKOV,
    "selector_predecessor.weight", "selector_successor.weight",
}  # fmt: skip
_DEFAULT_BLOCK_SIZE = 16  # tokens, if the header states no size
_NO_TOKEN = -1
_FLOAT32_BYTES = 4
# Tensors of each MTP layer that libllama's graphs use without checking that they are there.
_REQUIRED_TENSORS = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
# The share of tokens that two copies of one tokenizer may spell differently.
_MAX_DIFFERENT_SHARE = 0.01


class BlockFacts(NamedTuple):
    """How a DFlash head drafts a block."""

    kind: str
    """Its name in the literature: DFlash, DFlash2 or DSpark."""

    mask: int
    """The token that stands in place of each token to draft; -1 if the header names none."""

    size: int
    """Tokens that it was trained to decode at once, the last token of the text included."""

    first_row: int
    """The number of the first row of a block from which a token is drafted: 0 or 1."""

    num_candidates: int
    """Tokens of each row that the selector of DFlash2 scores; 0 without a selector."""

    has_confidences: bool
    """Whether the head says how likely each token is right."""

    is_causal: bool
    """Whether a token attends only to the tokens before it."""

    @property
    def most_tokens(self) -> int:
        """The most tokens that the head can draft at once."""
        return self.size - self.first_row


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The facts of the trained head in a file."""

    graph: HeadGraph
    """How the head is computed."""

    num_layers: int
    """The layers of the head, or the number of Medusa heads."""

    num_bytes: int
    """Bytes of its own weights in memory."""

    num_read_bytes: int
    """Bytes of weights that are read to draft one token, or a whole block with DFlash."""

    why_not: str = ""
    """Why no target can use the head, in words; empty if one can."""

    is_apart: bool = True
    """Whether the file holds nothing but the head."""

    layers_read: tuple[int, ...] = ()
    """Layers of the target whose inputs EAGLE-3 or DFlash reads; empty for other heads."""

    num_chained: int = 1
    """Layers in a chain, each of which drafts one token and reads the whole text; 1 without a
    chain."""

    has_output_rows_only: bool = False
    """Whether a decode gives rows only for outputs: see `Architecture`."""

    block: BlockFacts | None = None
    """How DFlash drafts a block; None for other heads."""

    @property
    def description(self) -> str:
        """The head in the literature's words, such as "2 MTP layers" or "4 Medusa heads"."""
        if self.graph in (HeadGraph.EAGLE3, HeadGraph.DFLASH):
            layers = ", ".join(map(str, self.layers_read))
            reads = f"head that reads layers {layers}"
            if self.block is None:
                return f"an EAGLE-3 {reads}"
            max_tokens = self.block.most_tokens
            return f"a {self.block.kind} {reads} and drafts up to {max_tokens} tokens at once"
        unit = "MTP layer"
        if self.graph is HeadGraph.MEDUSA:
            unit = "Medusa head"
        if self.num_layers > 1:
            unit += "s"
        return f"{self.num_layers} {unit}"


def head_facts(header: Header) -> HeadFacts | None:
    """The facts of the head in a file, which may hold its target, too; None without a head."""
    shape = ModelShape(header)
    if shape.num_head_layers == 0 and not shape.architecture.is_head:
        return None
    kind = _KINDS.get(shape.architecture.head_graph, _MTP)
    facts = kind.facts(header, shape)
    refusals = kind.refusals(header)
    return replace(facts, why_not=next(refusals, ""))


def has_only_head(header: Header) -> bool:
    """Whether a file holds a head and nothing else."""
    facts = head_facts(header)
    return facts is not None and facts.is_apart


def check_target(header: Header) -> None:
    """Raise ModelFileError if a file holds only a head: libllama would end the process."""
    if has_only_head(header):
        raise ModelFileError(
            f"{header.path} holds only a head, without its model's layers",
            "Give it as head=…, and the model that it was made for as target=….",
        )


def head_misfit(target: Header, head: Header) -> str:
    """Why the head in a file cannot draft for a target, in words; empty if it can.

    Args:
        target: The header of the target's file.
        head: The header of the head's file.
    """
    facts = head_facts(head)
    if facts is None:
        return f"{head.path.name} has no head"
    if facts.why_not:
        return facts.why_not
    kind = _KINDS.get(facts.graph, _MTP)
    first_misfit = next(kind.misfits(target, head), "")
    return first_misfit or _vocabulary_misfit(target, head)


def _vocabulary_misfit(target: Header, head: Header) -> str:
    """How a head's vocabulary differs from its target's, in words; empty if it does not.

    A few tokens may be spelled differently: up to `_MAX_DIFFERENT_SHARE`.
    """
    target_vocabulary = HeaderVocabulary(target)
    head_vocabulary = HeaderVocabulary(head)
    size = target_vocabulary.size
    if size != head_vocabulary.size:
        return f"it has {head_vocabulary.size} tokens, the target has {size}"
    if target_vocabulary.kind != head_vocabulary.kind:
        return (
            f"its tokenizer is of type {head_vocabulary.kind}, "
            f"the target's of type {target_vocabulary.kind}"
        )
    target_texts = target_vocabulary.entries()
    head_texts = head_vocabulary.entries()
    different = [token for token in range(size) if target_texts[token] != head_texts[token]]
    if len(different) <= _MAX_DIFFERENT_SHARE * size:
        return ""
    first = different[0]
    return (
        f"{len(different)} of its {size} tokens differ from the target's: "
        f"token {first} is {head_texts[first]!r}, the target's is {target_texts[first]!r}"
    )


# --- MTP layers ---


def _mtp_facts(header: Header, shape: ModelShape) -> HeadFacts:
    """The facts of MTP layers."""
    architecture = shape.architecture
    num_chained = 1
    if architecture.head_graph is HeadGraph.MTP_CHAIN:
        num_chained = shape.num_head_layers
    num_bytes = 0
    num_read_bytes = 0
    has_own_output = architecture.is_head
    for tensor in header.tensors:
        layer = _mtp_layer(shape, tensor.name)
        if layer is None and not architecture.is_head:
            continue
        num_bytes += tensor.size_bytes
        drafts_later_token = num_chained > 1 and layer not in (None, 0)
        if drafts_later_token:
            continue
        if "nextn.shared_head_head" in tensor.name:
            has_own_output = True
        if "nextn.embed_tokens" not in tensor.name:  # only a row of it is read
            num_read_bytes += tensor.size_bytes
    by_name = header.by_name()
    if not has_own_output:  # it reads the target's output layer, or the embeddings in its place
        output = by_name.get(_OUTPUT) or by_name.get(_EMBEDDINGS)
        if output is not None:
            num_read_bytes += output.size_bytes
    # A file may hold MTP layers alone, under the target's architecture. As for libllama, it
    # holds the target, too, if it has the target's first layer.
    has_model = shape.num_layers > 0 and _FIRST_LAYER_NORM in by_name
    return HeadFacts(
        graph=architecture.head_graph,
        num_layers=shape.num_head_layers,
        num_bytes=num_bytes,
        num_read_bytes=num_read_bytes,
        is_apart=architecture.is_head or not has_model,
        num_chained=num_chained,
        has_output_rows_only=architecture.has_output_rows_only,
    )


def _mtp_layer(shape: ModelShape, name: str) -> int | None:
    """The number of the MTP layer that a tensor belongs to, from 0; None if to none."""
    block = block_of(name)
    if block is None or block < shape.num_layers:
        return None
    return block - shape.num_layers


def _mtp_refusals(header: Header) -> Iterator[str]:
    """Why libllama would refuse MTP layers or end the process over them, for any target."""
    shape = ModelShape(header)
    tensors = header.by_name()
    architecture = shape.architecture
    num_layers = shape.num_head_layers
    if architecture.head_graph is HeadGraph.NONE:
        unit = "MTP layers"
        if architecture.is_head:
            unit = "heads"
        yield f"{unit} of {header.architecture!r} cannot be used"
    if architecture.head_graph is HeadGraph.ASSISTANT:  # it needs no _REQUIRED_TENSORS
        return
    for block in range(shape.num_layers, shape.num_blocks):
        for name_in_block in _REQUIRED_TENSORS:
            name = f"blk.{block}.{name_in_block}.weight"
            if name not in tensors:
                yield f"its header states MTP layers, and the file lacks {name}"
    if architecture.head_graph is HeadGraph.ONE_MTP and num_layers > 1:
        yield f"{num_layers} MTP layers of {header.architecture!r} cannot be used, only one"


def _mtp_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why MTP layers in a file of their own cannot draft for a target."""
    target_shape = ModelShape(target)
    head_shape = ModelShape(head)
    needed_architecture = head_shape.architecture.head_of or head.architecture
    if target.architecture != needed_architecture:
        yield f"it is of {head.architecture!r}, the target of {target.architecture!r}"
    if target_shape.row_width != head_shape.row_width:
        yield (
            f"it was made for a model with rows of width {head_shape.row_width}, "
            f"the target has {target_shape.row_width}"
        )


# --- EAGLE-3 and DFlash ---


def _block_facts(header: Header) -> BlockFacts:
    """How the DFlash head in a file drafts a block, decided as libllama does."""
    shape = ModelShape(header)
    tensors = header.by_name()
    kind = "DFlash"
    first_row = 1
    num_candidates = 0
    has_confidences = False
    if _SELECTOR in tensors:
        kind = "DFlash2"
        num_candidates = shape.number("selector_top_k")
    elif _MARKOV in tensors:
        kind = "DSpark"
        has_confidences = _CONFIDENCE in tensors
        # The anchor is the last token of the text, in the first row.
        if shape.value("sample_from_anchor") in (None, True):
            first_row = 0
    mask = header.metadata.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int):
        mask = _NO_TOKEN
    return BlockFacts(
        kind=kind,
        mask=mask,
        size=shape.number("block_size") or _DEFAULT_BLOCK_SIZE,
        first_row=first_row,
        num_candidates=num_candidates,
        has_confidences=has_confidences,
        is_causal=shape.value("attention.causal") is True,
    )


def _feature_head_facts(header: Header, shape: ModelShape) -> HeadFacts:
    """The facts of an EAGLE-3 or DFlash head."""
    not_read_whole = set(_READ_BY_ROWS)
    block = None
    has_output_rows_only = False
    if shape.architecture.head_graph is HeadGraph.DFLASH:
        block = _block_facts(header)
        has_output_rows_only = block.num_candidates == 0  # a selector gives all rows
    else:
        # EAGLE-3 combines the target's rows once for each token of the text, not of a draft.
        not_read_whole.add("fc.weight")
    num_read_bytes = 0
    for tensor in header.tensors:
        if tensor.name not in not_read_whole:
            num_read_bytes += tensor.size_bytes
    return HeadFacts(
        graph=shape.architecture.head_graph,
        num_layers=shape.num_blocks,
        layers_read=shape.layers_read,
        num_bytes=header.weights_bytes,
        num_read_bytes=num_read_bytes,
        has_output_rows_only=has_output_rows_only,
        block=block,
    )


def _eagle_refusals(_header: Header) -> Iterator[str]:
    """Why no target can use an EAGLE-3 head: no reason is known."""
    return iter(())


def _dflash_refusals(header: Header) -> Iterator[str]:
    """Why no target can use a DFlash head."""
    shape = ModelShape(header)
    if shape.number("hyper_connection.count"):
        yield "DSpark heads of DeepSeek V4's layers cannot be used"
    if not shape.layers_read:
        yield "its header does not state which layers of its target it reads"
    mask = _block_facts(header).mask
    if not 0 <= mask < len(header.tokens):
        yield "its header names no token as the mask"


def _feature_head_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why an EAGLE-3 or DFlash head cannot draft for a target."""
    target_shape = ModelShape(target)
    head_shape = ModelShape(head)
    architecture = target_shape.architecture
    width = target_shape.width
    if not architecture.exposes_layer_inputs or target_shape.row_width != width:
        yield f"libllama gives no access to the layers of {target.architecture!r}"
    needed_width: Value = head_shape.width
    if head_shape.architecture.head_graph is HeadGraph.EAGLE3:
        needed_width = head_shape.value("target_hidden_size")
    if needed_width != width:
        yield f"it was made for a model of width {needed_width}, the target's is {width}"
    layers = head_shape.layers_read
    num_layers = target_shape.num_layers  # in `layers`: the last layer's output
    if min(layers, default=0) < 0 or max(layers, default=0) > num_layers:
        yield f"it reads layers {layers}, the target has {num_layers}"
    if num_layers in layers and not architecture.exposes_last_output:
        yield f"libllama gives no access to the last layer of {target.architecture!r}"
    yield from _shared_tensor_misfits(target, head)


def _shared_tensor_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why a head cannot share its target's embeddings or output layer, or use its own.

    Its own embeddings cannot be used if they lack tokens of the target.
    """
    width = ModelShape(head).width
    tensors = head.by_name()
    if width != ModelShape(target).width:
        for name in (_EMBEDDINGS, _OUTPUT):
            if name not in tensors:
                yield f"it lacks {name}, and the target's is not {width} wide"
    embeddings = tensors.get(_EMBEDDINGS)
    if embeddings is None:
        return
    num_tokens = embeddings.shape[-1]
    if num_tokens < len(target.tokens):
        yield f"its table has {num_tokens} tokens, the target {len(target.tokens)}"


# --- Medusa ---


def medusa_names(header: Header) -> list[list[str]]:
    """The names of the tensors of each Medusa head, in a list for each head.

    In a list: the weight and the bias of each residual block, and last the output's weight.
    """
    shape = ModelShape(header)
    num_residual = shape.value("residual_count")
    if not isinstance(num_residual, int):
        num_residual = 1
    names_by_head = []
    for head in range(shape.num_blocks):
        names = []
        for block in range(num_residual):
            names.append(f"blk.{head}.residual.{block}.weight")
            names.append(f"blk.{head}.residual.{block}.bias")
        names.append(f"blk.{head}.output.weight")
        names_by_head.append(names)
    return names_by_head


def _medusa_facts(header: Header, shape: ModelShape) -> HeadFacts:
    """The facts of Medusa heads."""
    num_values = 0
    for tensor in header.tensors:
        if tensor.name != OWN_TOKENS:
            num_values += prod(tensor.shape)
    num_bytes = _FLOAT32_BYTES * num_values  # in memory they are float32
    return HeadFacts(
        graph=HeadGraph.MEDUSA,
        num_layers=shape.num_blocks,
        num_bytes=num_bytes,
        num_read_bytes=num_bytes // max(shape.num_blocks, 1),  # a damaged file may have none
    )


def _medusa_refusals(header: Header) -> Iterator[str]:
    """Why no target can use the Medusa heads of a file."""
    width = ModelShape(header).width
    tensors = header.by_name()
    num_tokens = len(header.tokens)
    own_tokens = tensors.get(OWN_TOKENS)
    if own_tokens is not None:
        num_tokens = prod(own_tokens.shape)
    if len(header.parts) > 1:
        yield f"it is split into {len(header.parts)} files"
    names_by_head = medusa_names(header)
    if not names_by_head:
        yield "its header states no heads"
    for name in chain.from_iterable(names_by_head):
        shape: tuple[int, ...] = (width, width)
        if name.endswith("bias"):
            shape = (width,)
        elif ".output." in name:
            shape = (width, num_tokens)
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != shape or tensor.kind not in (F32, F16, BF16):
            yield f"it lacks {name} of the shape {shape} in F32, F16 or BF16"


def _medusa_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why the Medusa heads of a file cannot draft for a target."""
    target_width = ModelShape(target).row_width
    head_width = ModelShape(head).width
    if target_width != head_width:
        yield f"it was made for a model of width {head_width}, the target's is {target_width}"


class _HeadKind(NamedTuple):
    """The functions that differ between kinds of heads."""

    facts: Callable[[Header, ModelShape], HeadFacts]
    """The facts of the head in a file, whether it can be used or not."""

    refusals: Callable[[Header], Iterator[str]]
    """The reasons why no target can use the head, in words."""

    misfits: Callable[[Header, Header], Iterator[str]]
    """The reasons why a target, whose header comes first, cannot use the head, in words."""


_MTP = _HeadKind(_mtp_facts, _mtp_refusals, _mtp_misfits)
_KINDS = {
    HeadGraph.EAGLE3: _HeadKind(_feature_head_facts, _eagle_refusals, _feature_head_misfits),
    HeadGraph.DFLASH: _HeadKind(_feature_head_facts, _dflash_refusals, _feature_head_misfits),
    HeadGraph.MEDUSA: _HeadKind(_medusa_facts, _medusa_refusals, _medusa_misfits),
}
