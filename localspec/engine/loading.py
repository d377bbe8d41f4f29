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
    ProjectorChoice,
    ProjectorError,
    open_projector,
    projectors_to_try,
    warn_unused,
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

_NUM_PROBED = 16  # tokens that an application's own model decodes, to identify it


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
    """An engine for a preset, or for a target of your own and models that draft for it.

    Raises PresetError, ModelFileError, MemoryLimitError, PairError, OptionError or RpcError.

    Args:
        preset: The MODEL of the commands: a preset, its name, an alias, or a target as below.
            With a draft or a head it gives the target alone.
        target, draft: Paths of GGUF files (the first part), names of downloaded files as
            `hf:owner/repo/file.gguf` and `owner/repo:QUANT`, or `llama_cpp.Llama` objects,
            which `Engine.close` gives back. Without preset and target: the demo pair.
        head: A trained head, named in the same way; by default the head in the target's file,
            if any.
        mmproj: The projector with which the target sees; by default mmproj*.gguf in the
            target's folder. "none" opens none.
        draft_tokens: Tokens proposed per step; None for as many as make answers fastest.
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
        exact: Whether texts are the same, to the bit, with any draft and without one.
        target_options, draft_options: Further settings of the target and of the draft.
        kept_bytes, cache_disk: Bytes for the caches of conversations that wait, in memory and
            on disk.
        parallel: How many answers are produced at once.
        memory: Whether answers that repeat an earlier text are drafted from it.
        progress: Called with the loaded share, 0 … 1; raise to cancel.
        force: Whether models are loaded that seem too large.
    """
    # Made first, so that it watches for long enough which cores are free: a small model is
    # opened in no time.
    others = OtherPrograms()
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
    defaults = LlamaOptions(
        context_length=context_length,
        num_threads=num_threads,
        num_gpu_layers=num_gpu_layers,
        device=device,
    )
    target_defaults = replace(defaults, rpc=common_servers(rpc, chosen), exact=exact)
    target_options = _with_defaults(target_options, target_defaults)
    draft_options = _with_defaults(draft_options, defaults)
    projector = located.pop("mmproj", None)
    assert projector is None or isinstance(projector, Path)
    sources = chosen_sources(located, drafting, target_options, draft_options)
    sources[0] = with_adapters(sources[0], adapters, chosen)
    sources = reporting(sources, progress)
    check_parallel(parallel)
    with contextlib.ExitStack() as stack:
        for projector_choice in projectors_to_try(mmproj, projector, sources[0].header):
            try:
                ranked = _plans_for(sources, projector_choice, parallel, kept_bytes)
                if ranked is not None and not force:
                    check_fit(ranked.plans[0])
                models, plan = _open_by_plans(sources, projector_choice, ranked, stack)
                break
            except (MemoryLimitError, ProjectorError) as error:
                if projector_choice is None or projector_choice.is_named:
                    raise
                warn_unused(projector_choice.header.path, error)
        _note_free_cores(models.target, others)
        sampling = SamplingParams()
        if chosen is not None:
            sampling = chosen.sampling
        description = _description(models, chosen) + _adapters_in_words(sources[0])
        description += models.target.gpus
        device_words = ""
        measured = None
        if plan is not None and ranked is not None:
            measured = ranked.measured
            device_words = device_in_words(plan, measured)
            kept_bytes -= plan.reserved_bytes  # of texts side by side, which count as kept
        room = CacheRoom(kept_bytes, CacheDisk.of(cache_disk))
        if measured is not None:
            logger.info("%s", device_words)
            description += f"; {device_words}"
        elif not models.target.gpus:
            description += _unused_gpu_in_words(sources[0])
        engine = Engine(
            models,
            drafting,
            sampling,
            description,
            room,
            memory=memory,
        )
        engine.device = device_words
        stack.pop_all()  # the engine closes the models from now on
        return engine


def _note_free_cores(target: LlamaModel, others: OtherPrograms) -> None:
    """Have the target begin with a thread for each core that other programs leave free."""
    target.other_programs = others
    num_free = others.num_free_cores()
    if num_free is not None:
        target.num_free_cores = num_free


def _adapters_in_words(target: Source) -> str:
    """A target's adapters in words, for the description of an engine; empty without one."""
    names = [adapter.title for adapter in target.adapters]
    if not names:
        return ""
    kind = "adapter"
    if len(names) > 1:
        kind = "adapters"
    return f", with the {kind} {' and '.join(names)} on the target"


def _unused_gpu_in_words(target: Source) -> str:
    """Why no GPU has a layer of the target, in words; empty if there is no GPU to use.

    The words are also logged.

    Args:
        target: The target, with the settings that the user asked for.
    """
    if target.header is None:  # only the application knows where its layers are
        return ""
    from localspec.llama.library import devices  # loads libllama
    from localspec.llama.loaded import library

    num_layers = target.options.num_gpu_layers
    words = ""
    if num_layers != 0 and library.has_vulkan:
        words = driver_fault(devices())
    if not words:
        words = unused_gpu(usable_gpus(devices()), num_layers)
    if not words:
        return ""
    logger.info("%s", words)
    return f" ({words})"


