"""EAGLE-3 heads in GGUF files (arXiv 2503.01840), and what libllama assumes of them.

A head is one layer that reads, at each token, the inputs of some layers of its target. It has
a file and an architecture of its own, and may lack what it shares with its target: the token
embeddings and the output layer. The latter may know only some of the target's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from localspec.gguf_file.header import Header, Value
from localspec.gguf_file.own_tokens import OWN_TOKENS, own_tokens_refusals
from localspec.gguf_file.shape import ModelShape, whole_numbers

_NUM_LAYERS_READ = 3
TABLE, OUTPUT = "token_embd.weight", "output.weight"
NOT_READ_BY_STEPS = (TABLE, "fc.weight", OWN_TOKENS)  # except for a row


def layers_read(shape: ModelShape) -> tuple[int, ...]:
    """The target's layers that the head reads, in the order of their rows side by side."""
    return whole_numbers(shape.stated("target_layers"))


def eagle_refusals(header: Header, shape: ModelShape) -> Iterator[str]:
    """Why libllama would refuse the head, or end the process over it."""
    if len(layers_read(shape)) != _NUM_LAYERS_READ:
        yield f"it reads {len(layers_read(shape))} layers of its target, not {_NUM_LAYERS_READ}"
    if shape.num_blocks != 1:
        yield f"it has {shape.num_blocks} layers, not one"
    if shape.key_width != shape.value_width:
        yield f"its keys are {shape.key_width} wide and its values {shape.value_width}"
    yield from own_tokens_refusals(header)


def eagle_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why it cannot draft for a target."""
    yield from layers_misfits(target, head, ModelShape(head).stated("target_hidden_size"))


def layers_misfits(target: Header, head: Header, wanted: Value) -> Iterator[str]:
    """Why a head that reads inputs of layers, `wanted` wide, cannot draft for a target."""
    ours, theirs = ModelShape(target), ModelShape(head)
    known, layers = ours.architecture, layers_read(theirs)
    if not known.gives_layers or ours.row_width != ours.width:
        yield f"libllama gives nothing of the layers of {target.architecture!r}"
    if wanted != ours.width:
        yield f"it was made for a model of width {wanted}, the target's is {ours.width}"
    if min(layers, default=0) < 0 or max(layers, default=0) > ours.num_layers:
        yield f"it reads layers {layers}, the target has {ours.num_layers}"
    if ours.num_layers in layers and not known.gives_last:
        yield f"libllama gives nothing of the last layer of {target.architecture!r}"
    tensors = head.by_name()
    lacking = [name for name in (TABLE, OUTPUT) if name not in tensors]
    if lacking and theirs.width != ours.width:
        yield f"it lacks {lacking[0]}, and the target's is not {theirs.width} wide"
    table = tensors.get(TABLE)
    if table is not None and table.shape[-1] < len(target.tokens):
        yield f"its table has {table.shape[-1]} tokens, the target {len(target.tokens)}"
