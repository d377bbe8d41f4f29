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
    adapted,
    changed_weights,
    is_adapted,
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
from localspec.planning.free_memory import MemoryRoom, PairMemory, Planned, free_memory, suited
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
    """Of these, the output layer; 0 if the file has none beside the embeddings.

    In some files it repeats the embeddings, and then there are fewer parameters than weights.
    """

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    """The most of any layer."""

    vocab_size: int
    trained_context: int
    sliding_window: int
    """Tokens, 0 if every layer sees all of them."""

    can_roll_back: bool
    type_bytes: dict[str, int]
    """Bytes of weights by type, the largest first."""

    exact_settings: tuple[str, ...]
    """Settings for exact decodes, see docs/lossless.md."""

    exactness: Exactness | None
    """Found with them on this machine."""

    has_tools: bool
    """Whether its template has tools, and a form of calls that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReport:
    """A trained head, as headers state it."""

    name: str
    """The name of its file."""

    is_here: bool
    is_apart: bool
    """Whether that file has nothing else."""

    description: str
    """The kind of head, empty if the file does not have one."""

    size_bytes: int
    """Bytes of its weights."""

    why_not: str
    """Why it cannot draft for the target, empty if it can."""


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """A LoRA adapter of the target; what drafts keeps its own weights."""

    name: str
    """The name of its file."""

    scale: float
    """What its weights are multiplied with."""

    num_weights: int
    """The matrices of the target that it changes."""

    size_bytes: int
    """The size of its file."""


@dataclass(frozen=True, slots=True)
class ProjectorReport:
    """The projector, with which the target sees pictures."""

    name: str
    is_here: bool
    misfit: str
    """Why it cannot be the target's, or empty."""

    is_named: bool
    """Whether it was asked for; else `load` leaves out a projector with a misfit."""

    kind: str = ""
    """llama.cpp's name for it."""

    size_bytes: int = 0
    """Bytes of its file; empty and 0 for a damaged file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """The best number of draft tokens at an acceptance rate, and the speed-up over plain."""

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
    """What target and draft share."""

    misfit: str
    """Why they are not a pair."""

    size_warning: str
    """Why the draft is too large to pay, in a sentence, or empty."""

    device: str
    """Where the target is computed, and what was measured of other devices, in a sentence."""

    memory: PairMemory
    room: MemoryRoom
    largest_context: int
    """Tokens that fit into the memory that is free now."""

    gpu_layers: int | None
    """The most layers of the target on GPUs that fit at this context, if more were asked
    for; None without GPUs, if no number fits, or if the number was left open."""

    at_once: AtOnce
    """How many answers run at once."""

    gains: tuple[ExpectedGain, ...] | None
    """None if costs of decoding were not measured here."""

    break_even: float | None
    """The lowest acceptance rate that pays, None if none does."""

    variants: dict[str, str]
    """Other presets of the same models."""

    smaller: str | None
    """A preset that fits, if this pair does not."""

    draft_here: Path | None
    """A model on this machine that could draft, if nothing was named that drafts."""

    draft_to_measure: Path | None
    """In its place, one with the target's tokenizer, by its size too large to pay."""

    why_no_draft: str
    """Why there is no `draft_here`, in words; empty if there is, or none was looked for."""

    @property
    def fits(self) -> bool:
        """Whether there is memory for it now."""
        return not self.room.shortages(self.memory)

    @property
    def is_pair(self) -> bool:
        """Whether the models can be loaded together, or there is only a target."""
        seen = self.projector
        is_blind = seen is not None and seen.is_named and seen.misfit
        no_head = self.head and self.head.is_apart and self.head.why_not
        return not (self.misfit or no_head or is_blind)

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
    found or read, OptionError for numbers that `load` refuses, and RpcError.

    Args:
        context_length: tokens.
        num_gpu_layers: The layers of each model on GPUs.
        device: The device, as for `load`
        measure: Measure the devices of a target that is here again.
        rpc: RPC servers for the target, which are asked for their devices.
        adapters: The target's adapters (the preset's).
        tensor_split: The target's shares of the devices.
        parallel, kept_bytes: Answers at once, and memory for caches (defaults: as for `load`).
    """
    asked = LlamaOptions(
        context_length=context_length, num_gpu_layers=num_gpu_layers, device=device
    )
    chosen, names = resolve_pair(
        preset, {"target": target, "draft": draft, "head": head, "mmproj": mmproj}
    )
    found, projector, projector_header = _found(chosen, names, is_blind=mmproj == NO_PROJECTOR)
    vocabulary = None
    misfit = ""
    too_large = ""
    if "draft" in found:
        headers = found["target"].header, found["draft"].header
        too_large = size_warning(*headers)
        try:
            vocabulary = compare_vocabularies(*headers)
        except PairError as error:
            misfit = str(error)
    asked = replace(asked, rpc=common_servers(rpc, chosen), tensor_split=tuple(tensor_split))
    free = free_memory(asked.rpc)
    own_adapters = _adapters(found["target"], adapters, chosen)
    asked_alone = replace(asked, context_length=None)
    wanted = _wanted(found, asked_alone, projector_header, own_adapters)
    usual_length = None if chosen is None else chosen.context_length
    length = target_context_length(found["target"].header, context_length or usual_length)
    check_parallel(parallel)
    if asked.device is not None:
        require_device(asked.device, free.gpus)
    if measure and not found["target"].is_here:
        name = found["target"].header.path.name
        raise OptionError(
            f"{name} is not on this machine, and cannot be measured",
            "Download it first, or leave measure out.",
        )

    def make_plan(models: Sequence[Planned]) -> Plan:
        return plan_side_by_side(models, length, free, parallel, kept_bytes)

    ranked = ranked_plans(wanted, make_plan, measure=measure, again=measure)
    plan = ranked.plans[0]
    memory = plan.memory
    at_once = AtOnce(
        num=plan.models[0].options.num_sequences,
        num_asked=parallel,
        num_bytes=plan.reserved_bytes,
        kept_bytes=kept_bytes - plan.reserved_bytes,
    )
    smaller = fitting_preset(free) if free.shortages(memory) else None
    head_report = _head_report(found, memory, asked)
    here = DraftChoice(None, "")
    if len(found) == 1:
        here = draft_here(found["target"].header)
    costs = _measured_costs(found, head_report, own_adapters)
    has_room = memory.models[0].num_snapshots > 0
    return Explanation(
        description="" if chosen is None else chosen.description,
        target=_facts(found["target"], own_adapters, has_room=has_room),
        draft=_facts(found["draft"]) if "draft" in found else None,
        head=head_report,
        projector=projector,
        adapters=tuple(map(_adapter_report, own_adapters)),
        vocabulary=vocabulary,
        misfit=misfit,
        size_warning=too_large,
        device=device_in_words(plan, ranked.measured),
        memory=memory,
        room=free,
        largest_context=largest_context(wanted, free),
        gpu_layers=most_gpu_layers(wanted, length, free) if free.gpus else None,
        at_once=at_once,
        gains=None if costs is None else tuple(_gain(costs, each) for each in _ACCEPTANCES),
        break_even=None
        if costs is None
        else break_even_acceptance(costs, len(costs.steps) - 2),
        variants={} if chosen is None else _variants(chosen),
        smaller=None if smaller is None else smaller.name,
        draft_here=None if here.why_not else here.path,
        draft_to_measure=here.path if here.why_not else None,
        why_no_draft=here.why_not,
    )


def _found(
    chosen: Preset | None, names: dict[Role, _Name], *, is_blind: bool
) -> tuple[dict[Role, FoundHeader], ProjectorReport | None, Header | None]:
    """Each model's header; the projector's report and header.

    Args:
        chosen: the preset, from `resolve_pair`.
        names: the models that are named, from there, too.
        is_blind: whether the projector is to be left out.

    Raises:
        ModelFileError: the target is a head.
    """
    models = {} if chosen is None else used_models(chosen)
    models |= {role: find_model(name, role) for role, name in names.items()}
    projector = models.pop("mmproj", None)
    found = read_model_headers(models)
    one = found["target"]
    check_target(one.header)
    if projector is None and not is_blind and one.is_here:
        path = projector_beside(one.header)
        projector = None if path is None else LocalModel(path=path)
    if projector is None or is_blind:
        return found, None, None
    return found, *_found_projector(one, projector, is_named="mmproj" in names)


def _found_projector(
    target: FoundHeader, model: PresetModel, *, is_named: bool
) -> tuple[ProjectorReport, Header | None]:
    """The report on a projector, and its header if it is used.

    Raises ModelFileError for a file that was named and is no projector, DownloadError.
    """
    misfit = ""
    try:
        found = read_model_header(model, "mmproj")
    except ModelFileError as error:
        if is_named or missing_files(model) or not path_of(model).is_file():
            raise
        name = path_of(model).name
        misfit = str(error)
        report = ProjectorReport(name, is_here=True, misfit=misfit, is_named=False)
        return report, None
    try:
        require_free_of_position(found.header)
        require_projector_of(target.header, found.header)
    except LocalspecError as error:
        misfit = str(error)
    report = ProjectorReport(
        name=found.header.path.name,
        is_here=found.is_here,
        kind=projector_facts(found.header).kind,
        size_bytes=found.size_bytes,
        misfit=misfit,
        is_named=is_named,
    )
    return report, None if misfit else found.header


def _adapters(
    target: FoundHeader, given: Sequence[AnyAdapter] | None, chosen: Preset | None
) -> tuple[AdapterFile, ...]:
    """The adapters that are given, or else the preset's. Raises as `found_adapters`."""
    wanted = () if chosen is None else chosen.adapters
    if given is not None:
        wanted = checked_adapters(given)
    return found_adapters(wanted, target.header)


