"""`load`: from names of models to an engine that holds them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from localspec.engine.engine import Engine
from localspec.engine.fitting import open_fitting
from localspec.engine.thread_choice import choose_threads
from localspec.errors import OptionError
from localspec.gguf_file.check import check_model_file
from localspec.llama.options import LlamaOptions
from localspec.models.hub import locate, locate_source
from localspec.models.preset import Preset
from localspec.models.presets import preset_to_load
from localspec.models.source import Role
from localspec.preflight.content import FileContent, content_of_adopted
from localspec.preflight.fit import repacked_here, target_context_length, uses_gpu
from localspec.preflight.memory import DEFAULT_KEPT_BYTES
from localspec.preflight.settings import with_suited_attention, with_suited_mapping
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    REPLAY_TOKENS,
    Drafting,
    ProposerName,
)

if TYPE_CHECKING:
    from localspec.llama.model import Llama, LlamaModel

    ModelSource = str | os.PathLike[str] | Llama


class LoadKeywords(TypedDict, total=False):
    """Arguments of `load` by keyword, as far as another process can be told them."""

    target: str | os.PathLike[str] | None
    draft: str | os.PathLike[str] | None
    draft_tokens: int | None
    proposer: ProposerName
    context_length: int | None
    num_threads: int | None
    num_gpu_layers: int | None
    target_options: LlamaOptions | None
    draft_options: LlamaOptions | None
    kept_bytes: int
    force: bool


def load(  # noqa: PLR0913  the one door to the library: every argument has a default
    preset: str | None = None,
    *,
    target: ModelSource | None = None,
    draft: ModelSource | None = None,
    draft_tokens: int | None = None,
    proposer: ProposerName = "auto",
    context_length: int | None = None,
    num_threads: int | None = None,
    num_gpu_layers: int | None = None,
    target_options: LlamaOptions | None = None,
    draft_options: LlamaOptions | None = None,
    kept_bytes: int = DEFAULT_KEPT_BYTES,
    progress: Callable[[float], None] | None = None,
    force: bool = False,
) -> Engine:
    """An engine for a preset, or for a target and perhaps a draft of your own.

    target, draft: paths of GGUF files (of a split model the first part), names as
    `hf:owner/repo/file.gguf` and `owner/repo:QUANT` of files that were downloaded, or
    `llama_cpp.Llama` objects, which keep their settings and are given back by
    `Engine.close`. With neither preset nor target it is the demo pair. One file may be both
    target and draft, however it is named, and is opened twice then; one `Llama` may not.
    draft_tokens: proposed per step; None is as many as pay, 0 is plain decoding and leaves
    the draft unloaded. proposer: "draft", "lookup" (of what the text repeats), "auto" or
    "none".
    context_length: tokens (default: the preset's, or the model's own up to 8192).
    num_gpu_layers: default: as many as fit onto the GPUs, the draft's first; where a load
    finds no memory for them after all, fewer are tried, as a warning tells. target_options,
    draft_options: any other setting of one of the models; it counts where the three before
    say nothing. kept_bytes: main memory, beside the models' own, for what the caches held of
    conversations that wait while others are answered: up to that much. progress: called in
    this thread with the loaded share of both models, 0 … 1; to cancel the load, raise in it.
    force: load even what seems not to fit into memory.

    Raises PresetError, ModelFileError, MemoryLimitError, PairError or OptionError.
    """
    drafting = Drafting(draft_tokens, proposer)
    if progress is not None and not callable(progress):
        raise OptionError(f"progress is {progress!r}", "Give a function of the loaded share.")
    sources, chosen = _sources(preset, target, draft)
    if not drafting.needs_draft_model:
        del sources[1:]
    if chosen is not None and context_length is None:
        context_length = chosen.context_length
    common = LlamaOptions(
        context_length=context_length, num_threads=num_threads, num_gpu_layers=num_gpu_layers
    )
    options = [_with_common(own, common) for own in (target_options, draft_options)]
    options[0] = _target_options(options[0], drafting)
    shares = _progress_shares(sources, progress or (lambda _fraction: None))
    open_all = functools.partial(_open_all, sources, shares)
    with contextlib.ExitStack() as undo:
        models = open_fitting(sources, options, open_all, undo, force=force)
        pair = (models[0], models[1] if len(models) > 1 else None)
        sampling = SamplingParams() if chosen is None else chosen.sampling
        description = _description(*pair) if chosen is None else chosen.description
        engine = Engine(*pair, drafting, sampling, description, kept_bytes)
        undo.pop_all()
    return engine


def _sources(
    preset: str | None, target: ModelSource | None, draft: ModelSource | None
) -> tuple[list[ModelSource], Preset | None]:
    """The target and perhaps a draft, and the preset that names them, if one does."""
    chosen = preset_to_load(preset, target, draft)
    if chosen is not None:
        target, draft = locate(chosen)
    is_file = isinstance(target, str | os.PathLike)  # which is opened twice if need be
    if draft is not None and draft is target and not is_file:
        raise OptionError(
            "target and draft are the same Llama object, which holds one text",
            "Create a second one for the draft, or name a file for it.",
        )
    named: tuple[tuple[ModelSource | None, Role], ...] = ((target, "target"), (draft, "draft"))
    return [_located(source, role) for source, role in named if source is not None], chosen


def _open_all(
    sources: list[ModelSource],
    shares: list[Callable[[float], None]],
    options: list[LlamaOptions],
    undo: contextlib.ExitStack,
) -> list[LlamaModel]:
    """The target, and a draft if there is a second source. undo: gets what closes them."""
    models: list[LlamaModel] = []
    for source, chosen, share in zip(sources, options, shares, strict=False):
        if models:
            chosen = _draft_options(source, chosen, models[0].context_length)
        models.append(_open(source, chosen, share))
        undo.callback(models[-1].close)
    if len(models) > 1 and models[1].may_change_threads:
        choose_threads(models[1])
    return models


def _with_common(own: LlamaOptions | None, common: LlamaOptions) -> LlamaOptions:
    """A model's own options, and what was asked for both where they say nothing."""
    if own is None:
        return common
    if not isinstance(own, LlamaOptions):
        raise OptionError(f"a model's options are {own!r}", "Give a LlamaOptions.")
    return replace(
        own,
        context_length=own.context_length or common.context_length,
        num_threads=own.num_threads or common.num_threads,
        num_gpu_layers=(
            common.num_gpu_layers if own.num_gpu_layers is None else own.num_gpu_layers
        ),
    )


