"""Settings of libllama that hold for the whole process.

Each function takes the llama_cpp module: `llama/loaded.py` alone imports it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from localspec.errors import EngineError, LocalspecError, MemoryLimitError, ModelFileError
from localspec.llama import binding
from localspec.llama.quirks.spinning import spinning_briefly

logger = logging.getLogger("localspec.llama")
logger.addHandler(logging.NullHandler())  # otherwise warnings go to stderr

# Texts that ggml, its backends and libllama log when an allocation fails.
_NO_MEMORY = re.compile(
    r"(failed|unable) to (allocate|reserve)|cannot allocate|out of memory|bad_alloc|"
    r"OutOf(Device|Host)Memory",
    re.IGNORECASE,
)
_LOG_LEVELS = {3: logging.WARNING, 4: logging.ERROR}  # by ggml_log_level; others are details
# Warnings without meaning for users: about each tensor of a head that is left out, each matrix
# of an adapter that is in main memory, each picture that a hybrid reads, and the best form of
# pictures.
_DETAILS = re.compile(
    r"-- ignoring$|^llama_adapter_lora_init_impl: .*fallback to CPU$|"
    r"^find_slot: non-consecutive|^load_hparams: "
)


class Complaints(collections.deque[str]):
    """The last warnings and errors of libllama, for the messages of our own errors."""

    callback: Any = None  # kept alive: C holds its pointer

    def because(self) -> str:
        """ ": reason; reason", or "" without a reason. Clears the lines."""
        reason = "; ".join(self)
        self.clear()
        if reason:
            return f": {reason}"
        return ""

    def as_error(self, what: str, hint: str) -> LocalspecError:
        """An error with libllama's reason. Clears the lines.

        A MemoryLimitError if memory ran out, or else a ModelFileError with this hint.

        Args:
            what: What failed, in words.
            hint: The hint of a ModelFileError.
        """
        lacks_memory = any(_NO_MEMORY.search(line) for line in self)
        message = f"{what}{self.because()}"
        if lacks_memory:
            return MemoryLimitError(
                message,
                "Memory ran out: try a smaller context (context_length=…), fewer layers on "
                "GPUs (num_gpu_layers=…), or close other programs.",
            )
        return ModelFileError(message, hint)


def shared_library(lib: Any) -> ctypes.CDLL:
    """libllama as loaded by ctypes."""
    library: ctypes.CDLL = lib.llama_cpp._lib
    return library


def ggml_function(lib: Any, name: str, result: Any, *arguments: Any) -> Any:
    """A C function of ggml that llama-cpp-python does not declare.

    On Linux and macOS it can be found through libllama, on Windows only in its own library.

    Args:
        lib: The llama_cpp module.
        name: The function's name.
        result, arguments: Its types.
    """
    libraries = [shared_library(lib)]
    if os.name == "nt":
        folder = os.path.dirname(libraries[0]._name)
        names = ("ggml.dll", "ggml-base.dll")
        libraries = [ctypes.CDLL(os.path.join(folder, file)) for file in names]
    for library in libraries:
        function_type = ctypes.CFUNCTYPE(result, *arguments)
        with contextlib.suppress(AttributeError):
            return function_type((name, library))
    raise EngineError(f"the ggml of {libraries[0]._name} has no {name}", binding.HINT)


def load_backends(lib: Any, library: binding.Library) -> None:
    """Load ggml's back ends if they are files, in libllama's folder or in bin/.

    Raises EngineError if there are none.
    """
    count = ggml_function(lib, "ggml_backend_reg_count", ctypes.c_size_t)
    load = ggml_function(lib, "ggml_backend_load_all_from_path", None, ctypes.c_char_p)
    for folder in (library.folder, library.folder.parent / "bin"):
        if not count():
            with spinning_briefly():  # libgomp may come with them
                load(os.fsencode(folder))
    if not count():
        raise EngineError(f"the libllama of {library.origin} has no back end", binding.HINT)


def capture_logs(lib: Any) -> Complaints:
    """Send libllama's log to `logging`, as localspec.llama, instead of stderr."""
    complaints = Complaints(maxlen=4)

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def log(level: int, text: bytes, _data: object) -> None:
        line = text.decode("utf-8", errors="replace").strip()
        if not line:
            return
        if level not in _LOG_LEVELS or _DETAILS.search(line):
            logger.log(logging.DEBUG, line)
            return
        logger.log(_LOG_LEVELS[level], line)
        complaints.append(line)

    complaints.callback = log
    lib.llama_log_set(log, ctypes.c_void_p(0))
    return complaints


class LoadWatch:
    """Reports a load's progress, and catches the exception that ends it.

    An exception cannot pass through C. So an exception of `progress` is stored as `error`, and
    libllama stops the load. Ctrl-C becomes KeyboardInterrupt at Python's next instruction; if
    that is at the edge of a callback, Python reports it as unraisable and drops it.
    """

    def __init__(self, progress: Callable[[float], None]) -> None:
        self._progress = progress
        self.error: BaseException | None = None
        self._is_over = False

    def on_progress(self, fraction: float, _data: object = None) -> bool:
        """Report the loaded share, 0 … 1. Returns False to stop the load."""
        if self.error is None:
            try:
                self._progress(fraction)
            except BaseException as error:
                self.error = error
        return self.error is None

    def __enter__(self) -> LoadWatch:
        self._previous = sys.unraisablehook
        sys.unraisablehook = self._notice
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over = True
        # A load in another thread may have replaced the hook.
        if sys.unraisablehook == self._notice:
            sys.unraisablehook = self._previous

    def _notice(self, lost: Any) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt) and not self._is_over:
            self.error = lost.exc_value
        else:
            self._previous(lost)


def new_stop_callback(lib: Any) -> Any:
    """An abort callback that stops a decode if its data is not an empty C string.

    libllama calls it before every node of its graph. Python code would wait for the
    interpreter's lock each time, so the callback is a C function that reads a byte: strlen,
    which returns 0 (continue) or 1 (stop).
    """
    libc = ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)
    address = ctypes.cast(libc.strlen, ctypes.c_void_p).value
    return lib.ggml_abort_callback(address)


def return_freed_memory() -> None:
    """Return freed memory of the C heap to the system.

    glibc keeps freed buffers of up to 32 MiB: a process that opens and closes small models
    would hold a hundred unused MiB. Other C libraries return them without a call.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
