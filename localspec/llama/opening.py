"""Opens a model file with libllama: its weights, and a context of them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from localspec.errors import ClosedError, EngineError, LocalspecError, ModelFileError
from localspec.gguf_file.shape import context_to_open
from localspec.llama import native
from localspec.llama import params as llama_params
from localspec.llama.handle import Handle
from localspec.llama.library import Llama, complaints, llama_cpp, own_process
from localspec.llama.options import LlamaOptions
from localspec.llama.quirks.huge_pages import asking_for_huge_pages

_adopted: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()


class _Closes(Protocol):
    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_Closes)


def open_watched(
    progress: Callable[[float], None], open_it: Callable[[native.LoadWatch], Opened]
) -> Opened:
    """Open with `open_it`; an exception of `progress`, or Ctrl-C, ends the load at once.

    progress: called with the loaded share, 0 … 1. Raises EngineError in a fork of a process
    that has loaded libllama.
    """
    own_process.require("libllama")
    opened = None
    with native.LoadWatch(asking_for_huge_pages(progress)) as watch:
        try:
            opened = open_it(watch)
        except LocalspecError:
            if watch.error is None:
                raise
    if watch.error is not None:
        if opened is not None:
            opened.close()
        raise watch.error
    assert opened is not None
    return opened


@contextmanager
def loaded_weights(path: Path, options: LlamaOptions, watch: native.LoadWatch) -> Iterator[int]:
    """libllama's pointer to the model in a file, which is freed if the block fails.

    Raises, with libllama's own words, ModelFileError if it refuses the file and
    MemoryLimitError if memory runs out; OptionError for a GPU that does not exist.
    """
    complaints.clear()
    params = llama_params.model_params(options)
    params.progress_callback = llama_cpp.llama_progress_callback(watch.go_on)
    model: int | None = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise complaints.as_error(
            f"libllama cannot load {path}",
            "The file may be damaged or newer than this llama-cpp-python.",
        )
    try:
        yield model
    except BaseException:
        llama_cpp.llama_model_free(model)
        raise


def new_context(model: int, name: str, params: Any) -> int:
    """libllama's pointer to a context of a model. params: its llama_context_params.

    Raises ModelFileError or MemoryLimitError, with libllama's own words.
    """
    context: int | None = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise complaints.as_error(
            f"no context of {params.n_ctx} tokens for {name}",
            'A cache type may need flash attention (flash_attention="on").',
        )
    return context


def load_context(
    path: Path, options: LlamaOptions, watch: native.LoadWatch
) -> tuple[Handle, int]:
    """A context of the model in a file, which owns it, and how many tokens it is for.

    Raises what `loaded_weights` and `new_context` raise, and ModelFileError for a model that
    does not generate text.
    """
    with loaded_weights(path, options, watch) as model:
        lib = llama_cpp
        if lib.llama_model_has_encoder(model) or lib.llama_model_is_diffusion(model):
            raise ModelFileError(
                f"{path} is not a causal language model", "Choose a decoder-only text model."
            )
        trained = llama_cpp.llama_model_n_ctx_train(model)
        length = context_to_open(options.context_length, trained, path.name)
        params = llama_params.context_params(options, length)
        context = new_context(model, path.name, params)
    return Handle(context, path.name), length


def adopted_handle(llama: Llama) -> Handle:
    """The pointers of an application's `Llama`, emptied.

    Raises ModelFileError if it computes embeddings or holds no weights, EngineError if it is
    closed, another engine works on it, or this is a fork.
    """
    own_process.require("libllama")
    if llama.ctx is None:
        raise ClosedError("the Llama object is closed", "Create it again.")
    if llama.context_params.embeddings or llama.model_params.vocab_only:
        raise ModelFileError(
            f"the Llama object of {llama.model_path} computes embeddings or has no weights",
            "Create it without embedding=True and vocab_only=True.",
        )
    other = _adopted.get(llama.ctx)
    if other is not None and other.context is not None:
        raise EngineError(
            f"the Llama object of {llama.model_path} is in another engine",
            "Close that engine first; one object holds one text.",
        )
    llama.reset()  # type: ignore[no-untyped-call]
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llama.ctx), True)  # noqa: FBT003
    handle = Handle(llama.ctx, Path(llama.model_path).name, owner=llama)
    _adopted[llama.ctx] = handle
    return handle
