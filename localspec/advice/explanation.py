"""Everything that is known of a pair before it is downloaded or loaded."""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.chat.call_forms import takes_tools
from localspec.errors import DAMAGES, LocalspecError, ModelFileError, OptionError, PairError
from localspec.exactness import Exactness
from localspec.gguf_file.adapter import (
    USUAL_SCALE,
    AdapterFile,
    adapters_identity,
    changed_weights,
    has_adapters,
)
from localspec.gguf_file.file_content import FileContent
from localspec.gguf_file.head_facts import check_target, head_facts, head_misfit
from localspec.gguf_file.header import Header
from localspec.gguf_file.projector_facts import (
    NO_PROJECTOR,
    projector_beside,
    projector_facts,
    require_free_of_position,
    require_projector_of,
)
from localspec.gguf_file.shape import DEFAULT_CONTEXT_LENGTH, ModelShape
from localspec.gguf_file.tensor_types import type_name
from localspec.keywords import known_keywords
from localspec.llama.model_options import LlamaOptions
from localspec.llama.placement import require_device
from localspec.llama.quirks.tiled_kernels import are_tiled
from localspec.planning.device_plans import device_in_words, ranked_plans
from localspec.planning.free_memory import (
    MemoryRoom,
    PairMemory,
    Planned,
    free_memory,
    suited_options_here,
)
from localspec.planning.memory import DEFAULT_KEPT_BYTES
from localspec.planning.plan import (
    AtOnce,
    Plan,
    check_parallel,
    fitting_preset,
    largest_context,
    most_gpu_layers,
    plan_side_by_side,
    target_context_length,
)
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.profile import is_of_exactness, kept_profiles, latest_learned
from localspec.policy.speedup import (
    Curve,
    best_draft_tokens,
    break_even_acceptance,
    expected_speedup,
)
from localspec.presets.local_models import (
    DraftChoice,
    compare_vocabularies,
    draft_here,
    size_warning,
)
from localspec.presets.located import (
    FoundHeader,
    find_model,
    found_adapters,
    missing_files,
    path_of,
    read_model_header,
    read_model_headers,
    used_models,
)
from localspec.presets.model_names import resolve_pair
from localspec.presets.presets import (
    AnyAdapter,
    LocalModel,
    Preset,
    PresetModel,
    Role,
    checked_adapters,
    common_servers,
    load_presets,
)
from localspec.speculative.policy_api import ProposerKind
from localspec.speculative.shared_vocabulary import SharedVocabulary

_Name = str | os.PathLike[str]
_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model, as its header states it."""

    name: str
    is_here: bool
    size_bytes: int
    architecture: str

    size_label: str
    """The number of parameters as the maker rounds it, as 1.5B; empty if that is not stated."""

    num_weights: int
    """The weights that the file stores."""

    num_output_weights: int
    """The weights of the output layer among these; 0 if the embeddings are the output layer.

    In some files the output layer repeats the embeddings. Then the model has fewer parameters
    than the file has weights.
    """

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    """The largest number of any layer."""

    vocab_size: int
    trained_context: int
    sliding_window: int
    """In tokens; 0 if every layer sees all of them."""

    can_roll_back: bool
    type_bytes: dict[str, int]
    """Bytes of weights by type, the largest first."""

    exact_settings: tuple[str, ...]
    """Settings for exact decodes, see docs/lossless.md."""

    exactness: Exactness | None
    """The decodes that were found exact with these settings on this machine; None if none are
    known to be."""

    has_tools: bool
    """Whether its template has tools, in a form of calls that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReport:
    """A trained head, as headers state it."""

    name: str
    """The name of its file."""

    is_here: bool
    is_apart: bool
    """Whether the head has a file of its own, apart from the target's."""

    description: str
    """The kind of head; empty if the file has no head."""

    size_bytes: int
    """Bytes of its weights."""

    why_not: str
    """Why it cannot draft for the target; empty if it can."""


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """A LoRA adapter of the target. A draft or a head keeps its own weights."""

    name: str
    """The name of its file."""

    scale: float
    """The factor of its weights."""

    num_weights: int
    """The number of the target's matrices that it changes."""

    size_bytes: int
    """The size of its file."""


