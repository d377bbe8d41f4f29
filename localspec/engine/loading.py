"""`load`: from names of models to an engine that holds them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.engine.engine import Engine
from localspec.engine.open_models import CacheDisk, CacheRoom, Models
from localspec.engine.proposer_choice import choose_threads
from localspec.engine.sources import (
    Source,
    chosen_sources,
    named_sources,
    reporting,
    with_adapters,
)
from localspec.engine.vision import (
    ProjectorError,
    Sight,
    open_projector,
    warn_unused,
    ways_to_see,
)
from localspec.errors import (
    DecodeError,
    MemoryLimitError,
    ModelFileError,
    OptionError,
    is_whole,
)
from localspec.exactness import Exactness
from localspec.gguf_file.adapter import USUAL_SCALE
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.file_content import FileContent, FileStates
from localspec.gguf_file.head_facts import head_facts
from localspec.gguf_file.projector_facts import cells_at_once
from localspec.keywords import known_keywords
from localspec.llama.devices import list_devices
from localspec.llama.drivers import driver_fault
from localspec.llama.model_options import LlamaOptions
from localspec.llama.placement import (
    is_on_gpus,
    place_layers,
    require_device,
    unused_gpu,
    usable_gpus,
)
from localspec.llama.quirks import tiled_kernels
from localspec.llama.quirks.spinning import computed_apart
from localspec.llama.rpc_servers import reset_connections_at_end
from localspec.planning.device_plans import Ranked, device_in_words, ranked_plans
from localspec.planning.free_memory import Planned, suited_options_here
from localspec.planning.memory import DEFAULT_KEPT_BYTES
from localspec.planning.plan import (
    Plan,
    check_fit,
    check_parallel,
    plan_here,
    target_context_length,
)
from localspec.policy.profile import Profile, exactness_setting
from localspec.presets.local_models import note_used
from localspec.presets.presets import common_servers
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import REPLAY_TOKENS, Drafting, ProposerName
from localspec.system.machine import OtherPrograms

if TYPE_CHECKING:
    from localspec.engine.sources import ModelSource
    from localspec.gguf_file.header import Header
    from localspec.llama.head import LlamaHead
    from localspec.llama.medusa import MedusaHeads
    from localspec.llama.model import LlamaModel
    from localspec.presets.presets import AnyAdapter, Preset

logger = logging.getLogger(__name__)

_NUM_TRIED = 16  # tokens that an adopted model decodes, to identify it


@known_keywords
def load(  # noqa: PLR0913  the one door to the library: every argument has a default
    preset: ModelSource | Preset | None = None,
    *,
    target: ModelSource | None = None,
    draft: ModelSource | None = None,
    head: str | os.PathLike[str] | None = None,
    mmproj: str | os.PathLike[str] | None = None,
    draft_tokens: int | None = None,
    proposer: ProposerName = "auto",
    context_length: int | None = None,
    num_threads: int | None = None,
    num_gpu_layers: int | None = None,
    device: str | None = None,
    rpc: Sequence[str] | None = None,
    adapters: Sequence[AnyAdapter] | None = None,
    exact: bool | None = None,
    target_options: LlamaOptions | None = None,
    draft_options: LlamaOptions | None = None,
    kept_bytes: int = DEFAULT_KEPT_BYTES,
    parallel: int = 1,
    memory: bool = True,
    cache_disk: int | CacheDisk = 0,
    progress: Callable[[float], None] | None = None,
    force: bool = False,
) -> Engine:
    """An engine for a preset, or for a target of your own and perhaps a model that drafts for
    it.

    Raises PresetError, ModelFileError, MemoryLimitError, PairError, OptionError or RpcError.

    Args:
        preset: The MODEL of the commands: a preset, its name, an alias, or a target as below.
            With a draft or a head it gives the target alone.
        target, draft: Paths of GGUF files (the first part), names of downloaded files as
            `hf:owner/repo/file.gguf` and `owner/repo:QUANT`, or `llama_cpp.Llama` objects,
            which `Engine.close` gives back. With neither it is the demo pair.
        head: A trained head, named likewise; by default the head in the target's file, if any.
        mmproj: The projector with which the target sees; by default mmproj*.gguf in the
            target's folder. "none" opens none.
        draft_tokens: Tokens proposed per step; None for the number that pays.
        proposer: "draft", "head", "lookup", "auto" or "none".
        context_length: Tokens; by default the preset's, or the model's own up to 8192.
        num_gpu_layers: By default as many as fit.
        device: "cpu", or a GPU by llama.cpp's name, as "Vulkan0"; by default the fastest, as
            measured at the first load.
        rpc: "host:port" of llama.cpp's RPC servers with layers of the target. If one of them
            fails, the process ends. A head in the target's file is then used only with
            proposer="head".
        adapters: LoRA adapters of the target, each a file or an `Adapter` with its scale; by
            default the preset's. Draft and head keep their own weights.
        exact: The same text to the bit with any draft.
        target_options, draft_options: Other settings of each.
        kept_bytes, cache_disk: Bytes for the caches of conversations that wait, in memory and
            on disk.
        parallel: Answers at once.
        memory: Earlier texts draft what repeats.
        progress: Called with the loaded share, 0 … 1; raise to cancel.
        force: Load models that seem too large.
    """
    others = OtherPrograms()  # watched from here on: a small model is open in no time
    _check_kept(kept_bytes, memory=memory)
    drafting = Drafting(draft_tokens, proposer)
    located, chosen = named_sources(
        preset,
        {
            "target": target,
            "draft": draft,
            "head": head,
            "mmproj": mmproj,
        },
    )
    if chosen is not None and context_length is None:
        context_length = chosen.context_length
    both = LlamaOptions(
        context_length=context_length,
        num_threads=num_threads,
        num_gpu_layers=num_gpu_layers,
        device=device,
    )
    of_target = replace(both, rpc=common_servers(rpc, chosen), exact=exact)
    target_options = _with_common(target_options, of_target)
    draft_options = _with_common(draft_options, both)
    projector = located.pop("mmproj", None)
    assert projector is None or isinstance(projector, Path)
    sources = chosen_sources(located, drafting, target_options, draft_options)
    sources[0] = with_adapters(sources[0], adapters, chosen)
    sources = reporting(sources, progress)
    check_parallel(parallel)
    with contextlib.ExitStack() as stack:
        for sight in ways_to_see(mmproj, projector, sources[0].header):
            try:
                ranked = _plans(sources, sight, parallel, kept_bytes)
                if not (ranked is None or force):
                    check_fit(ranked.plans[0])
                models, plan = _open_fitting(sources, sight, ranked, stack)
                break
            except (MemoryLimitError, ProjectorError) as error:
                if sight is None or sight.is_named:
                    raise
                warn_unused(sight.projector.path, error)
        _note_free_cores(models.target, others)
        sampling = SamplingParams() if chosen is None else chosen.sampling
        description = _description(models, chosen) + _adapters_in_words(sources[0])
        measured = None if ranked is None else ranked.measured
        device = ""
        if plan is not None:
            device = device_in_words(plan, measured)
            kept_bytes -= plan.reserved_bytes
        room = CacheRoom(kept_bytes, CacheDisk.of(cache_disk))
        description += models.target.gpus
        if measured is not None:
            logger.info("%s", device)
            description += f"; {device}"
        elif not models.target.gpus:
            description += _unused_gpu(sources[0])
        engine = Engine(
            models,
            drafting,
            sampling,
            description,
            room,
            memory=memory,
        )
        engine.device = device
        stack.pop_all()
        return engine


def _note_free_cores(target: LlamaModel, others: OtherPrograms) -> None:
    """Have the target begin with the cores that other programs left free so far."""
    target.other_programs = others
    num_free = others.num_free_cores()
    if num_free is not None:
        target.num_free_cores = num_free


def _adapters_in_words(target: Source) -> str:
    """The adapters of a target, for its description; nothing without one."""
    names = [adapter.title for adapter in target.adapters]
    if not names:
        return ""
    kind = "adapter"
    if len(names) > 1:
        kind = "adapters"
    return f", with the {kind} {' and '.join(names)} on the target"


def _unused_gpu(target: Source) -> str:
    """A GPU that has no layer of the target, and why, in words; also to the log.

    Args:
        target: The target, with the settings that the user asked for.
    """
    if target.header is None:  # nobody knows where an application's own model lies
        return ""
    from localspec.llama.library import devices  # loads libllama

    num_layers = target.options.num_gpu_layers
    words = unused_gpu(usable_gpus(devices()), num_layers)
    if num_layers != 0:
        words = driver_fault(devices()) or words
    if not words:
        return ""
    logger.info("%s", words)
    return f" ({words})"


def _check_kept(kept_bytes: int, *, memory: bool) -> None:
    """Raise OptionError for invalid values."""
    if not is_whole(kept_bytes, 0):
        raise OptionError(f"kept_bytes is {kept_bytes!r}", "Choose 0 (none) or more.")
    if not isinstance(memory, bool):
        raise OptionError(f"memory is {memory!r}", "Choose True or False.")


def _plans(
    sources: list[Source],
    sight: Sight | None,
    parallel: int,
    kept_bytes: int,
) -> Ranked | None:
    """The plans of opening the files on each device, the best first; None without a file.

    One answer at a time where an application has loaded a model itself.

    Raises what `plan_here` raises, and OptionError for a device that does not exist.
    """
    files = []
    for source in sources:
        if source.header is not None:
            adapters = tuple(adapter.header for adapter in source.adapters)
            files.append(Planned(source.header, source.options, source.role, adapters))
    if not files:
        return None
    if len(files) < len(sources):
        parallel = 1
    for model in files:
        if model.options.device is not None:
            from localspec.llama.library import devices  # loads libllama

            require_device(model.options.device, usable_gpus(devices()))
    if sight is not None:
        files[0] = files[0].changed(num_picture_cells=cells_at_once(sight.projector))
        files.append(Planned(sight.projector, role="mmproj"))
    if sources[0].header is None:  # only the application knows where its layers are
        return Ranked([plan_here(files, parallel, kept_bytes)])
    make_plan = partial(plan_here, parallel=parallel, kept_bytes=kept_bytes)
    return ranked_plans(files, make_plan, measure=True)


def _open_fitting(
    sources: list[Source],
    sight: Sight | None,
    ranked: Ranked | None,
    stack: contextlib.ExitStack,
) -> tuple[Models, Plan | None]:
    """Open the models by the best plan, or by the next one where memory runs out.

    Args:
        sources: The models.
        sight: The target's projector, if any.
        ranked: The plans; None without a file.
        stack: Closes the models.

    Raises:
        MemoryLimitError: If the memory does not suffice, and the user chose the layers or no
            plan helps. Also raises what `_open_models` raises.
    """
    if ranked is None:
        return _open_models(sources, sight, stack), None
    fault: MemoryLimitError | None = None
    for fitting in ranked.attempts():
        if fault is not None:
            logger.warning(
                "memory ran out (%s); trying again with fewer layers on GPUs: %s",
                fault,
                fitting.memory.gpu_layers_in_words,
            )
        planned_files = iter(fitting.models)
        planned = []
        for source in sources:
            if source.header is not None:
                source = source._replace(options=next(planned_files).options)
            planned.append(source)
        with contextlib.ExitStack() as attempt:
            try:
                models = _open_models(planned, sight, attempt)
            except MemoryLimitError as error:
                fault = error
                continue
            stack.push(attempt.pop_all())
            if all(source.header is not None for source in sources):
                models = models._replace(memory=fitting.memory)
            return models, fitting
    assert fault is not None
    raise fault


def _open_models(
    sources: list[Source],
    sight: Sight | None,
    stack: contextlib.ExitStack,
) -> Models:
    """Open the target, the models that draft for it, and its projector. stack: closes them.

    Raises ProjectorError for a projector that the user did not name, MemoryLimitError,
    ModelFileError, and OptionError.
    """
    target = _open(sources[0], stack)
    draft = None
    head = None
    for source in sources[1:]:
        if source.role == "draft":
            draft = _open(_as_draft(source, target.context_length), stack)
            if draft.may_change_threads:
                computed_apart(partial(choose_threads, draft))
        else:
            head = _open_head(source, target, stack)
    options = sources[0].options
    if options.with_head:
        head = _open_head(sources[0], target, stack)
    if sight is not None:
        try:
            open_projector(sight.projector, options, target, draft, stack)
        except (ModelFileError, OptionError) as error:
            if sight.is_named:
                raise
            raise ProjectorError(str(error)) from error
    for source in sources:
        reset_connections_at_end(source.options.rpc)
    return Models(target, draft, head)


def _with_common(own: LlamaOptions | None, common: LlamaOptions) -> LlamaOptions:
    """A model's own options; where they say nothing, the options for both models."""
    if own is None:
        return common
    if not isinstance(own, LlamaOptions):
        raise OptionError(f"a model's options are {own!r}", "Give a LlamaOptions.")
    names = ["context_length", "num_threads", "rpc", "exact"]
    if own.num_gpu_layers is None and own.device is None:
        names += ["num_gpu_layers", "device"]
    added = {}
    for name in names:
        if getattr(own, name) in (None, ()):
            added[name] = getattr(common, name)
    return replace(own, **added)


