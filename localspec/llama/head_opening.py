"""Opening a head: one that is in its target's file, or in a file of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from localspec.gguf_file.head import HeadFacts
from localspec.llama import params as llama_params
from localspec.llama.eagle import EagleHead
from localspec.llama.handle import Handle
from localspec.llama.head import AssistantHead, LlamaHead
from localspec.llama.library import llama_cpp, stop_callback
from localspec.llama.model import LlamaModel
from localspec.llama.native import LoadWatch
from localspec.llama.opening import load_weights, new_context, open_watched
from localspec.llama.options import EAGLE_BATCH_SIZE, LlamaOptions
from localspec.llama.quirks.nextn import require_nextn_functions


def open_head(
    target: LlamaModel,
    path: Path | None,
    options: LlamaOptions,
    facts: HeadFacts,
    progress: Callable[[float], None] = lambda _fraction: None,
) -> LlamaHead:
    """The head in a file of its own, or without one that in the target's, opened `with_head`.

    path, facts: already checked, see `gguf_file.head`; not of Medusa. Raises what
    `LlamaModel.open` does, and EngineError if libllama lacks a function for such a head.
    """
    require_nextn_functions(reads_layers=bool(facts.layers_read))
    if path is not None:
        load = functools.partial(_load, target, path, options, facts)
        return open_watched(progress, load)
    context = _new_context(target, target.handle.model, options, facts)
    name = target.name
    handle = Handle(llama_cpp, context, name, stop_callback, model_of=target.handle)
    return _on(handle, name, target, options, facts)


def _load(
    target: LlamaModel, path: Path, options: LlamaOptions, facts: HeadFacts, watch: LoadWatch
) -> LlamaHead:
    # Else its layers are left out, and the first decode ends the process.
    model = load_weights(path, replace(options, with_head=True), watch)
    try:
        context = _new_context(target, model, options, facts)
    except BaseException:
        llama_cpp.llama_model_free(model)
        raise
    handle = Handle(llama_cpp, context, path.name, stop_callback)
    return _on(handle, path.name, target, options, facts)


def _new_context(
    target: LlamaModel, model: int | None, options: LlamaOptions, facts: HeadFacts
) -> int:
    assert model is not None
    params = llama_params.context_params(llama_cpp, options, target.context_length)
    if facts.layers_read:
        params.n_batch = params.n_ubatch = min(params.n_ubatch, EAGLE_BATCH_SIZE)
    else:
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    params.ctx_other = target.handle.context
    return new_context(model, f"the head of {target.name}", params)


def _on(
    handle: Handle, name: str, target: LlamaModel, options: LlamaOptions, facts: HeadFacts
) -> LlamaHead:
    """The head of a handle, which is closed if that fails."""
    kind = AssistantHead if facts.shares_cache else LlamaHead
    kind = EagleHead if facts.layers_read else kind
    try:
        return kind(handle, name, target, facts, options)
    except BaseException:
        handle.close()
        raise