def _adapter_report(adapter: AdapterFile) -> AdapterReport:
    header = adapter.header
    num_weights = len(changed_weights(header))
    return AdapterReport(adapter.path.name, adapter.scale, num_weights, header.size_bytes)


def _wanted(
    found: dict[Role, FoundHeader],
    asked: LlamaOptions,
    projector: Header | None,
    adapters: Sequence[AdapterFile],
) -> list[Planned]:
    """The models with their options. asked, adapters: the target's."""
    if "head" in found or asked.rpc:  # a head in the target's file would be on the servers
        asked = replace(asked, with_head=False)
    here = replace(asked, rpc=(), tensor_split=()) if asked.rpc else asked
    wanted = [
        Planned(one.header, asked if role == "target" else here, role)
        for role, one in found.items()
    ]
    wanted[0] = wanted[0]._replace(adapters=tuple(one.header for one in adapters))
    if projector is not None:
        wanted.append(Planned(projector, role="mmproj"))
    return wanted


def _head_report(
    found: dict[Role, FoundHeader], memory: PairMemory, asked: LlamaOptions
) -> HeadReport | None:
    """The head in a file of its own, or else in the target's. asked: the target's options."""
    target = found["target"]
    own = found.get("head")
    one = own or target
    facts = head_facts(one.header)
    if own is not None:
        why_not = head_misfit(target.header, own.header)
    elif facts is None:
        return None
    else:
        why_not = facts.why_not
        if asked.rpc:
            why_not = why_not or 'it would be on the servers, where proposer="head" uses it'
        elif not memory.models[0].with_head:
            why_not = why_not or "there is no memory for it"
    return HeadReport(
        name=one.header.path.name,
        is_here=one.is_here,
        is_apart=own is not None,
        description="" if facts is None else facts.description,
        size_bytes=0 if facts is None else facts.num_bytes if own is None else own.size_bytes,
        why_not=why_not,
    )