def _open(source: Source, stack: contextlib.ExitStack) -> LlamaModel:
    # Imported late, since it loads libllama: wrong arguments are found sooner without it.
    from localspec.llama.library import llama_cpp
    from localspec.llama.model import LlamaModel

    options = source.options
    if source.header is None:
        assert source.llama is not None
        tiled_kernels.note_use()
        adopted = LlamaModel.adopt(source.llama, options.max_outputs)
        stack.callback(adopted.close)
        adopted.content = _content_of_adopted(adopted, source.llama.model_path)
        return adopted
    # Check again: the file may have changed, and libllama trusts it.
    header = check_model_file(source.header.path)
    context = target_context_length(header, options.context_length)
    content = FileContent(header)
    adapter_contents = [FileContent(adapter.header) for adapter in source.adapters]
    options = suited_options_here(options, header, context)
    prepare_kernels(options, header)
    model = LlamaModel.open(header.path, options, source.report, source.adapters)
    stack.callback(model.close)
    note_used(header.path)
    # Read now, while the system has the file in memory.
    model.content = content.digest()
    model.identify_adapters(adapter_contents)
    model.mapped = _mapped(content, options)
    gpus = usable_gpus(list_devices(llama_cpp))
    has_own_threads = source.options.num_threads is not None
    model.may_change_threads = not has_own_threads and not is_on_gpus(header, options, gpus)
    placement = place_layers(header, options, gpus, (1,) * len(gpus))
    counts = placement.gpu_layers()
    used = [gpu for gpu, count in zip(gpus, counts, strict=True) if count]
    if used:
        layers = f"{sum(counts)} of {len(placement.layers)} layers"
        names = ", ".join(gpu.name for gpu in used)
        model.gpus = f" ({layers} on {names})"
    if options.exact:
        gpu_models = [gpu.description for gpu in used]
        model.use_exactness(_find_exactness(model, options, gpu_models))
    return model


