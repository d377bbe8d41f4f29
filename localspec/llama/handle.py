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
    """One text's wish that its decodes stop: set by `interrupt`, cleared by `make_ready`."""

    is_wanted = False


class Handle:
    """The pointers to a context and its model, and what libllama is set to.

    The pointers are freed by `close`, with the last reference to the handle, or at the
    interpreter's end, whichever comes first. Every user of a pointer keeps a reference to the
    handle, so nothing is freed while it is used.

    Args:
        context: libllama's pointer to the context.
        name: The name of the model's file.
        adopted_llama: The application's `Llama` to which the context belongs. It then keeps the
            context and the model; None if this handle frees them.
        weights_owner: Another handle that owns the model and frees it; this one then frees its
            context alone.
        adapters: libllama's pointers to the model's adapters. The model frees them.
    """

    def __init__(
        self,
        context: int,
        name: str,
        *,
        adopted_llama: Any = None,
        weights_owner: Handle | None = None,
        adapters: Sequence[Any] = (),
    ) -> None:
        self.context: int | None = context
        self.memory: int | None = llama_cpp.llama_get_memory(context)
        self.model: int | None = llama_cpp.llama_get_model(context)

        self.num_sequences: int = llama_cpp.llama_n_seq_max(context)
        """How many sequences of the context may be used."""
        if adopted_llama:
            self.num_sequences = 1  # the application may use the others

        self.graph_size: int = llama_cpp.llama_n_ubatch(context)
        """The most tokens in one graph of libllama; a longer decode runs several graphs."""

        self.threads_set: tuple[int, int] | None = None
        """The threads that libllama is set to: for decodes of one token, and of several. None
        if not known."""

        self.num_decodes = 0
        """Decodes so far."""

        self.adapters = tuple(adapters)

        self.scales_set: tuple[float, ...] = (0.0,) * len(self.adapters)
        """The scale of each adapter that libllama is set to."""

        self.caches: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        """The `Cache` of each sequence. Weak, since each cache refers to the handle."""

        self.adopted_llama = adopted_llama
        # A reference, so that the model is not freed before this context.
        self.weights_owner = weights_owner

        self.in_use = threading.Lock()
        """Held while a pointer is used in a thread other than the one that decodes: `close`
        waits for it."""

        self.name = name
        self._stop_byte = ctypes.create_string_buffer(2)  # libllama stops a decode if it is 1
        self._stops: Sequence[Stop] = ()  # one for each text of the running decode
        # Reentrant: a signal handler may need it in the thread that holds it.
        self._stop_lock = threading.RLock()
        llama_cpp.llama_set_abort_callback(
            context,
            stop_callback,
            ctypes.cast(self._stop_byte, ctypes.c_void_p),
        )
        model_to_free = None
        if adopted_llama is None and weights_owner is None:
            model_to_free = self.model
        # The finalizer keeps the stop byte alive, which libllama reads until the context is
        # freed. It must not refer to self, which would then never be freed.
        self._finalizer = weakref.finalize(
            self,
            _free_or_return,
            weakref.ref(self),
            self.in_use,
            context,
            model_to_free,
            adopted_llama,
            self._stop_byte,
        )

    def require_open(self) -> None:
        """Raise EngineError if the pointers were freed, or this process is a fork."""
        own_process.require(self.name)
        self.require_pointers()

    def require_pointers(self) -> None:
        """Raise EngineError if the pointers were freed, by `close` or by the application.

        Unlike `require_open` it passes in a fork, which has a copy of the memory.
        """
        if self.context is None:
            raise ClosedError(f"{self.name} is closed", "Load it again.")
        if self.adopted_llama is not None and self.adopted_llama.ctx is None:
            raise ClosedError(
                f"the Llama object of {self.name} was closed by its owner",
                "Close this engine, create the object again and load a new engine.",
            )

    def use_scales(self, scales: tuple[float, ...]) -> None:
        """Set the scale of each adapter for the next decodes; 0 leaves an adapter out."""
        assert self.context is not None
        set_scales(self.context, self.adapters, scales)
        self.scales_set = scales

    def begin_decode(self, stops: Sequence[Stop]) -> None:
        """Clear the stop signal before a decode, unless all its texts already want to stop.

        Args:
            stops: The `Stop` of each text of the decode.
        """
        with self._stop_lock:
            self._stop_byte[0] = b"\0"
            self._stops = stops
            self.stop_if_unwanted()

    def stop_if_unwanted(self) -> None:
        """Stop the running decode before its next graph node if all its texts want to stop.

        A decode that at least one text still wants runs to its end. From any thread.
        """
        with self._stop_lock:
            if self._stops and all(stop.is_wanted for stop in self._stops):
                self._stop_byte[0] = b"\1"

    @contextlib.contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """A block that closes the handle if it raises."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the pointers, or return an adopted `Llama` to its application. Idempotent."""
        self._finalizer()


def set_scales(context: int, adapters: Sequence[Any], scales: Sequence[float]) -> None:
    """Set the scales with which the next decodes in a context add the model's adapters.

    Args:
        context: libllama's pointer to the context.
        adapters: libllama's pointers to the adapters.
        scales: A factor for each adapter; 0 leaves it out.
    """
    count = len(adapters)
    pointer_array = (llama_cpp.llama_adapter_lora_p_ctypes * count)(*adapters)
    scale_array = (ctypes.c_float * count)(*scales)
    llama_cpp.llama_set_adapters_lora(context, pointer_array, count, scale_array)


def _free_or_return(
    handle_ref: weakref.ref[Handle],
    in_use: threading.Lock,
    context: int,
    model_to_free: int | None,
    adopted_llama: Any,
    _stop_byte: object,
) -> None:
    """The finalizer of a `Handle`: frees its pointers, or empties an adopted `Llama`.

    Args:
        handle_ref: The handle, whose attributes are cleared if it is still alive.
        in_use: `Handle.in_use`.
        context: libllama's pointer to the context.
        model_to_free: libllama's pointer to the model; None if the handle does not own it.
        adopted_llama: The application's `Llama`, whose pointers stay; None without one.
        _stop_byte: Only kept alive until now.
    """
    if not own_process.is_this():
        return  # a fork has a copy of the memory, but none of the threads
    handle = handle_ref()
    with in_use:
        if handle is not None:  # it was closed, or the interpreter ends
            handle.context = None
            handle.memory = None
            handle.model = None
            handle.adopted_llama = None
            handle.weights_owner = None
        if adopted_llama is None:
            llama_cpp.llama_free(context)
            if model_to_free is not None:
                llama_cpp.llama_model_free(model_to_free)
            native.return_freed_memory()
        elif adopted_llama.ctx is not None:  # the application has not freed it
            no_callback = llama_cpp.ggml_abort_callback()
            llama_cpp.llama_set_abort_callback(context, no_callback, None)
            memory = llama_cpp.llama_get_memory(context)
            llama_cpp.llama_memory_clear(memory, True)
            adopted_llama.reset()
