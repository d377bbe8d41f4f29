"""libllama's pointers to a model and its context: who owns them, and freeing them once."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from localspec.errors import ClosedError
from localspec.llama import native
from localspec.llama.library import llama_cpp, own_process, stop_callback


class Stop:
    """Whether a text's decodes are to end."""

    is_wanted = False


class Handle:
    """The pointers, until `close`, the last reference to this, or the interpreter's end.

    Whatever uses a pointer keeps the handle, so nothing is freed while it is used.

    context: libllama's pointer. name: of the file. owner: the application's
    `Llama` that the context belongs to; without one, the context and its model are freed.
    model_of: the handle that owns the model, and frees it, if this one does not.

    num_sequences: of the context that may be used. graph_size: tokens that libllama computes at
    once, of a decode that may have more. threads_set: of decodes of one token and of
    several, as libllama has them; None while that is not known. num_decodes: so far. caches: of
    its sequences. adapters: libllama's pointers to those of the model, which frees them, for
    decodes in this context; scales_set: their scales, as libllama has them.

    in_use: held by a thread that uses a pointer while others may close this.
    """

    def __init__(
        self,
        context: int,
        name: str,
        *,
        owner: Any = None,
        model_of: Handle | None = None,
        adapters: Sequence[Any] = (),
    ) -> None:
        self.context: int | None = context
        self.memory: int | None = llama_cpp.llama_get_memory(context)
        self.model: int | None = llama_cpp.llama_get_model(context)
        # Those of an application's own are its own affair.
        self.num_sequences: int = 1 if owner else llama_cpp.llama_n_seq_max(context)
        self.graph_size: int = llama_cpp.llama_n_ubatch(context)
        self.threads_set: tuple[int, int] | None = None
        self.num_decodes = 0
        self.adapters = tuple(adapters)
        self.scales_set: tuple[float, ...] = (0.0,) * len(self.adapters)
        # By sequence. Weak, since each keeps this.
        self.caches: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.owner = owner
        self.model_of = model_of  # kept, so that its model is not freed before this context
        self.in_use = threading.Lock()
        self.name = name
        self._stop = ctypes.create_string_buffer(2)
        # Of the texts that the running decode is for. A signal handler may come to the lock
        # within itself.
        self._stops: Sequence[Stop] = ()
        self._stopping = threading.RLock()
        llama_cpp.llama_set_abort_callback(
            context, stop_callback, ctypes.cast(self._stop, ctypes.c_void_p)
        )
        own_model = None if owner is not None or model_of is not None else self.model
        # The stop signal, which libllama reads, goes last. A reference to self would keep it.
        self._finalizer = weakref.finalize(
            self, _finish, weakref.ref(self), self.in_use, context, own_model, owner, self._stop
        )

    def require_open(self) -> None:
        """Raise EngineError if it was closed, by us or the owner, or this is a fork."""
        own_process.require(self.name)
        self.require_pointers()

    def require_pointers(self) -> None:
        """Raise EngineError if the pointers were freed; in a fork, copies of them are left."""
        if self.context is None:
            raise ClosedError(f"{self.name} is closed", "Load it again.")
        if self.owner is not None and self.owner.ctx is None:
            raise ClosedError(
                f"the Llama object of {self.name} was closed by its owner",
                "Close this engine, create the object again and load a new engine.",
            )

    def use_scales(self, scales: tuple[float, ...]) -> None:
        """Have the next decodes add each adapter times its scale; 0 leaves it out."""
        assert self.context is not None
        set_scales(self.context, self.adapters, scales)
        self.scales_set = scales

    def begin_decode(self, stops: Sequence[Stop]) -> None:
        """Let the next decode run until each of its texts is to stop."""
        with self._stopping:
            self._stop[0] = b"\0"
            self._stops = stops
            self.end_if_unwanted()

    def end_if_unwanted(self) -> None:
        """End a decode within a node of its graph if all of its texts are to stop.

        From any thread.
        """
        with self._stopping:
            if self._stops and all(stop.is_wanted for stop in self._stops):
                self._stop[0] = b"\1"

    @contextlib.contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """Close it if the block fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free everything, or return it to its owner. Idempotent."""
        self._finalizer()


def set_scales(context: int, adapters: Sequence[Any], scales: Sequence[float]) -> None:
    """Have the next decodes in a context add each adapter of its model times its scale."""
    count = len(adapters)
    pointers = (llama_cpp.llama_adapter_lora_p_ctypes * count)(*adapters)
    numbers = (ctypes.c_float * count)(*scales)
    llama_cpp.llama_set_adapters_lora(context, pointers, count, numbers)


def _finish(
    handle: weakref.ref[Handle],
    in_use: threading.Lock,
    context: int,
    own_model: int | None,
    owner: Any,
    _stop: object,
) -> None:
    if not own_process.is_this():
        return  # a fork has the memory, which ends with it, but none of the threads
    alive = handle()
    with in_use:
        if alive is not None:  # closed, or the interpreter ends
            alive.context = alive.memory = alive.model = alive.owner = alive.model_of = None
        if owner is None:
            llama_cpp.llama_free(context)
            if own_model is not None:
                llama_cpp.llama_model_free(own_model)
            native.return_freed_memory()
        elif owner.ctx is not None:  # the owner has not freed it
            llama_cpp.llama_set_abort_callback(context, llama_cpp.ggml_abort_callback(), None)
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            owner.reset()
