"""libllama's pointers to a model and its context: whose they are, and their way back, once."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from localspec.errors import ClosedError
from localspec.fork_guard import OwnProcess
from localspec.llama import native


class Handle:
    """The pointers, until `close`, the last reference to this, or the interpreter's end.

    Whatever needs one of them keeps the handle, so that nothing is freed under it.

    lib: the llama_cpp module. context: libllama's pointer. name: of the model, for errors.
    stop_callback: see `native.new_stop_callback`. owner: the application's `Llama` that the
    context belongs to; without one the context and its model are freed. model_of: another
    handle whose model it is, and which frees that.

    in_use: held by a thread that uses a pointer while others may close this.
    """

    def __init__(
        self,
        lib: Any,
        context: int,
        name: str,
        stop_callback: Any,
        *,
        owner: Any = None,
        model_of: Handle | None = None,
    ) -> None:
        self.context: int | None = context
        self.memory: int | None = lib.llama_get_memory(context)
        self.model: int | None = lib.llama_get_model(context)
        self.owner = owner
        self.model_of = model_of  # kept, so that the model is there for as long
        self.in_use = threading.Lock()
        self._name = name
        self._stop = ctypes.create_string_buffer(2)
        lib.llama_set_abort_callback(
            context, stop_callback, ctypes.cast(self._stop, ctypes.c_void_p)
        )
        self._own_process = OwnProcess()
        if owner is None:
            model = None if model_of is not None else self.model
            give_back = functools.partial(_free, lib, context, model)
        else:
            give_back = functools.partial(_return, lib, context, owner)
        # libllama reads the stop signal, so that goes last; a reference to self would keep it.
        self._finalizer = weakref.finalize(
            self,
            _finish,
            weakref.ref(self),
            self._own_process,
            self.in_use,
            give_back,
            self._stop,
        )

    def require_open(self) -> None:
        """Raise EngineError if the model was freed, by us or its owner, or forked."""
        self._own_process.require(self._name)
        self.require_pointers()

    def require_pointers(self) -> None:
        """Raise EngineError if there are none any more; a fork has copies, of little use."""
        if self.context is None:
            raise ClosedError(f"{self._name} is closed", "Load it again.")
        if self.owner is not None and self.owner.ctx is None:
            raise ClosedError(
                f"the Llama object of {self._name} was closed by its owner",
                "Close this engine, create the object again and load a new engine.",
            )

    def interrupt(self) -> None:
        """End a running decode within a node of its graph. From any thread."""
        self._stop[0] = b"\1"

    def allow(self) -> None:
        """Let decodes run again."""
        self._stop[0] = b"\0"

    @property
    def is_interrupted(self) -> bool:
        """Whether decodes are to end."""
        return self._stop.raw[0] != 0

    def close(self) -> None:
        """Free everything, or give it back to its owner. Idempotent."""
        self._finalizer()

    def let_go(self) -> None:
        """Forget the pointers, which are of nothing from now on."""
        self.context = self.memory = self.model = self.owner = self.model_of = None


def _finish(
    handle: weakref.ref[Handle],
    own_process: OwnProcess,
    in_use: threading.Lock,
    give_back: Callable[[], None],
    _stop: object,
) -> None:
    if not own_process.is_this():
        return  # a fork's memory goes with the fork; the threads behind it never came along
    alive = handle()
    with in_use:
        if alive is not None:  # it was closed, or the interpreter ends
            alive.let_go()
        give_back()


def _free(lib: Any, context: int, model: int | None) -> None:
    lib.llama_free(context)
    if model is not None:
        lib.llama_model_free(model)
    native.return_freed_memory()


def _return(lib: Any, context: int, owner: Any) -> None:
    if owner.ctx is None:
        return  # the owner has freed it
    lib.llama_set_abort_callback(context, lib.ggml_abort_callback(), None)
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    owner.reset()
