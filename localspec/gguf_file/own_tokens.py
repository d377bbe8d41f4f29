"""The tokens that a head knows, which its tensor `d2t` lists unless they are all."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from localspec.errors import ModelFileError
from localspec.gguf_file.architectures import HEADS_APART, architecture
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.tensor_types import INT64

OWN_TOKENS = "d2t"


def own_tokens(head: Header) -> Tensor | None:
    """The list of the tokens that the head knows; None if it knows all."""
    if architecture(head.architecture).head_graph in HEADS_APART:
        return head.by_name().get(OWN_TOKENS)
    return None


def own_tokens_refusals(head: Header) -> Iterator[str]:
    """Why the list cannot be read, if there is one."""
    tensor = own_tokens(head)
    if tensor is None:
        return
    if tensor.kind != INT64 or len(tensor.shape) != 1 or not tensor.shape[0]:
        yield f"its {OWN_TOKENS} is not a list of 64-bit numbers"
    elif tensor.size_bytes < 8 * tensor.shape[0]:
        yield f"its {OWN_TOKENS} is cut short"


def check_own_tokens(head: Header) -> None:
    """Raise ModelFileError if the list names tokens that do not exist.

    libllama ends the process over it. The file is on this machine, and has no refusals.
    """
    tensor = own_tokens(head)
    if tensor is None:
        return
    count = tensor.shape[0]
    with head.path.open("rb") as file:
        file.seek(tensor.offset)
        tokens = struct.unpack(f"<{count}q", file.read(8 * count))
    if min(tokens) < 0 or max(tokens) >= len(head.tokens):
        raise ModelFileError(
            f"{OWN_TOKENS} of {head.path} names tokens {min(tokens)} to {max(tokens)} of "
            f"{len(head.tokens)}",
            "The file was converted incorrectly: choose another one.",
        )