def _variants(chosen: Preset) -> dict[str, str]:
    """Presets of the same models in other quantisations, with their descriptions."""
    stem = chosen.name.partition("@")[0]
    return {
        name: preset.description
        for name, preset in load_presets().items()
        if name.partition("@")[0] == stem and name != chosen.name
    }


_TEMPLATES = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")


def _facts(
    found: FoundHeader, adapters: Sequence[AdapterFile] = (), *, has_room: bool = True
) -> ModelFacts:
    """has_room: whether there is memory for a hybrid's snapshots."""
    header = found.header
    shape = ModelShape(found.header)
    output = header.by_name().get("output.weight")
    type_bytes: Counter[str] = Counter()
    for tensor in header.tensors:
        type_bytes[type_name(tensor.kind)] += tensor.size_bytes
    return ModelFacts(
        name=header.path.name,
        is_here=found.is_here,
        size_bytes=found.size_bytes,
        architecture=header.architecture,
        size_label=header.size_label,
        num_weights=header.num_weights,
        num_output_weights=0 if output is None else math.prod(output.shape),
        num_layers=shape.num_layers,
        width=shape.width,
        num_heads=shape.num_heads,
        num_kv_heads=max(shape.kv_heads(), default=0),
        vocab_size=len(header.tokens),
        trained_context=shape.context_length,
        sliding_window=shape.sliding_window,
        can_roll_back=shape.can_roll_back and (has_room or not shape.has_snapshots),
        type_bytes=dict(type_bytes.most_common()),
        exact_settings=_exact_settings(header),
        exactness=_found_exactness(header, adapters) if found.is_here else None,
        has_tools=any(takes_tools(str(header.metadata.get(key, ""))) for key in _TEMPLATES),
    )


