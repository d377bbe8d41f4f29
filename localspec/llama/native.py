"""What is set once for libllama in a process: its back ends, its log, its callbacks.

`lib` is always the llama_cpp module: `llama/loaded.py` alone imports it.
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
# Warnings that tell users nothing, so they are logged as details: about each tensor of a head
# that is left out, each matrix of an adapter that is in main memory, each picture that a hybrid
# model reads, and the best form of pictures.
_DETAILS = re.compile(
    r"-- ignoring$|^llama_adapter_lora_init_impl: .*fallback to CPU$|"
    r"^find_slot: non-consecutive|^load_hparams: "
)


class Complaints(collections.deque[str]):
    """The last lines of libllama's log that warn or report an error, oldest first.

    They give our own errors a reason. Clear them before a call that may fail.
    """

    callback: Any = None  # the C callback that logs: kept alive, since C holds its pointer

    def take_reason(self) -> str:
        """The lines as the end of a message, ": line; line"; "" without lines. Clears them."""
        reason = "; ".join(self)
        self.clear()
        if reason:
            return f": {reason}"
        return ""

    def as_error(self, what: str, hint: str) -> LocalspecError:
        """An error with libllama's lines as its reason. Clears the lines.

        Args:
            what: What failed, in words: the beginning of the error's message.
            hint: The hint of a ModelFileError; a MemoryLimitError has a hint of its own.

        Returns:
            A MemoryLimitError if a line says that an allocation failed, else a ModelFileError.
        """
        lacks_memory = any(_NO_MEMORY.search(line) for line in self)
        message = f"{what}{self.take_reason()}"
        if lacks_memory:
            return MemoryLimitError(
                message,
                "Memory ran out: try a smaller context (context_length=…), fewer layers on "
                "GPUs (num_gpu_layers=…), or close other programs.",
            )
        return ModelFileError(message, hint)


def shared_library(lib: Any) -> ctypes.CDLL:
    """libllama as ctypes loaded it, for functions that llama_cpp does not declare."""
    library: ctypes.CDLL = lib.llama_cpp._lib
    return library


def ggml_function(lib: Any, name: str, result: Any, *arguments: Any) -> Any:
    """A C function of ggml that llama-cpp-python does not declare.

    Linux and macOS find it through libllama, Windows only in ggml's own libraries.

    Args:
        lib: The llama_cpp module.
        name: The function's name.
        result: The ctypes type of its result.
        arguments: The ctypes types of its arguments.

    Raises:
        EngineError: If the libraries have no such function.
    """
    llama = shared_library(lib)
    libraries = [llama]
    if os.name == "nt":
        folder = os.path.dirname(llama._name)
        libraries = []
        for file_name in ("ggml.dll", "ggml-base.dll"):
            libraries.append(ctypes.CDLL(os.path.join(folder, file_name)))
    function_type = ctypes.CFUNCTYPE(result, *arguments)
    for library in libraries:
        with contextlib.suppress(AttributeError):
            return function_type((name, library))
    raise EngineError(f"the ggml of {libraries[0]._name} has no {name}", binding.HINT)


def load_backends(lib: Any, library: binding.Library) -> None:
    """Load ggml's back ends from libllama's folder, or else from the bin/ beside it.

    Does nothing if they are linked into libllama, and so are there already. Raises EngineError
    if there are none.
    """
    num_loaded = ggml_function(lib, "ggml_backend_reg_count", ctypes.c_size_t)
    load_from = ggml_function(lib, "ggml_backend_load_all_from_path", None, ctypes.c_char_p)
    for folder in library.folders:
        if not num_loaded():
            with spinning_briefly():  # a back end may load libgomp
                load_from(os.fsencode(folder))
    if not num_loaded():
        raise EngineError(f"the libllama of {library.origin} has no back end", binding.HINT)


def capture_logs(lib: Any) -> Complaints:
    """Send libllama's log to the logger localspec.llama, instead of stderr.

    Returns its last warnings and errors, which the log continues to fill.
    """
    complaints = Complaints(maxlen=4)

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def log(level: int, text: bytes, _data: object) -> None:
        """Log a line of libllama. level: of enum ggml_log_level."""
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
    """Reports a load's progress, and stores the exception that ends the load.

    An exception cannot pass through C. So an exception of `progress` is stored as `error`, and
    libllama stops the load. Ctrl-C becomes KeyboardInterrupt at Python's next instruction. If
    that is where C calls back into Python, Python drops the exception and calls
    `sys.unraisablehook`; a hook of ours stores it while the `with` block runs.
    """

    def __init__(self, progress: Callable[[float], None]) -> None:
        self._progress = progress

        self.error: BaseException | None = None
        """The exception that ended the load, to be raised by the caller."""

        self._is_over = False

    def on_progress(self, fraction: float, _data: object = None) -> bool:
        """Report the loaded share, 0 … 1, to `progress`. Returns False to stop the load."""
        if self.error is None:
            try:
                self._progress(fraction)
            except BaseException as error:
                self.error = error
        return self.error is None

    def __enter__(self) -> LoadWatch:
        self._previous_hook = sys.unraisablehook
        sys.unraisablehook = self._store_interrupt
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over = True
        # A load in another thread may have replaced the hook.
        if sys.unraisablehook == self._store_interrupt:
            sys.unraisablehook = self._previous_hook

    def _store_interrupt(self, unraisable: Any) -> None:
        """Store a dropped KeyboardInterrupt; leave other exceptions to the previous hook."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt) and not self._is_over:
            self.error = unraisable.exc_value
        else:
            self._previous_hook(unraisable)


def new_stop_callback(lib: Any) -> Any:
    """An abort callback for libllama: strlen of C, as a function that needs no Python.

    libllama calls it before every node of its graph, with a pointer to the stop byte and the 0
    byte after it. strlen returns 0 (continue) if the stop byte is 0, else 1 (stop). A callback
    in Python would wait for the interpreter's lock each time.
    """
    if os.name == "nt":
        libc = ctypes.cdll.msvcrt
    else:
        libc = ctypes.CDLL(None)
    address = ctypes.cast(libc.strlen, ctypes.c_void_p).value
    return lib.ggml_abort_callback(address)


def return_freed_memory() -> None:
    """Return the C heap's freed memory to the system; does nothing without malloc_trim.

    glibc keeps freed buffers of up to 32 MiB: a process that opens and closes small models
    would hold a hundred unused MiB. Other C libraries return them of their own accord.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
