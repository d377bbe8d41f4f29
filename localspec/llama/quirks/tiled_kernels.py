"""ggml's tiled kernels for K-quants and IQ types, switched off if decodes must be exact.

On x86 they multiply 8 rows or more at once, and add in another order than the kernels for
fewer rows: so the rows of a decode depend on its size. ggml reads an environment variable once
in a process, before its first such product.

Remove it when ggml's tiles add as its other kernels do, or can be switched off for one context,
in the oldest llama-cpp-python that is allowed.
"""

from __future__ import annotations

import os

from localspec.gguf_file.header import Header
from localspec.gguf_file.tensor_types import type_name

_SWITCH = "GGML_CPU_TILED_MM"
_may_be_used = False  # whether a model was opened in this process while they were on


def allow() -> None:
    """Let this process compute with them from now on."""
    global _may_be_used
    _may_be_used = _may_be_used or os.environ.get(_SWITCH) != "0"


def leave_out() -> bool:
    """Let this process compute without them, unless the user has set the switch.

    Returns False if it is too late, or the user wants them.
    """
    if not _may_be_used:
        os.environ.setdefault(_SWITCH, "0")
    return not _may_be_used and os.environ[_SWITCH] == "0"


def are_tiled(header: Header) -> bool:
    """Whether ggml has such a kernel for one of the types in a file."""
    names = {type_name(tensor.kind) for tensor in header.tensors}
    return any(name.endswith("_K") or name.startswith("IQ") for name in names)
