"""libllama's functions for trained heads, which its public header lacks.

Such functions have C++ names, change from version to version, and may be missing. Each is
looked up under three names: in C, in C++ on Linux and macOS, and in C++ on Windows. A head that
needs a missing function cannot be used.

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
_MSVC = "PEAUllama_context@@"  # how C++ on Windows encodes a context as an argument
# By name, without "llama_": how C++ encodes the arguments after the context on Linux and macOS;
# how it encodes the whole signature on Windows; and ctypes' types of the arguments after the
# context, and of the result.
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
    """The names of the functions that a head needs, but this build of libllama lacks.

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
    """The functions of `HEAD_FUNCTIONS` as attributes. Each takes a context first.

    A function that is missing, but not needed by the head, is None.

    Args:
        reads_layers: Whether the head reads inputs of its target's layers.

    Raises:
        EngineError: If a function is missing that the head needs.
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
    """A function of libllama by its key in `HEAD_FUNCTIONS`; None if it is missing."""
    unix_arguments, windows_signature, arguments, result = HEAD_FUNCTIONS[name]
    function_type = ctypes.CFUNCTYPE(result, _CONTEXT, *arguments)
    c_name = f"llama_{name}"
    unix_name = f"_Z{len(c_name)}{c_name}P13llama_context{unix_arguments}"
    windows_name = f"?{c_name}@@YA{windows_signature}"
    for exported_name in (c_name, unix_name, windows_name):
        try:
            return function_type((exported_name, library))
        except AttributeError:
            continue
    return None
