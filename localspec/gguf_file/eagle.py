"""EAGLE-3 heads in GGUF files (arXiv 2503.01840): what libllama takes for granted of them.

One layer that reads, at each token, what goes into some layers of its target. It has a file
and an architecture of its own, and may lack what it shares with its target: the table of the
tokens, and the output layer. That one may know fewer tokens than the target, each of which
its tensor `d2t` names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from localspec.errors import ModelFileError
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.shape import ModelShape

_NUM_LAYERS_READ = 3
_TABLE, _OUTPUT, _NAMES = "token_embd.weight", "output.weight", "d2t"
_INT64 = 27  # of ggml_type
_NOT_READ_BY_STEPS = (_TABLE, "fc.weight", _NAMES)  # but for a row


def layers_read(shape: ModelShape) -> tuple[int, ...]:
    """The target's layers that the head reads, in the order of their rows side by side."""
    stated = shape.stated("target_layers")
    return tuple(map(int, stated)) if isinstance(stated, tuple) else ()


def is_read_by_steps(name: str) -> bool:
    """Whether every decode of a drafted token reads that tensor."""
    return name not in _NOT_READ_BY_STEPS


def eagle_refusals(header: Header, shape: ModelShape) -> Iterator[str]:
    """Why libllama would not compute the head, or end the process over it."""
    if len(layers_read(shape)) != _NUM_LAYERS_READ:
        yield f"it reads {len(layers_read(shape))} layers of its target, not {_NUM_LAYERS_READ}"
    if shape.num_blocks != 1:
        yield f"it has {shape.num_blocks} layers, not one"
    if shape.key_width != shape.value_width:
        yield f"its keys are {shape.key_width} wide and its values {shape.value_width}"
    names = _tensor(header, _NAMES)
    if names is not None and (names.kind != _INT64 or len(names.shape) != 1):
        yield "its d2t is not a list of 64-bit numbers"


def eagle_misfits(target: Header, head: Header) -> Iterator[str]:
    """Why it does not draft for a target."""
    ours, theirs = ModelShape(target), ModelShape(head)
    known, layers = ours.architecture, layers_read(theirs)
    if not known.gives_layers or ours.row_width != ours.width:
        yield f"libllama gives nothing of the layers of {target.architecture!r}"
    wanted = theirs.stated("target_hidden_size")
    if wanted != ours.width:
        yield f"it was made for a model of width {wanted}, the target's is {ours.width}"
    if min(layers) < 0 or max(layers) > ours.num_layers:
        yield f"it reads layers {layers}, the target has {ours.num_layers}"
    if max(layers) == ours.num_layers and not known.gives_last:
        yield f"libllama gives nothing of the last layer of {target.architecture!r}"
    lacking = [name for name in (_TABLE, _OUTPUT) if _tensor(head, name) is None]
    if lacking and theirs.width != ours.width:
        yield f"it lacks {lacking[0]}, and the target's is not {theirs.width} wide"
    table = _tensor(head, _TABLE)
    if table is not None and table.shape[-1] < len(target.tokens):
        yield f"its table has {table.shape[-1]} tokens, the target {len(target.tokens)}"


def check_own_vocabulary(head: Header) -> None:
    """Raise ModelFileError if its d2t names tokens that are not there.

    libllama ends the process over it. The file is here, and was checked.
    """
    tensor = _tensor(head, _NAMES)
    if tensor is None:
        return
    count = tensor.shape[0]
    with head.path.open("rb") as file:
        file.seek(tensor.offset)
        tokens = struct.unpack(f"<{count}q", file.read(8 * count))
    if min(tokens) < 0 or max(tokens) >= len(head.tokens):
        raise ModelFileError(
            f"d2t of {head.path} names tokens {min(tokens)} to {max(tokens)} of "
            f"{len(head.tokens)}",
            "The file was converted incorrectly: choose another one.",
        )


def _tensor(header: Header, name: str) -> Tensor | None:
    return next((tensor for tensor in header.tensors if tensor.name == name), None)