def _check_kept(kept_bytes: int, *, memory: bool) -> None:
    """Raise OptionError for invalid values of these arguments of `load`."""
    if not is_whole(kept_bytes, 0):
        raise OptionError(f"kept_bytes is {kept_bytes!r}", "Choose 0 (none) or more.")
    if not isinstance(memory, bool):
        raise OptionError(f"memory is {memory!r}", "Choose True or False.")


def _plans_for(
    sources: list[Source],
    projector_choice: ProjectorChoice | None,
    parallel: int,
    kept_bytes: int,
) -> Ranked | None:
    """The plans of opening the models' files on each device, the best first.

    None if no model is opened from a file. If an application has loaded one of the models, the
    plans are for one answer at a time; if it has loaded the target, there is one plan.

    Args:
        sources: The models, the target first.
        projector_choice: The target's projector; None without one.
        parallel: How many answers are produced at once.
        kept_bytes: Memory for the caches of conversations that wait.

    Raises:
        OptionError: For a device that does not exist. Also raises what `plan_here` raises.
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
    if projector_choice is not None:
        projector = projector_choice.header
        files[0] = files[0].changed(num_picture_cells=cells_at_once(projector))
        files.append(Planned(projector, role="mmproj"))
    if sources[0].header is None:  # only the application knows where its layers are
        return Ranked([plan_here(files, parallel, kept_bytes)])
    make_plan = partial(plan_here, parallel=parallel, kept_bytes=kept_bytes)
    return ranked_plans(files, make_plan, measure=True)


def _open_by_plans(
    sources: list[Source],
    projector_choice: ProjectorChoice | None,
    ranked: Ranked | None,
    stack: contextlib.ExitStack,
) -> tuple[Models, Plan | None]:
    """Open the models by the best plan; if memory runs out, by the next one.

    Args:
        sources: The models, the target first.
        projector_choice: The target's projector; None without one.
        ranked: The plans; None if no model is opened from a file.
        stack: Closes the models.

    Returns:
        The models; and the plan by which they were opened, None without plans.

    Raises:
        MemoryLimitError: If the memory suffices for none of the plans; or not for the first, if
            the user chose the layers on GPUs. Also raises what `_open_models` raises.
    """
    if ranked is None:
        return _open_models(sources, projector_choice, stack), None
    last_error: MemoryLimitError | None = None
    for plan in ranked.attempts():
        if last_error is not None:
            logger.warning(
                "memory ran out (%s); trying again with fewer layers on GPUs: %s",
                last_error,
                plan.memory.gpu_layers_in_words,
            )
        with contextlib.ExitStack() as attempt:
            try:
                models = _open_models(_as_planned(sources, plan), projector_choice, attempt)
            except MemoryLimitError as error:
                last_error = error
                continue
            stack.push(attempt.pop_all())
            if all(source.header is not None for source in sources):
                models = models._replace(memory=plan.memory)
            return models, plan
    assert last_error is not None
    raise last_error


def _as_planned(sources: Sequence[Source], plan: Plan) -> list[Source]:
    """The models, with the plan's options for those that are opened from files."""
    planned_files = iter(plan.models)
    planned_sources = []
    for source in sources:
        if source.header is not None:
            source = source._replace(options=next(planned_files).options)
        planned_sources.append(source)
    return planned_sources


def _open_models(
    sources: list[Source],
    projector_choice: ProjectorChoice | None,
    stack: contextlib.ExitStack,
) -> Models:
    """Open the target, the models that draft for it, and its projector.

    Args:
        sources: The models, the target first, with the options of a plan.
        projector_choice: The target's projector; None without one.
        stack: Closes the models and the projector.

    Raises:
        ProjectorError: For a fault of a projector for which the user did not ask.
        MemoryLimitError, ModelFileError, OptionError: As opening a model raises them.
    """
    target = _open_model(sources[0], stack)
    draft = None
    head = None
    for source in sources[1:]:
        if source.role == "draft":
            draft_source = _with_draft_context(source, target.context_length)
            draft = _open_model(draft_source, stack)
            if draft.may_change_threads:
                computed_apart(partial(choose_threads, draft))
        else:
            head = _open_head(source, target, stack)
    options = sources[0].options
    if options.with_head:
        head = _open_head(sources[0], target, stack)
    if projector_choice is not None:
        try:
            open_projector(projector_choice.header, options, target, draft, stack)
        except (ModelFileError, OptionError) as error:
            if projector_choice.is_named:
                raise
            raise ProjectorError(str(error)) from error
    for source in sources:
        reset_connections_at_end(source.options.rpc)
    return Models(target, draft, head)


def _with_defaults(options: LlamaOptions | None, defaults: LlamaOptions) -> LlamaOptions:
    """A model's options, with defaults for those that are not set.

    Args:
        options: The model's options; None if none is set.
        defaults: What the other arguments of `load` say for the model.

    Raises:
        OptionError: If `options` is of another class.
    """
    if options is None:
        return defaults
    if not isinstance(options, LlamaOptions):
        raise OptionError(f"a model's options are {options!r}", "Give a LlamaOptions.")
    names = ["context_length", "num_threads", "rpc", "exact"]
    # A device is not combined with the number of layers that was chosen for another.
    if options.num_gpu_layers is None and options.device is None:
        names += ["num_gpu_layers", "device"]
    added = {}
    for name in names:
        if getattr(options, name) in (None, ()):  # rpc is () if it is not set
            added[name] = getattr(defaults, name)
    return replace(options, **added)


