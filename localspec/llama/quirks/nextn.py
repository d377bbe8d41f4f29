"""libllama's functions for trained heads, which its public header lacks.

Such functions have C++ names, change from version to version, and may be missing. Each is
looked up under its names on Linux and macOS, on Windows, and in C; without one of them, heads
that need it are off.

Remove it when llama.h declares these functions.
"""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

from localspec.errors import EngineError
from localspec.llama import native
from localspec.llama.library import llama_cpp

_CONTEXT = ctypes.c_void_p
_LAYER = ctypes.c_uint32
_ROWS = ctypes.POINTER(ctypes.c_float)
_MSVC = "PEAUllama_context@@"  # a context as an argument
# By name: C++'s letters for the arguments after the context on Linux and macOS, the signature
# on Windows, and the arguments and the result in ctypes.
HEAD_FUNCTIONS: dict[str, tuple[str, str, list[Any], Any]] = {
    "set_embeddings_nextn": ("bb", f"X{_MSVC}_N1@Z", [ctypes.c_bool, ctypes.c_bool], None),
    "get_embeddings_nextn": ("", f"PEAM{_MSVC}@Z", [], _ROWS),
    "set_nextn_layer_offset": ("i", f"X{_MSVC}H@Z", [ctypes.c_int32], None),
    "set_embeddings_layer_inp": ("jb", f"X{_MSVC}I_N@Z", [_LAYER, ctypes.c_bool], None),
    "get_embeddings_layer_inp": ("j", f"PEAM{_MSVC}I@Z", [_LAYER], _ROWS),
}
LAYER_FUNCTIONS = ("set_embeddings_layer_inp", "get_embeddings_layer_inp")


@functools.cache
def missing_functions(*, reads_layers: bool) -> tuple[str, ...]:
    """The names of functions that a head needs and this build of libllama lacks.

    Args:
        reads_layers: Whether the head reads inputs of its target's layers.
    """
    library = native.shared_library(llama_cpp)
    missing = []
    for name in HEAD_FUNCTIONS:
        is_needed = reads_layers or name not in LAYER_FUNCTIONS
        if is_needed and _find_function(library, name) is None:
            missing.append(f"llama_{name}")
    return tuple(missing)


@functools.cache
def require_nextn_functions(*, reads_layers: bool) -> SimpleNamespace:
    """The functions of `HEAD_FUNCTIONS`; each takes a context first.

    Raises EngineError if a head needs one that is missing.
    """
    missing = missing_functions(reads_layers=reads_layers)
    if missing:
        raise EngineError(
            f"this libllama has no {', '.join(missing)}, which such a head needs",
            "Install the version of llama-cpp-python that localspec was tested with.",
        )
    library = native.shared_library(llama_cpp)
    functions = {name: _find_function(library, name) for name in HEAD_FUNCTIONS}
    return SimpleNamespace(**functions)


def _find_function(library: ctypes.CDLL, name: str) -> Any:
    """A function of libllama; None if it is missing."""
    itanium, msvc, arguments, result = HEAD_FUNCTIONS[name]
    function_type = ctypes.CFUNCTYPE(result, _CONTEXT, *arguments)
    in_c = f"llama_{name}"
    on_unix = f"_Z{len(in_c)}{in_c}P13llama_context{itanium}"
    on_windows = f"?{in_c}@@YA{msvc}"
    for exported in (in_c, on_unix, on_windows):
        try:
            return function_type((exported, library))
        except AttributeError:
            continue
    return None