def _mapped(content: FileContent, options: LlamaOptions) -> FileStates:
    """The states of the files that stay mapped; none where the weights are copied."""
    if options.use_mmap is False:
        return {}
    return content.states


def prepare_kernels(options: LlamaOptions, header: Header) -> None:
    """Choose the kernels before the model is opened; a process can choose only once.

    Raises OptionError if exact decodes are asked for, and other kernels are in use already.
    """
    if not (options.exact and tiled_kernels.are_tiled(header)):
        tiled_kernels.note_use()
    elif not tiled_kernels.switch_off():
        raise OptionError(
            f"{header.path.name} cannot be exact in this process, whose kernels for several "
            "rows are in use",
            "Load it before any other model, or in a process of its own (IsolatedEngine), "
            "without GGML_CPU_TILED_MM in the environment.",
        )


def _find_exactness(
    model: LlamaModel,
    options: LlamaOptions,
    gpu_models: Sequence[str],
) -> Exactness:
    """Find the class of exact decodes: in the profile, or by a probe of 0.1 to 30 s.

    Args:
        model: The model.
        options: The options with which it was opened.
        gpu_models: Descriptions of the GPUs that have layers of it.

    Raises:
        OptionError: If no decode is exact.
    """
    profile = None
    # The probe has all of the adapters, whatever their scales.
    identity = model.identity_under([USUAL_SCALE] * len(model.scales))
    if identity is not None:
        snapshots = options.num_snapshots or 0
        count = options.num_sequences
        profile = Profile([identity, exactness_setting(snapshots, count, gpu_models)])
        saved = Exactness.saved(profile.load())
        if saved is not None:
            return saved
    try:
        from localspec.llama.exact_probe import probe_exactness  # loads libllama

        probe = partial(probe_exactness, model.handle, options)
        exactness: Exactness = computed_apart(probe)
    except DecodeError as error:
        exactness = Exactness(reason=str(error))
    logger.info("exact decodes of %s: %s", model.name, exactness)
    if not exactness.holds:
        raise OptionError(
            f"{model.name} cannot be exact here: {exactness.reason}",
            "Leave exact out: texts are then equal except at near ties. Files of the types "
            "Q8_0, Q4_0 and Q4_K_M were exact where they were measured (docs/lossless.md).",
        )
    if profile is not None:
        profile.save(asdict(exactness))
    return exactness


