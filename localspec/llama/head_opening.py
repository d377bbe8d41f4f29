"""Opens a head that is in its target's file, or in a file of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.head import HeadFacts
from localspec.llama import params as llama_params
from localspec.llama.dflash import DflashHead
from localspec.llama.handle import Handle
from localspec.llama.head import AssistantHead, EagleHead, LlamaHead
from localspec.llama.library import llama_cpp
from localspec.llama.model import LlamaModel
from localspec.llama.native import LoadWatch
from localspec.llama.opening import load_weights, new_context, open_watched
from localspec.llama.options import ROWS_BATCH_SIZE, LlamaOptions
from localspec.llama.quirks.nextn import require_nextn_functions


def open_head(
    target: LlamaModel,
    path: Path | None,
    options: LlamaOptions,
    facts: HeadFacts,
    progress: Callable[[float], None] = lambda _fraction: None,
) -> LlamaHead:
    """Open the head at `path`, or the one in the file of a target opened `with_head`.

    facts: of the head, checked by `gguf_file.head`; not of Medusa. Raises what
    `LlamaModel.open` does, and EngineError if libllama lacks a function for such a head.
    """
    require_nextn_functions(reads_layers=bool(facts.layers_read))
    if path is not None:
        load = functools.partial(_load, target, path, options, facts)
        return open_watched(progress, load)
    context = _new_context(target, target.handle.model, options, facts)
    handle = Handle(context, target.name, model_of=target.handle)
    return _head(handle, target, options, facts)


def _load(
    target: LlamaModel, path: Path, options: LlamaOptions, facts: HeadFacts, watch: LoadWatch
) -> LlamaHead:
    # Without its layers, the first decode ends the process.
    model = load_weights(path, replace(options, with_head=True), watch)
    try:
        context = _new_context(target, model, options, facts)
    except BaseException:
        llama_cpp.llama_model_free(model)
        raise
    return _head(Handle(context, path.name), target, options, facts)


def _new_context(
    target: LlamaModel, model: int | None, options: LlamaOptions, facts: HeadFacts
) -> int:
    assert model is not None
    params = llama_params.context_params(options, target.context_length)
    params.n_outputs_max = max(options.max_outputs, options.num_sequences)  # they take turns
    if facts.layers_read:
        params.n_batch = params.n_ubatch = min(params.n_ubatch, ROWS_BATCH_SIZE)
    else:
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    params.ctx_other = target.handle.context
    return new_context(model, f"the head of {target.name}", params)


def _head(
    handle: Handle, target: LlamaModel, options: LlamaOptions, facts: HeadFacts
) -> LlamaHead:
    with handle.closed_on_failure():
        return _KINDS.get(facts.graph, LlamaHead)(handle, target, facts, options)


_KINDS = {
    HeadGraph.SHARED: AssistantHead,
    HeadGraph.LAYERS: EagleHead,
    HeadGraph.BLOCK: DflashHead,
}