def _located(source: ModelSource, role: Role) -> ModelSource:
    """The path of a file that is here, or the model that an application has loaded."""
    if isinstance(source, str):
        return locate_source(source, role)
    if isinstance(source, os.PathLike) and isinstance(os.fspath(source), str):
        return source
    from localspec.llama.model import Llama

    if not isinstance(source, Llama):
        raise OptionError(
            f"the {role} is {source!r}, neither a path nor a name nor a llama_cpp.Llama",
            "Give the path of a GGUF file, or a name as hf:owner/repo/file.gguf.",
        )
    return source


def _progress_shares(
    sources: list[ModelSource], progress: Callable[[float], None]
) -> list[Callable[[float], None]]:
    """A callback for each load; together they report 0 … 1, by the sizes of the files."""
    sizes = [
        os.path.getsize(source)
        if isinstance(source, str | os.PathLike) and os.path.exists(source)
        else 0
        for source in sources
    ]
    total = sum(sizes) or 1

    def share(before: int, size: int) -> Callable[[float], None]:
        return lambda fraction: progress((before + fraction * size) / total)

    return [share(sum(sizes[:index]), size) for index, size in enumerate(sizes)]


def _open(
    source: ModelSource, options: LlamaOptions, progress: Callable[[float], None]
) -> LlamaModel:
    # Here, because it loads libllama: a wrong argument is found sooner without.
    from localspec.llama.model import Llama, LlamaModel

    if isinstance(source, Llama):
        adopted = LlamaModel.adopt(source, options.max_outputs)
        try:
            adopted.content = content_of_adopted(adopted, source.model_path)
        except BaseException:
            adopted.close()
            raise
        return adopted
    path = Path(source)
    header = check_model_file(path)
    context = target_context_length(header, options.context_length)
    options = with_suited_attention(
        options, header, context, uses_gpu=uses_gpu(options.num_gpu_layers)
    )
    options = with_suited_mapping(options, header, repacked_here(options.num_gpu_layers))
    content = FileContent(header)
    model = LlamaModel.open(path, options, progress)
    # Now that the system has the file at hand.
    model.content = content.digest()
    model.may_change_threads = options.num_threads is None
    return model


def _target_options(options: LlamaOptions, drafting: Drafting) -> LlamaOptions:
    """The options with what the loop asks of a target."""
    snapshots = options.num_snapshots
    if snapshots is None:
        snapshots = 0 if drafting.is_off else drafting.num_draft_tokens
    return replace(options, max_outputs=MAX_DRAFT_TOKENS + 1, num_snapshots=snapshots)


def _draft_options(
    source: ModelSource, options: LlamaOptions, target_context: int
) -> LlamaOptions:
    """The target's context for the draft, or less where it was trained for less."""
    options = replace(options, max_outputs=REPLAY_TOKENS, num_snapshots=0)
    if not isinstance(source, str | os.PathLike):
        return options
    header = check_model_file(Path(source))
    trained = header.number(f"{header.architecture}.context_length") or target_context
    return replace(options, context_length=min(target_context, trained))


def _description(target: LlamaModel, draft: LlamaModel | None) -> str:
    return f"{target.name} with {draft.name} as its draft" if draft else f"{target.name} alone"