def _as_draft(source: Source, target_context: int) -> Source:
    """The draft with the target's context length, or its trained one if that is less.

    An application's `Llama`, which has no header, keeps its context.
    """
    if source.header is None:
        return source
    header = source.header
    trained = header.number(f"{header.architecture}.context_length") or target_context
    context = min(target_context, trained)
    return source._replace(options=replace(source.options, context_length=context))


def _open_head(
    source: Source,
    target: LlamaModel,
    stack: contextlib.ExitStack,
) -> LlamaHead | MedusaHeads:
    """The head in a file of its own, or in the target's."""
    from localspec.llama.head import open_head
    from localspec.llama.medusa import MedusaHeads

    assert source.header is not None
    header = check_model_file(source.header.path)
    facts = head_facts(header)
    assert facts is not None
    own_path = None
    if source.role == "head":
        own_path = header.path
    options = replace(source.options, max_outputs=REPLAY_TOKENS, num_snapshots=0)
    options = suited_options_here(options, header, target.context_length)
    content = FileContent(header)
    head: LlamaHead | MedusaHeads
    if facts.graph is HeadGraph.MEDUSA:
        head = MedusaHeads(header, target)
    else:
        head = open_head(target, own_path, options, facts, source.report)
        head.mapped = _mapped(content, options)
    stack.callback(head.close)
    if own_path is None:
        head.content = target.content
    else:
        head.content = content.digest()
    return head