@dataclass(frozen=True, slots=True)
class ProjectorReport:
    """The projector, with which the target sees pictures."""

    name: str
    is_here: bool
    misfit: str
    """Why it cannot be the target's projector; empty if it can."""

    is_named: bool
    """Whether the caller named it. If not, `load` leaves out a projector with a misfit."""

    kind: str = ""
    """llama.cpp's name for its kind; empty for a damaged file."""

    size_bytes: int = 0
    """Bytes of its file; 0 for a damaged file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """The best number of draft tokens at an acceptance rate, and its speed-up over plain."""

    acceptance: float
    num_draft_tokens: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that is known of a pair."""

    description: str
    target: ModelFacts
    draft: ModelFacts | None
    head: HeadReport | None
    projector: ProjectorReport | None
    adapters: tuple[AdapterReport, ...]
    vocabulary: SharedVocabulary | None
    """What target and draft share; None without a draft, or if they are not a pair."""

    misfit: str
    """Why target and draft are not a pair; empty if they are."""

    size_warning: str
    """Why the draft is too large to pay, in a sentence; empty if it is not."""

    device: str
    """Where the target is computed, and what was measured of other devices, in a sentence."""

    memory: PairMemory
    room: MemoryRoom
    largest_context: int
    """Tokens that fit into the memory that is free now."""

    gpu_layers: int | None
    """The most layers of the target on GPUs that fit at this context, up to the number that was
    asked for; None without GPUs, if no number fits, or if the number was left open."""

    at_once: AtOnce
    """How many answers run at once."""

    gains: tuple[ExpectedGain, ...] | None
    """Gains at several acceptance rates; None if costs of decoding were not measured here."""

    break_even: float | None
    """The lowest acceptance rate that pays; None if none does, or costs were not measured."""

    variants: dict[str, str]
    """The descriptions of other presets of the same models, by name."""

    smaller: str | None
    """The name of a preset that fits, if this pair does not."""

    draft_here: Path | None
    """A model on this machine that could draft, if neither a draft nor a head was named."""

    draft_to_measure: Path | None
    """If there is no `draft_here`: a model on this machine with the target's tokenizer that is
    probably too large to pay."""

    why_no_draft: str
    """Why there is no `draft_here`, in words; empty if there is, or none was looked for."""

    @property
    def fits(self) -> bool:
        """Whether there is memory for it now."""
        return not self.room.shortages(self.memory)

    @property
    def is_pair(self) -> bool:
        """Whether the models can be loaded together, or there is only a target.

        A projector that nobody named, or a head in the target's file, is left out if it does
        not fit, so it does not count.
        """
        projector = self.projector
        if projector is not None and projector.is_named and projector.misfit:
            return False
        head = self.head
        if head is not None and head.is_apart and head.why_not:
            return False
        return not self.misfit

    @property
    def can_draft(self) -> bool:
        """Whether a draft or a head can be used at all."""
        has_draft = self.draft is not None and not self.misfit
        has_head = self.head is not None and not self.head.why_not
        return self.target.can_roll_back and (has_draft or has_head)


