"""Heads with an architecture and a file of their own: EAGLE-3, DFlash and Medusa.

EAGLE-3 (arXiv 2503.01840) is one layer that reads, at each token, the inputs of some layers of
its target. The layers of DFlash (arXiv 2602.06036) read the same, and draft a whole block in
one decode, of the last token and masks. libllama tells two further kinds of it apart by their
tensors: DSpark (a Markov head corrects each row by the likeliest token of the row before, and a
confidence head says how likely each token is right) and DFlash2 (a selector scores pairs of the
best tokens of neighbouring rows). Both may lack what they share with their target: the token
embeddings and the output layer. The latter may know some of the target's tokens only.

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

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from localspec.gguf_file.architectures import HEADS_APART, HeadGraph, architecture
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.shape import ModelShape, whole_numbers
from localspec.gguf_file.tensor_types import BF16, F16, F32

OWN_TOKENS = "d2t"
_TABLE, _OUTPUT = "token_embd.weight", "output.weight"
_MARKOV, _SELECTOR, _CONFIDENCE = "markov_w1.weight", "selector_hidden.weight", "conf_proj"
# Tensors of which a draft reads a few rows.
READ_BY_ROWS = {
    _TABLE,
    OWN_TOKENS,
    _MARKOV,
    "selector_predecessor.weight",
    "selector_successor.weight",
}
_USUAL_BLOCK = 16  # tokens, if a header says nothing
_NO_TOKEN = -1


class BlockFacts(NamedTuple):
    """How a DFlash head drafts a block.

    kind: its name in the field. mask: the token in place of those that are to be drafted. size:
    tokens that it was trained to decode at once, the last token of the text included.
    first_row: of the rows of a decode, the first that drafts a token. num_candidates: tokens of
    each row that the selector of DFlash2 scores; 0 without one. has_confidences: whether it
    says how likely each token is right. is_causal: whether a token attends to those before it
    only.
    """

    kind: str
    mask: int
    size: int
    first_row: int
    num_candidates: int
    has_confidences: bool
    is_causal: bool

    @property
    def most_tokens(self) -> int:
        """The most tokens that it can draft at once."""
        return self.size - self.first_row


def block_facts(header: Header) -> BlockFacts:
    """How the head in a file drafts a block, by the same facts as libllama."""
    shape, names = ModelShape(header), header.by_name()
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


def layers_read(shape: ModelShape) -> tuple[int, ...]:
    """The target's layers that a head reads, in the order of their rows side by side."""
    return whole_numbers(shape.stated("target_layers"))


def own_tokens(head: Header) -> Tensor | None:
    """The list of the tokens that the head knows; None if it knows all."""
    if architecture(head.architecture).head_graph in HEADS_APART:
        return head.by_name().get(OWN_TOKENS)
    return None


def block_refusals(header: Header) -> Iterator[str]:
    """Why a DFlash head cannot be used."""
    shape = ModelShape(header)
    if shape.most("hyper_connection.count"):
        yield "DSpark heads of DeepSeek V4's layers cannot be used"
    if not layers_read(shape):
        yield "its header does not state which layers of its target it reads"
    if not 0 <= block_facts(header).mask < len(header.tokens):
        yield "its header names no token as the mask"


def medusa_names(header: Header) -> list[list[str]]:
    """The tensors of each Medusa head in their order: weight and bias of each residual block,
    and the output.
    """
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


def medusa_refusals(header: Header) -> Iterator[str]:
    """Why Medusa heads cannot be computed."""
    width, tensors, known = ModelShape(header).width, header.by_name(), own_tokens(header)
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
        if tensor is None:
            yield f"it lacks {name}"
        elif tensor.shape != shape or tensor.kind not in (F32, F16, BF16):
            yield f"its {name} is not of the shape {shape}, or not F32, F16 or BF16"


def medusa_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why Medusa heads cannot draft for a target."""
    ours, theirs = ModelShape(target).row_width, ModelShape(head).width
    if ours != theirs:
        yield f"it was made for a model of width {theirs}, the target's is {ours}"


def layers_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why a head that reads inputs of layers cannot draft for a target."""
    ours, theirs = ModelShape(target), ModelShape(head)
    known, layers = ours.architecture, layers_read(theirs)
    is_eagle = theirs.architecture.head_graph is HeadGraph.LAYERS
    wanted = theirs.stated("target_hidden_size") if is_eagle else theirs.width
    if not known.gives_layers or ours.row_width != ours.width:
        yield f"libllama gives nothing of the layers of {target.architecture!r}"
    if wanted != ours.width:
        yield f"it was made for a model of width {wanted}, the target's is {ours.width}"
    if min(layers, default=0) < 0 or max(layers, default=0) > ours.num_layers:
        yield f"it reads layers {layers}, the target has {ours.num_layers}"
    if ours.num_layers in layers and not known.gives_last:
        yield f"libllama gives nothing of the last layer of {target.architecture!r}"
    tensors = head.by_name()
    lacking = [name for name in (_TABLE, _OUTPUT) if name not in tensors]
    if lacking and theirs.width != ours.width:
        yield f"it lacks {lacking[0]}, and the target's is not {theirs.width} wide"
    table = tensors.get(_TABLE)
    if table is not None and table.shape[-1] < len(target.tokens):
        yield f"its table has {table.shape[-1]} tokens, the target {len(target.tokens)}"