def _open_model(source: Source, stack: contextlib.ExitStack) -> LlamaModel:
    """Open a target or a draft, or adopt an application's `Llama`.

    Args:
        source: The model, with the options of a plan.
        stack: Closes the model.

    Raises:
        MemoryLimitError, ModelFileError, OptionError: If it cannot be opened.
    """
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
    has_fixed_threads = source.options.num_threads is not None
    model.may_change_threads = not has_fixed_threads and not is_on_gpus(header, options, gpus)
    # Shares count only without a `tensor_split`, which a plan for several GPUs has.
    equal_shares = (1,) * len(gpus)
    placement = place_layers(header, options, gpus, equal_shares)
    layer_counts = placement.gpu_layers()
    used_gpus = [gpu for gpu, count in zip(gpus, layer_counts, strict=True) if count]
    if used_gpus:
        layers = f"{sum(layer_counts)} of {len(placement.layers)} layers"
        names = ", ".join(gpu.name for gpu in used_gpus)
        model.gpus = f" ({layers} on {names})"
    if options.exact:
        gpu_models = [gpu.description for gpu in used_gpus]
        model.use_exactness(_find_exactness(model, options, gpu_models))
    return model


def _mapped(content: FileContent, options: LlamaOptions) -> FileStates:
    """The states of a model's files that stay mapped; empty if the weights are copied."""
    if options.use_mmap is False:
        return {}
    return content.states


def prepare_kernels(options: LlamaOptions, header: Header) -> None:
    """Switch ggml's tiled kernels off for a model that has to be exact and would use them.

    Called before each model is opened. Any other model leaves the kernels as they are: if they
    are on, they can no longer be switched off in this process.

    Raises OptionError if the model has to be exact, and tiled kernels cannot be switched off.
    """
    must_switch_off = options.exact and tiled_kernels.are_tiled(header)
    if not must_switch_off:
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
    """Find a model's class of exact decodes: in its profile, or by a probe of 0.1 to 30 s.

    The result of a probe is saved in the profile.

    Args:
        model: The model.
        options: The options with which it was opened.
        gpu_models: Descriptions of the GPUs that have layers of it.

    Raises:
        OptionError: If no decode is exact.
    """
    profile = None
    # The probe uses all adapters, whatever their scales.
    usual_scales = [USUAL_SCALE] * len(model.scales)
    identity = model.identity_under(usual_scales)
    if identity is not None:
        num_snapshots = options.num_snapshots or 0
        setting = exactness_setting(num_snapshots, options.num_sequences, gpu_models)
        profile = Profile([identity, setting])
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


def _with_draft_context(source: Source, target_context: int) -> Source:
    """The draft with the target's context length, or with its own trained one if that is less.

    An application's `Llama`, which has no header, keeps its context.

    Args:
        source: The draft.
        target_context: The target's context length, in tokens.
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
    """Open a head in a file of its own, or in the target's file.

    Args:
        source: The head, or the target whose file has it.
        target: The open target.
        stack: Closes the head.
    """
    from localspec.llama.head import open_head
    from localspec.llama.medusa import MedusaHeads

    assert source.header is not None
    header = check_model_file(source.header.path)
    facts = head_facts(header)
    assert facts is not None
    own_path = None  # of the head's file; None if it is in the target's
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
    target_name = models.target.name
    helpers = []
    if models.draft is not None:
        helpers.append(f"{models.draft.name} as its draft")
    if models.head is not None:
        if models.head.name == target_name:
            helpers.append("its head")
        else:
            helpers.append(f"{models.head.name} as its head")
    if not helpers:
        return f"{target_name} without a draft model"
    return f"{target_name} with {' and '.join(helpers)}"


def _content_of_adopted(model: LlamaModel, path: str) -> str | None:
    """What identifies an application's model: hashes of its file, and of some of its logits.

    The application may have added adapters or control vectors, or replaced the file since it
    loaded the model. libllama reports none of that, so some tokens from all over the vocabulary
    are decoded, and the logits after them are hashed, too. The cache is emptied.

    None if the file cannot be read, or changes while it is read; the log then says why.

    Args:
        model: The model.
        path: Its file.
    """
    try:
        file_hash = FileContent(check_model_file(Path(path))).digest()
    except ModelFileError as error:
        logger.warning("the loaded model cannot be identified by its file: %s", error)
        return None
    if file_hash is None:
        return None
    count = min(_NUM_PROBED, model.vocab_size, model.context_length)
    tokens = []
    for number in range(count):
        tokens.append(model.vocab_size * number // count)
    last_row = computed_apart(partial(model.decode, tokens, 1))
    model.truncate(0)
    logits_hash = hashlib.blake2b(last_row.tobytes(), digest_size=16).hexdigest()
    return f"{file_hash} {logits_hash}"