@known_keywords
def explain(  # noqa: PLR0913  as `load`: every argument has a default
    preset: str | os.PathLike[str] | Preset | None = None,
    *,
    target: str | os.PathLike[str] | None = None,
    draft: str | os.PathLike[str] | None = None,
    head: str | os.PathLike[str] | None = None,
    mmproj: str | os.PathLike[str] | None = None,
    context_length: int | None = None,
    num_gpu_layers: int | None = None,
    device: str | None = None,
    measure: bool = False,
    rpc: Sequence[str] | None = None,
    adapters: Sequence[AnyAdapter] | None = None,
    tensor_split: Sequence[float] = (),
    parallel: int = 1,
    kept_bytes: int = DEFAULT_KEPT_BYTES,
) -> Explanation:
    """Whether a preset, or a target and its draft or head, fits and pays on this machine.

    Models are named as for `localspec.load`; only the headers of missing files are fetched.

    Raises PresetError, OptionError, ModelFileError or DownloadError for a model that cannot be
    found or read, OptionError for numbers that `load` refuses, or if a target that is not on
    this machine is to be measured, and RpcError.

    Args:
        context_length: In tokens.
        num_gpu_layers: The layers of each model on GPUs.
        device: The device, as for `load`.
        measure: Measure the devices again, with a target that is on this machine.
        rpc: RPC servers for the target, which are asked for their devices.
        adapters: The target's adapters. By default those of the preset.
        tensor_split: The target's shares of the devices.
        parallel, kept_bytes: The number of answers at once, and the memory for caches. The
            defaults are those of `load`.
    """
    options = LlamaOptions(
        context_length=context_length,
        num_gpu_layers=num_gpu_layers,
        device=device,
    )
    chosen_preset, names = resolve_pair(
        preset,
        {
            "target": target,
            "draft": draft,
            "head": head,
            "mmproj": mmproj,
        },
    )
    found_headers, projector, projector_header = _find_headers(
        chosen_preset,
        names,
        is_blind=mmproj == NO_PROJECTOR,
    )
    target_header = found_headers["target"].header
    vocabulary: SharedVocabulary | None = None
    misfit = ""
    draft_size_warning = ""
    if "draft" in found_headers:
        draft_header = found_headers["draft"].header
        draft_size_warning = size_warning(target_header, draft_header)
        vocabulary, misfit = _shared_vocabulary(target_header, draft_header)
    options = replace(
        options,
        rpc=common_servers(rpc, chosen_preset),
        tensor_split=tuple(tensor_split),
    )
    free = free_memory(options.rpc)
    adapter_files = _adapter_files(found_headers["target"], adapters, chosen_preset)
    without_context = replace(options, context_length=None)
    models_to_plan = _models_to_plan(
        found_headers,
        without_context,
        projector_header,
        adapter_files,
    )
    description = ""
    usual_length = None
    if chosen_preset is not None:
        description = chosen_preset.description
        usual_length = chosen_preset.context_length
    length = target_context_length(target_header, context_length or usual_length)
    check_parallel(parallel)
    if options.device is not None:
        require_device(options.device, free.gpus)
    if measure and not found_headers["target"].is_here:
        raise OptionError(
            f"{target_header.path.name} is not on this machine, and cannot be measured",
            "Download it first, or leave measure out.",
        )

    def make_plan(models: Sequence[Planned]) -> Plan:
        return plan_side_by_side(models, length, free, parallel, kept_bytes)

    ranked = ranked_plans(
        models_to_plan,
        make_plan,
        measure=measure,
        again=measure,
    )
    plan = ranked.plans[0]
    memory = plan.memory
    at_once = AtOnce(
        num=plan.models[0].options.num_sequences,
        num_asked=parallel,
        num_bytes=plan.reserved_bytes,
        kept_bytes=kept_bytes - plan.reserved_bytes,
    )
    smaller = _smaller_preset(free, memory)
    head_report = _head_report(found_headers, memory, options)
    draft_choice = _draft_choice(found_headers)
    usable_draft = draft_choice.path
    draft_to_measure = None
    if draft_choice.why_not:
        usable_draft = None
        draft_to_measure = draft_choice.path
    costs = _measured_costs(found_headers, head_report, adapter_files)
    keeps_snapshots = memory.models[0].num_snapshots > 0
    target_facts = _facts(
        found_headers["target"],
        adapter_files,
        keeps_snapshots=keeps_snapshots,
    )
    draft_facts = None
    if "draft" in found_headers:
        draft_facts = _facts(found_headers["draft"])
    gpu_layers = None
    if free.gpus:
        gpu_layers = most_gpu_layers(models_to_plan, length, free)
    return Explanation(
        description=description,
        target=target_facts,
        draft=draft_facts,
        head=head_report,
        projector=projector,
        adapters=tuple(map(_adapter_report, adapter_files)),
        vocabulary=vocabulary,
        misfit=misfit,
        size_warning=draft_size_warning,
        device=device_in_words(plan, ranked.measured),
        memory=memory,
        room=free,
        largest_context=largest_context(models_to_plan, free),
        gpu_layers=gpu_layers,
        at_once=at_once,
        gains=_gains(costs),
        break_even=_break_even(costs),
        variants=_variants(chosen_preset),
        smaller=smaller,
        draft_here=usable_draft,
        draft_to_measure=draft_to_measure,
        why_no_draft=draft_choice.why_not,
    )


