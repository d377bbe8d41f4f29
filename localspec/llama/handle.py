"""libllama's pointers to a model and its context: their owner, and freeing them once."""

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
    """Whether the decodes of a text should end."""

    is_wanted = False


class Handle:
    """The pointers, until `close`, the last reference to this, or the interpreter's end.

    Every user of a pointer keeps the handle, so nothing is freed while it is used.

    Args:
        context: libllama's pointer.
        name: The name of the file.
        owner: The application's `Llama` to which the context belongs. Without one, the context
            and its model are freed.
        model_of: The handle that owns the model, and frees it, if this one does not.
        adapters: libllama's pointers to the model's adapters. The model frees them.
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

        self.num_sequences: int = llama_cpp.llama_n_seq_max(context)
        """How many sequences of the context may be used."""
        if owner:
            self.num_sequences = 1  # the application may use the others

        self.graph_size: int = llama_cpp.llama_n_ubatch(context)
        """Tokens that libllama computes at once; a decode may have more."""

        self.threads_set: tuple[int, int] | None = None
        """libllama's threads for decodes of one token and of several; None if not known."""

        self.num_decodes = 0
        """Decodes so far."""

        self.adapters = tuple(adapters)

        self.scales_set: tuple[float, ...] = (0.0,) * len(self.adapters)
        """The scales of the adapters that libllama has now."""

        self.caches: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        """The caches by sequence. Weak, since each cache refers to the handle."""

        self.owner = owner
        self.model_of = model_of  # kept, so that its model is not freed before this context

        self.in_use = threading.Lock()
        """Held by a thread that uses a pointer while other threads may close the handle."""

        self.name = name
        self._stop = ctypes.create_string_buffer(2)  # read by libllama: 1 ends a decode
        self._stops: Sequence[Stop] = ()  # of the texts of the running decode
        # Reentrant: a signal handler may need it in the thread that holds it.
        self._stopping = threading.RLock()
        llama_cpp.llama_set_abort_callback(
            context,
            stop_callback,
            ctypes.cast(self._stop, ctypes.c_void_p),
        )
        own_model = None
        if owner is None and model_of is None:
            own_model = self.model
        # The finalizer keeps the stop signal, which libllama reads until the end. It must not
        # refer to self, which would then never be freed.
        self._finalizer = weakref.finalize(
            self,
            _finish,
            weakref.ref(self),
            self.in_use,
            context,
            own_model,
            owner,
            self._stop,
        )

    def require_open(self) -> None:
        """Raise EngineError if the handle was closed, by us or the owner, or this is a fork."""
        own_process.require(self.name)
        self.require_pointers()

    def require_pointers(self) -> None:
        """Raise EngineError if the pointers were freed; a fork still has copies of them."""
        if self.context is None:
            raise ClosedError(f"{self.name} is closed", "Load it again.")
        if self.owner is not None and self.owner.ctx is None:
            raise ClosedError(
                f"the Llama object of {self.name} was closed by its owner",
                "Close this engine, create the object again and load a new engine.",
            )

    def use_scales(self, scales: tuple[float, ...]) -> None:
        """Let the next decodes add each adapter times its scale; 0 leaves it out."""
        assert self.context is not None
        set_scales(self.context, self.adapters, scales)
        self.scales_set = scales

    def begin_decode(self, stops: Sequence[Stop]) -> None:
        """Let the next decode run until all of its texts should stop."""
        with self._stopping:
            self._stop[0] = b"\0"
            self._stops = stops
            self.end_if_unwanted()

    def end_if_unwanted(self) -> None:
        """End a decode within a node of its graph if all of its texts should stop.

        From any thread.
        """
        with self._stopping:
            if self._stops and all(stop.is_wanted for stop in self._stops):
                self._stop[0] = b"\1"

    @contextlib.contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """Close the handle if the block fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free everything, or return it to its owner. Idempotent."""
        self._finalizer()


def set_scales(context: int, adapters: Sequence[Any], scales: Sequence[float]) -> None:
    """Let the next decodes in a context add each adapter of its model times its scale."""
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
        return  # a fork has a copy of the memory, but none of the threads
    alive = handle()
    with in_use:
        if alive is not None:  # it was closed, or the interpreter ends
            alive.context = None
            alive.memory = None
            alive.model = None
            alive.owner = None
            alive.model_of = None
        if owner is None:
            llama_cpp.llama_free(context)
            if own_model is not None:
                llama_cpp.llama_model_free(own_model)
            native.return_freed_memory()
        elif owner.ctx is not None:  # the owner has not freed it
            llama_cpp.llama_set_abort_callback(context, llama_cpp.ggml_abort_callback(), None)
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            owner.reset()