def _measured_costs(
    found: dict[Role, FoundHeader], head: HeadReport | None, adapters: Sequence[AdapterFile]
) -> Curve | None:
    """The costs of decoding with the head, or else the draft, in target-only steps.

    None if these files never ran here, or too little.
    """
    if not all(one.is_here for one in found.values()):
        return None
    headers = [one.header for one in found.values()]
    kind = ProposerKind.DRAFT if head is None or head.why_not else ProposerKind.HEAD
    if kind is ProposerKind.HEAD and "head" not in found:  # in the target's file
        headers.append(found["target"].header)
    contents = [content for header in headers if (content := FileContent(header).digest())]
    words = _adapted(adapters, [adapter.scale for adapter in adapters])
    if len(contents) < len(headers) or words is None:
        return None
    learned = latest_learned(contents, words)
    if learned is None:
        return None
    try:
        # The costs of a quiet machine; a key is a number of threads and a length.
        num_threads = max(int(key.split()[0]) for key in learned["costs"])
        policy = AdaptiveDraftPolicy({kind: 0.0}, num_threads)
        policy.restore(learned)
    except DAMAGES:
        return None
    sizes = policy.costs.measured_sizes()
    draft_share = policy.costs.token(kind)
    if not sizes or draft_share == 0.0:
        return None
    own = head_facts(found["head"].header) if "head" in found else None
    drafts_blocks = own is not None and own.block is not None
    ratios = policy.costs.ratios()[: max(sizes) + 1]
    return Curve(tuple(ratios), draft_share, drafts_blocks)


def _gain(costs: Curve, acceptance: float) -> ExpectedGain:
    """The largest expected gain at an acceptance rate."""
    best = best_draft_tokens(costs, acceptance, len(costs.steps) - 2)
    speedup = expected_speedup(costs, acceptance, best)
    return ExpectedGain(acceptance=acceptance, num_draft_tokens=best, speedup=speedup)


def _exact_settings(header: Header) -> tuple[str, ...]:
    """The settings, in words, with which a file is opened for exact decodes."""
    chosen = suited(LlamaOptions(exact=True), header, DEFAULT_CONTEXT_LENGTH)
    return (
        "no flash attention" if chosen.flash_attention == "off" else "flash attention",
        *([f"{chosen.cache_type_k} keys"] if chosen.cache_type_k else []),
        *(["weights that are not repacked"] if chosen.repack is False else []),
        *(["no tiled kernels"] if chosen.cache_type_k and are_tiled(header) else []),
    )


def _adapted(adapters: Sequence[AdapterFile], scales: Sequence[float]) -> str | None:
    """The adapters in an identity; None if the file of one is not here."""
    try:
        found = [FileContent(adapter.header).digest() for adapter in adapters]
    except OSError:
        return None
    contents = [content for content in found if content is not None]
    if len(contents) == len(found):
        return adapted(contents, scales)
    return None


def _found_exactness(header: Header, adapters: Sequence[AdapterFile]) -> Exactness | None:
    """The probe's result for a file with exact settings here, if that is known to be exact."""
    from localspec.llama.library import kernels  # loads libllama

    kept = [(one, found) for _, one, found in kept_profiles() if is_of_exactness(one)]
    content = FileContent(header).digest() if kept else ""
    words = _adapted(adapters, [USUAL_SCALE] * len(adapters))
    for (model, _setting), found in kept:
        is_here = model.startswith(f"{content} ·") and model.endswith(f" · {kernels()}")
        if is_here and words is not None and is_adapted(model, words):
            return Exactness.saved(found)
    return None