def _description(models: Models, chosen: Preset | None) -> str:
    """The pair, for people: a preset's own description, or the names of the models."""
    if chosen is not None:
        return chosen.description
    target, draft, head, _ = models
    helpers = []
    if draft is not None:
        helpers.append(f"{draft.name} as its draft")
    if head is not None and head.name == target.name:
        helpers.append("its head")
    elif head is not None:
        helpers.append(f"{head.name} as its head")
    if not helpers:
        return f"{target.name} without a draft model"
    return f"{target.name} with {' and '.join(helpers)}"


def _content_of_adopted(model: LlamaModel, path: str) -> str | None:
    """A hash of the file at `path` and of the logits of an application's `model`.

    Adapters, control vectors and other settings of the application change the content of a
    cache, as does a file that was replaced since then. libllama reports none of them, so the
    hash includes the logits after tokens from all over the vocabulary. The cache is emptied.

    None, with a reason in the log, as from `FileContent.digest`.
    """
    try:
        file_hash = FileContent(check_model_file(Path(path))).digest()
    except ModelFileError as error:
        logger.warning("the loaded model cannot be identified by its file: %s", error)
        return None
    if file_hash is None:
        return None
    count = min(_NUM_TRIED, model.vocab_size, model.context_length)
    tokens = [model.vocab_size * index // count for index in range(count)]
    last_row = computed_apart(partial(model.decode, tokens, 1))
    model.truncate(0)
    logits_hash = hashlib.blake2b(last_row.tobytes(), digest_size=16).hexdigest()
    return f"{file_hash} {logits_hash}"
