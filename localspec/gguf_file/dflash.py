"""DFlash heads in GGUF files (arXiv 2602.06036), and what libllama assumes of them.

A head has some layers that attend to what it read of its target: at each token the inputs of
some of the target's layers, side by side. It drafts a whole block in one decode, of the last
token and masks. It has a file and an architecture of its own, and may lack what it shares with
its target: the token embeddings and the output layer. There are two further kinds, which
libllama tells apart by their tensors: DSpark (a Markov head corrects each row by the likeliest
token of the row before, and a confidence head says how likely each place is right) and DFlash2
(a selector scores pairs of the best tokens of neighbouring places).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from localspec.gguf_file.eagle import OUTPUT, TABLE, layers_misfits, layers_read
from localspec.gguf_file.header import Header
from localspec.gguf_file.own_tokens import OWN_TOKENS, own_tokens, own_tokens_refusals
from localspec.gguf_file.shape import ModelShape

_MARKOV, _SELECTOR, _CONFIDENCE = "markov_w1.weight", "selector_hidden.weight", "conf_proj"
# Of these, a decode reads a few rows.
NOT_READ_BY_BLOCKS = (
    TABLE,
    OWN_TOKENS,
    _MARKOV,
    "selector_predecessor.weight",
    "selector_successor.weight",
)
_USUAL_BLOCK = 16  # tokens, if a header says nothing
_NO_TOKEN = -1


class BlockFacts(NamedTuple):
    """How a head drafts a block.

    kind: its name in the field. mask: the token of places that are to be drafted. size: tokens
    that it was trained to decode at once, the last token of the text included. first_row: of
    the rows of a decode, the first that drafts a token. num_candidates: tokens of each place
    that the selector of DFlash2 scores; 0 without one. has_confidences: whether it says how
    likely each place is right. is_causal: whether places see those before them only.
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


def block_facts(header: Header, shape: ModelShape) -> BlockFacts:
    """How the head in a file drafts a block, by the same facts as libllama."""
    names = header.by_name()
    is_dspark, is_dflash2 = _MARKOV in names, _SELECTOR in names
    mask = header.metadata.get("tokenizer.ggml.mask_token_id")
    from_anchor = shape.stated("sample_from_anchor") in (None, True)
    return BlockFacts(
        kind="DFlash2" if is_dflash2 else "DSpark" if is_dspark else "DFlash",
        mask=mask if isinstance(mask, int) else _NO_TOKEN,
        size=shape.most("block_size") or _USUAL_BLOCK,
        first_row=0 if is_dspark and not is_dflash2 and from_anchor else 1,
        num_candidates=shape.most("selector_top_k") if is_dflash2 else 0,
        has_confidences=is_dspark and not is_dflash2 and f"{_CONFIDENCE}.weight" in names,
        is_causal=shape.stated("attention.causal") is True,
    )


def block_refusals(header: Header, shape: ModelShape) -> Iterator[str]:
    """Why libllama would refuse the head, or end the process over it."""
    facts, names = block_facts(header, shape), header.by_name()
    if shape.most("hyper_connection.count"):
        yield "DSpark heads of DeepSeek V4's layers cannot be used"
    if not layers_read(shape):
        yield "its header does not state which layers of its target it reads"
    if not 0 <= facts.mask < len(header.tokens):
        yield "its header names no token as the mask"
    if facts.most_tokens < 1 or (_MARKOV in names and not shape.most("block_size")):
        yield f"its header states blocks of {shape.most('block_size')} tokens"
    if shape.key_width != shape.value_width:
        yield f"its keys are {shape.key_width} wide and its values {shape.value_width}"
    if own_tokens(header) is not None and OUTPUT not in names:
        yield f"it lists its own tokens and lacks {OUTPUT}"
    yield from own_tokens_refusals(header)


def block_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why it cannot draft for a target."""
    yield from layers_misfits(target, head, ModelShape(head).width)
