"""Switches off ggml's tiled kernels for K-quants and IQ types if decodes must be exact.

On x86 these kernels multiply 8 rows or more at once, and add in another order than the kernels
for fewer rows: so the rows of a decode depend on its size. Their switch is an environment
variable, which ggml reads once in a process, before the first product that could use them.

Remove it when ggml's tiles add as its other kernels do, or can be switched off for one context,
in the oldest llama-cpp-python that is allowed.
"""

from __future__ import annotations

import os

from localspec.gguf_file.header import Header
from localspec.gguf_file.tensor_types import type_name

_SWITCH = "GGML_CPU_TILED_MM"
_may_be_used = False  # whether a model was opened in this process while they were on


def note_use() -> None:
    """Note, before a model is opened, that ggml may use tiled kernels unless they are off."""
    global _may_be_used
    if os.environ.get(_SWITCH) != "0":
        _may_be_used = True


def switch_off() -> bool:
    """Switch tiled kernels off for this process, unless the user has set the switch.

    Returns whether they are off: False if a model that was opened before may use them, or the
    user has switched them on.
    """
    if _may_be_used:
        return False
    os.environ.setdefault(_SWITCH, "0")
    return os.environ[_SWITCH] == "0"


def are_tiled(header: Header) -> bool:
    """Whether ggml has a tiled kernel for one of the types of weights in a file."""
    names = {type_name(tensor.kind) for tensor in header.tensors}
    return any(name.endswith("_K") or name.startswith("IQ") for name in names)