def _find_headers(
    chosen_preset: Preset | None,
    names: dict[Role, _Name],
    *,
    is_blind: bool,
) -> tuple[dict[Role, FoundHeader], ProjectorReport | None, Header | None]:
    """The header of each model, and the report on the projector and its header.

    Args:
        chosen_preset: The preset, from `resolve_pair`.
        names: The models that the caller named, from `resolve_pair`, too.
        is_blind: Whether the projector is to be left out.

    Returns:
        Headers by role, without the projector's; then None twice if there is no projector.

    Raises:
        ModelFileError: If the target is a head, or a file cannot be read.
        PresetError, OptionError, DownloadError: If a model cannot be found.
    """
    models: dict[Role, PresetModel] = {}
    if chosen_preset is not None:
        models = used_models(chosen_preset)
    for role, name in names.items():
        models[role] = find_model(name, role)
    projector = models.pop("mmproj", None)
    found_headers = read_model_headers(models)
    target = found_headers["target"]
    check_target(target.header)
    if projector is None and not is_blind and target.is_here:
        path = projector_beside(target.header)
        if path is not None:
            projector = LocalModel(path=path)
    if projector is None or is_blind:
        return found_headers, None, None
    is_named = "mmproj" in names
    report, header = _read_projector(target, projector, is_named=is_named)
    return found_headers, report, header


def _read_projector(
    target: FoundHeader,
    model: PresetModel,
    *,
    is_named: bool,
) -> tuple[ProjectorReport, Header | None]:
    """The report on a projector, and its header; None for one that does not suit the target.

    A damaged file that nobody named has a misfit. Raises ModelFileError for one that was named
    or is missing, and DownloadError.
    """
    misfit = ""
    try:
        found_header = read_model_header(model, "mmproj")
    except ModelFileError as error:
        if is_named or missing_files(model) or not path_of(model).is_file():
            raise
        name = path_of(model).name
        misfit = str(error)
        report = ProjectorReport(
            name,
            is_here=True,
            misfit=misfit,
            is_named=False,
        )
        return report, None
    try:
        require_free_of_position(found_header.header)
        require_projector_of(target.header, found_header.header)
    except LocalspecError as error:
        misfit = str(error)
    report = ProjectorReport(
        name=found_header.header.path.name,
        is_here=found_header.is_here,
        kind=projector_facts(found_header.header).kind,
        size_bytes=found_header.size_bytes,
        misfit=misfit,
        is_named=is_named,
    )
    if misfit:
        return report, None
    return report, found_header.header


def _shared_vocabulary(target: Header, draft: Header) -> tuple[SharedVocabulary | None, str]:
    """What two models share, and ""; or None, and why they are not a pair."""
    try:
        return compare_vocabularies(target, draft), ""
    except PairError as error:
        return None, str(error)


def _adapter_files(
    target: FoundHeader,
    adapters: Sequence[AnyAdapter] | None,
    chosen_preset: Preset | None,
) -> tuple[AdapterFile, ...]:
    """The files of the caller's adapters, or the preset's. Raises as `found_adapters`."""
    if adapters is not None:
        return found_adapters(checked_adapters(adapters), target.header)
    if chosen_preset is not None:
        return found_adapters(chosen_preset.adapters, target.header)
    return ()


def _adapter_report(adapter: AdapterFile) -> AdapterReport:
    header = adapter.header
    num_weights = len(changed_weights(header))
    return AdapterReport(adapter.path.name, adapter.scale, num_weights, header.size_bytes)


def _models_to_plan(
    found_headers: dict[Role, FoundHeader],
    target_options: LlamaOptions,
    projector: Header | None,
    adapters: Sequence[AdapterFile],
) -> list[Planned]:
    """The models with their options, the target first.

    Args:
        found_headers: The headers of the models, the target's first.
        target_options: The target's options.
        projector: The projector's header, if it is used.
        adapters: The target's adapters.
    """
    # The head in the target's file is left out for another one, or if servers would hold it.
    if "head" in found_headers or target_options.rpc:
        target_options = replace(target_options, with_head=False)
    other_options = target_options
    if target_options.rpc:  # the other models stay on this machine
        other_options = replace(target_options, rpc=(), tensor_split=())
    models = []
    for role, model in found_headers.items():
        options = other_options
        if role == "target":
            options = target_options
        models.append(Planned(model.header, options, role))
    adapter_headers = tuple(adapter.header for adapter in adapters)
    models[0] = models[0]._replace(adapters=adapter_headers)
    if projector is not None:
        models.append(Planned(projector, role="mmproj"))
    return models


