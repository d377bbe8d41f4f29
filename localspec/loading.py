"""`load`: from names of models to an engine that holds them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.draft_length import MAX_DRAFT_TOKENS, FixedDraftLength
from localspec.engine import Engine
from localspec.errors import OptionError
from localspec.hub import locate, locate_source
from localspec.llama_options import LlamaOptions
from localspec.model_file import check_model_file
from localspec.model_source import Role
from localspec.presets import DEFAULT_PRESET, find_preset
from localspec.sampling import SamplingParams

if TYPE_CHECKING:
    from localspec.llama import Llama, LlamaModel

    ModelSource = str | os.PathLike[str] | Llama


def load(  # noqa: PLR0913  the one door to the library: every argument has a default
    preset: str | None = None,
    *,
    target: ModelSource | None = None,
    draft: ModelSource | None = None,
    draft_tokens: int = FixedDraftLength().num_draft_tokens,
    context_length: int | None = None,
    num_threads: int | None = None,
    num_gpu_layers: int | None = None,
) -> Engine:
    """An engine for a preset, or for a target and perhaps a draft of your own.

    target, draft: paths of GGUF files (of a split model the first part), names as
    `hf:owner/repo/file.gguf` and `owner/repo:QUANT` of files that were downloaded, or
    `llama_cpp.Llama` objects, which keep their settings and are given back by
    `Engine.close`. With neither preset nor target it is the demo pair. draft_tokens:
    proposed per step; 0 is plain decoding and leaves the draft unloaded.
    context_length: tokens (default: the preset's, or the model's own up to 8192).
    num_gpu_layers: default: all that the devices take.

    Raises PresetError, ModelFileError, PairError or OptionError.
    """
    draft_length = FixedDraftLength(draft_tokens)
    sampling = SamplingParams()
    description = ""
    if target is None and draft is not None:
        raise OptionError("a draft is given without a target", "Name the target, too.")
    if target is None:
        chosen = find_preset(preset or DEFAULT_PRESET)
        target, draft = locate(chosen)
        sampling = chosen.sampling
        description = chosen.description
        if context_length is None:
            context_length = chosen.context_length
    elif preset is not None:
        raise OptionError("both a preset and a target are given", "Choose one of them.")
    if draft is not None and draft is target:
        raise OptionError("target and draft are the same object", "Load the draft separately.")
    target = _located(target, "target")
    draft = None if draft is None else _located(draft, "draft")
    options = LlamaOptions(
        context_length=context_length,
        num_threads=num_threads,
        num_gpu_layers=num_gpu_layers,
        max_outputs=MAX_DRAFT_TOKENS + 1,
    )
    target_model = _open(target, options)
    draft_model = None
    try:
        if draft is not None and draft_tokens > 0:
            draft_model = _open_draft(draft, options, target_model.context_length)
        description = description or _description(target_model, draft_model)
        return Engine(target_model, draft_model, draft_length, sampling, description)
    except BaseException:
        target_model.close()
        if draft_model is not None:
            draft_model.close()
        raise


def _located(source: ModelSource, role: Role) -> ModelSource:
    return locate_source(source, role) if isinstance(source, str) else source


def _open(source: ModelSource, options: LlamaOptions) -> LlamaModel:
    # Here, because it loads libllama: a wrong argument is found sooner without.
    from localspec.llama import Llama, LlamaModel

    if isinstance(source, Llama):
        return LlamaModel.adopt(source)
    path = Path(source)
    check_model_file(path)
    return LlamaModel.open(path, options)


def _open_draft(source: ModelSource, options: LlamaOptions, target_context: int) -> LlamaModel:
    """Open the draft with the target's context, or less where it was trained for less."""
    if isinstance(source, str | os.PathLike):
        header = check_model_file(Path(source))
        trained = header.number(f"{header.architecture}.context_length") or target_context
        options = replace(options, context_length=min(target_context, trained), max_outputs=1)
    return _open(source, options)


def _description(target: LlamaModel, draft: LlamaModel | None) -> str:
    return f"{target.name} with {draft.name} as its draft" if draft else f"{target.name} alone"