def _head_report(
    found_headers: dict[Role, FoundHeader],
    memory: PairMemory,
    target_options: LlamaOptions,
) -> HeadReport | None:
    """The report on the head in a file of its own, or else in the target's file.

    None if there is no head.

    Args:
        found_headers: The headers of the models.
        memory: The memory of the planned models.
        target_options: The target's options.
    """
    target = found_headers["target"]
    if "head" in found_headers:
        return _own_head_report(target, found_headers["head"])
    facts = head_facts(target.header)
    if facts is None:
        return None
    why_not = facts.why_not
    if not why_not and target_options.rpc:
        why_not = 'it would be on the servers; proposer="head" uses it there'
    elif not why_not and not memory.models[0].with_head:
        why_not = "there is no memory for it"
    return HeadReport(
        name=target.header.path.name,
        is_here=target.is_here,
        is_apart=False,
        description=facts.description,
        size_bytes=facts.num_bytes,
        why_not=why_not,
    )


def _own_head_report(target: FoundHeader, head: FoundHeader) -> HeadReport:
    """The report on a head in a file of its own."""
    description = ""
    size_bytes = 0
    facts = head_facts(head.header)
    if facts is not None:
        description = facts.description
        size_bytes = head.size_bytes
    return HeadReport(
        name=head.header.path.name,
        is_here=head.is_here,
        is_apart=True,
        description=description,
        size_bytes=size_bytes,
        why_not=head_misfit(target.header, head.header),
    )


def _draft_choice(found_headers: dict[Role, FoundHeader]) -> DraftChoice:
    """A draft on this machine for a target that comes without draft and head; else none."""
    if len(found_headers) == 1:
        return draft_here(found_headers["target"].header)
    return DraftChoice(None, "")


def _smaller_preset(free: MemoryRoom, memory: PairMemory) -> str | None:
    """The name of a preset that fits, if the memory that a pair needs is not free."""
    if not free.shortages(memory):
        return None
    preset = fitting_preset(free)
    if preset is None:
        return None
    return preset.name


def _variants(chosen_preset: Preset | None) -> dict[str, str]:
    """Presets of the same models in other quantisations, by name → description."""
    if chosen_preset is None:
        return {}
    stem = chosen_preset.name.partition("@")[0]
    variants = {}
    for name, preset in load_presets().items():
        if name.partition("@")[0] == stem and name != chosen_preset.name:
            variants[name] = preset.description
    return variants


_TEMPLATES = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")


def _facts(
    model: FoundHeader,
    adapters: Sequence[AdapterFile] = (),
    *,
    keeps_snapshots: bool = True,
) -> ModelFacts:
    """The facts about a model.

    Args:
        model: The model.
        adapters: Its adapters.
        keeps_snapshots: Whether there is memory for snapshots of a hybrid's states.
    """
    header = model.header
    shape = ModelShape(header)
    can_roll_back = shape.can_roll_back
    if shape.has_snapshots and not keeps_snapshots:
        can_roll_back = False
    num_output_weights = 0
    output = header.by_name().get("output.weight")
    if output is not None:
        num_output_weights = math.prod(output.shape)
    exactness = None
    if model.is_here:
        exactness = _known_exactness(header, adapters)
    templates = [str(header.metadata.get(key, "")) for key in _TEMPLATES]
    type_bytes: Counter[str] = Counter()
    for tensor in header.tensors:
        type_bytes[type_name(tensor.kind)] += tensor.size_bytes
    return ModelFacts(
        name=header.path.name,
        is_here=model.is_here,
        size_bytes=model.size_bytes,
        architecture=header.architecture,
        size_label=header.size_label,
        num_weights=header.num_weights,
        num_output_weights=num_output_weights,
        num_layers=shape.num_layers,
        width=shape.width,
        num_heads=shape.num_heads,
        num_kv_heads=max(shape.kv_heads(), default=0),
        vocab_size=len(header.tokens),
        trained_context=shape.context_length,
        sliding_window=shape.sliding_window,
        can_roll_back=can_roll_back,
        type_bytes=dict(type_bytes.most_common()),
        exact_settings=_exact_settings(header),
        exactness=exactness,
        has_tools=any(map(takes_tools, templates)),
    )


def _measured_costs(
    found_headers: dict[Role, FoundHeader],
    head: HeadReport | None,
    adapters: Sequence[AdapterFile],
) -> Curve | None:
    """The costs of decoding with the head, or else the draft, in target-only steps.

    None if these files never ran here, or ran too little.
    """
    if not all(model.is_here for model in found_headers.values()):
        return None
    headers = [model.header for model in found_headers.values()]
    kind = ProposerKind.DRAFT
    if head is not None and not head.why_not:
        kind = ProposerKind.HEAD
        if not head.is_apart:
            headers.append(found_headers["target"].header)  # its profile names it twice
    digests = [FileContent(header).digest() for header in headers]
    contents = [digest for digest in digests if digest is not None]
    adapters_in_words = _adapters_in_words(adapters, [adapter.scale for adapter in adapters])
    if len(contents) < len(digests) or adapters_in_words is None:
        return None
    learned = latest_learned(contents, adapters_in_words)
    if learned is None:
        return None
    try:
        # A key is a number of threads and a length class. A quiet machine uses the most.
        num_threads = max(int(key.split()[0]) for key in learned["costs"])
        policy = AdaptiveDraftPolicy({kind: 0.0}, num_threads)
        policy.restore(learned)
    except DAMAGES:
        return None
    costs = policy.usual_costs()
    sizes = costs.measured_sizes()
    draft_share = costs.draft_token_cost(kind)
    if not sizes or draft_share == 0.0:
        return None
    drafts_blocks = False
    if "head" in found_headers:
        facts = head_facts(found_headers["head"].header)
        drafts_blocks = facts is not None and facts.block is not None
    ratios = costs.ratios()[: max(sizes) + 1]
    return Curve(tuple(ratios), draft_share, drafts_blocks)


def _break_even(costs: Curve | None) -> float | None:
    """The lowest acceptance rate that pays; None if none does, or for unknown costs."""
    if costs is None:
        return None
    return break_even_acceptance(costs, len(costs.steps) - 2)


def _gains(costs: Curve | None) -> tuple[ExpectedGain, ...] | None:
    """The expected gains at several acceptance rates; None for unknown costs."""
    if costs is None:
        return None
    return tuple(_gain(costs, acceptance) for acceptance in _ACCEPTANCES)


def _gain(costs: Curve, acceptance: float) -> ExpectedGain:
    """The largest expected gain at an acceptance rate."""
    best = best_draft_tokens(costs, acceptance, len(costs.steps) - 2)
    speedup = expected_speedup(costs, acceptance, best)
    return ExpectedGain(
        acceptance=acceptance,
        num_draft_tokens=best,
        speedup=speedup,
    )


def _exact_settings(header: Header) -> tuple[str, ...]:
    """The settings with which a file is opened for exact decodes, each in words."""
    options = suited_options_here(LlamaOptions(exact=True), header, DEFAULT_CONTEXT_LENGTH)
    settings = []
    if options.flash_attention == "off":
        settings.append("no flash attention")
    else:
        settings.append("flash attention")
    if options.cache_type_k:
        settings.append(f"{options.cache_type_k} keys")
    if options.repack is False:
        settings.append("weights that are not repacked")
    if options.cache_type_k and are_tiled(header):
        settings.append("no tiled kernels")
    return tuple(settings)


def _adapters_in_words(
    adapters: Sequence[AdapterFile],
    scales: Sequence[float],
) -> str | None:
    """The adapters as identities of profiles name them; None if a file is not here."""
    try:
        digests = [FileContent(adapter.header).digest() for adapter in adapters]
    except OSError:
        return None
    contents = [digest for digest in digests if digest is not None]
    if len(contents) < len(digests):
        return None
    return adapters_identity(contents, scales)


def _known_exactness(header: Header, adapters: Sequence[AdapterFile]) -> Exactness | None:
    """The decodes that were found exact for a file, with this libllama; None if unknown."""
    from localspec.llama.library import kernels  # loads libllama

    profiles = []
    for _, identity, learned in kept_profiles():
        if is_of_exactness(identity):
            profiles.append((identity, learned))
    if not profiles:
        return None
    content = FileContent(header).digest()
    adapters_in_words = _adapters_in_words(adapters, [USUAL_SCALE] * len(adapters))
    if adapters_in_words is None:
        return None
    for identity, learned in profiles:
        model = identity[0]
        is_of_file = model.startswith(f"{content} ·")
        is_of_kernels = model.endswith(f" · {kernels()}")
        if is_of_file and is_of_kernels and has_adapters(model, adapters_in_words):
            return Exactness.saved(learned)
    return None
