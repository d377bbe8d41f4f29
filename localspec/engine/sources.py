"""Where an engine's models come from: files, or an application's `Llama` objects."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, get_args

from localspec.engine.open_models import CacheDisk
from localspec.errors import OptionError, PairError
from localspec.gguf_file.adapter import AdapterFile
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head_facts import check_target, has_only_head, head_facts, head_misfit
from localspec.gguf_file.header import Header
from localspec.keywords import note_keywords
from localspec.llama.model_options import LlamaOptions
from localspec.presets.local_models import size_warning
from localspec.presets.located import adapter_files, locate, locate_model
from localspec.presets.model_names import resolve_pair
from localspec.presets.presets import (
    Adapter,
    AnyAdapter,
    Preset,
    Role,
    checked_adapters,
    common_servers,
)
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    REPLAY_TOKENS,
    Drafting,
    ProposerKind,
    ProposerName,
)

if TYPE_CHECKING:
    from localspec.llama.library import Llama

    ModelSource = str | os.PathLike[str] | Llama
    Located = Path | Llama

logger = logging.getLogger(__name__)


class LoadKeywords(TypedDict, total=False):
    """Arguments of `load` by keyword that can be sent to another process."""

    target: str | os.PathLike[str] | None
    draft: str | os.PathLike[str] | None
    head: str | os.PathLike[str] | None
    mmproj: str | os.PathLike[str] | None
    draft_tokens: int | None
    proposer: ProposerName
    context_length: int | None
    num_threads: int | None
    num_gpu_layers: int | None
    device: str | None
    rpc: Sequence[str] | None
    adapters: Sequence[AnyAdapter] | None
    exact: bool | None
    target_options: LlamaOptions | None
    draft_options: LlamaOptions | None
    kept_bytes: int
    parallel: int
    memory: bool
    cache_disk: int | CacheDisk
    force: bool


note_keywords("localspec.load(", LoadKeywords.__annotations__)


def _no_report(_share: float) -> None:
    """Report no progress."""


class Source(NamedTuple):
    """A model to be opened: from a file, or an application's `Llama`."""

    role: Role

    header: Header | None
    """The file's header; None for a `Llama`."""

    llama: Llama | None
    options: LlamaOptions

    report: Callable[[float], None] = _no_report
    """Called with the model's loaded share, 0 … 1."""

    adapters: tuple[AdapterFile, ...] = ()
    """A target's LoRA adapters."""


def named_sources(
    model: ModelSource | Preset | None,
    named: dict[Role, ModelSource | None],
) -> tuple[dict[Role, Located], Preset | None]:
    """Where the model of each role is, and the preset that names them.

    Args:
        model: A preset, its name, or another name of a target; None for none.
        named: The models that are named by their roles; None for none.

    Returns:
        A path or a `Llama` for each role that has a model; and the preset, None without one.

    Raises:
        PresetError, OptionError: For a name that cannot be resolved.
    """
    chosen, names = resolve_pair(model, named)
    located: dict[Role, Located] = {}
    if chosen is not None:
        located.update(locate(chosen))
    for role, name in names.items():
        if isinstance(name, str | os.PathLike):
            located[role] = locate_model(name, role)
        else:
            located[role] = _checked_llama(name, role)
    draft = located.get("draft")
    if draft is located["target"] and not isinstance(draft, Path):
        raise OptionError(
            "target and draft are the same Llama object, which holds one text",
            "Create a second one for the draft, or name a file for it.",
        )
    return located, chosen


def with_adapters(
    target: Source,
    adapters: Sequence[AnyAdapter] | None,
    chosen: Preset | None,
) -> Source:
    """The target with LoRA adapters.

    Args:
        target: The target.
        adapters: The adapters; None for the preset's.
        chosen: The preset; None without one.

    Raises:
        OptionError: For adapters of a `Llama`, or too many. Also raises what `adapter_files`
            raises.
    """
    wanted: tuple[Adapter, ...] = ()
    if adapters is not None:
        wanted = checked_adapters(adapters)
    elif chosen is not None:
        wanted = chosen.adapters
    if not wanted:
        return target
    if target.header is None:
        raise OptionError(
            "the target is a Llama object, whose adapters are its own",
            "Name its file instead, or leave adapters out.",
        )
    return target._replace(adapters=adapter_files(wanted, target.header))


def servers_used(
    model: str | os.PathLike[str] | Preset | None,
    arguments: LoadKeywords,
) -> tuple[str, ...]:
    """The addresses of the RPC servers that `load` would use, each once.

    Args:
        model: The first argument of `load`.
        arguments: Its other arguments.

    Raises:
        OptionError, PresetError: As `load` would.
    """
    named: dict[Role, Any] = {role: arguments.get(role) for role in get_args(Role)}
    chosen, _ = resolve_pair(model, named)
    addresses = list(common_servers(arguments.get("rpc"), chosen))
    for options in (arguments.get("target_options"), arguments.get("draft_options")):
        if options is not None:
            addresses += options.rpc
    return tuple(dict.fromkeys(addresses))


def _checked_llama(model: object, role: Role) -> Llama:
    """The model, which an application has loaded. Raises OptionError for anything else.

    Also raises it for the role of a head or a projector, which must be files.
    """
    from localspec.llama.library import Llama

    must_be_file = role in ("head", "mmproj")
    if isinstance(model, Llama) and not must_be_file:
        return model
    fault = f"the {role} is {model!r}, neither a path nor a name"
    if not must_be_file:
        fault += " nor a llama_cpp.Llama"
    hint = "Give the path of a GGUF file, or a name as hf:owner/repo/file.gguf."
    raise OptionError(fault, hint)


def chosen_sources(
    located: dict[Role, Located],
    drafting: Drafting,
    target_options: LlamaOptions,
    draft_options: LlamaOptions,
) -> list[Source]:
    """The models to open, in this order: the target, a draft, a head in a file of its own.

    Models that may not draft are left out. A head's file in the role of a draft becomes the
    head. The options of the target say whether the head in its own file is opened, too.

    Args:
        located: The target, and perhaps a draft and a head.
        drafting: What may draft.
        target_options: The target's options, as the user chose them.
        draft_options: The draft's options, as the user chose them.

    Raises:
        PairError: For a head that does not fit the target, and for two heads.
        ModelFileError: For a file that is not the model it should be.
        OptionError: For options that a `Llama` cannot have.
    """
    if drafting.is_off:
        located = {"target": located["target"]}
    options: dict[Role, LlamaOptions] = {
        "target": _target_options(target_options, drafting),
        "draft": replace(draft_options, max_outputs=REPLAY_TOKENS, num_snapshots=0),
        "head": _head_options(target_options),
    }
    sources: dict[Role, Source] = {}
    for role, model in located.items():
        sources[role] = _source(role, model, options[role])
    target = sources["target"]
    draft = sources.get("draft")
    head = sources.get("head")
    if draft is not None and draft.header is not None and has_only_head(draft.header):
        if head is not None:
            raise PairError(
                f"two heads are given: {located['draft']} as the draft, and {located['head']}",
                "Choose one of them.",
            )
        head = draft._replace(role="head", options=options["head"])
        draft = None
    if target.header is not None:
        check_target(target.header)
    can_have_head = drafting.may_use(ProposerKind.HEAD) and _can_compute_head(head or target)
    if head is not None and can_have_head:
        _check_head(target, head)
    if head is not None or not can_have_head or _avoids_remote_head(target.options, drafting):
        target = target._replace(options=replace(target.options, with_head=False))
    chosen = [target]
    if draft is not None and drafting.may_use(ProposerKind.DRAFT):
        _warn_of_size(target, draft)
        chosen.append(draft)
    if head is not None and can_have_head:
        chosen.append(head)
    return chosen


def _avoids_remote_head(options: LlamaOptions, drafting: Drafting) -> bool:
    """Whether the head in the target's file is left out because of RPC servers.

    It would be computed on the server that has the target's last layers. So it is used only if
    the user asks for it.
    """
    is_wanted = drafting.proposer == "head" or options.with_head is not None
    return bool(options.rpc) and not is_wanted


def _warn_of_size(target: Source, draft: Source) -> None:
    """Log a warning if the draft is too large beside the target."""
    if target.header is None or draft.header is None:
        return  # an application chooses its own models' sizes
    warning = size_warning(target.header, draft.header)
    if warning:
        logger.warning("%s", warning)


def _source(role: Role, model: Located, options: LlamaOptions) -> Source:
    """A model with its options and, from a file, its checked header.

    Raises ModelFileError, and OptionError for options that a `Llama` cannot have.
    """
    if isinstance(model, Path):
        return Source(role, check_model_file(model), None, options)
    for name in ("rpc", "exact"):
        if getattr(options, name):
            raise OptionError(
                f"the {role} is a Llama object, whose layers and settings are its own",
                f"Name its file instead, or leave {name} out.",
            )
    return Source(role, None, model, replace(options, with_head=False))


def _check_head(target: Source, head: Source) -> None:
    """Raise PairError if a head was not made for this target.

    This is checked before libllama opens the head's file.
    """
    assert head.header is not None
    fault = "the target is a Llama object, whose rows it cannot read: name the target's file"
    if target.header is not None:
        fault = head_misfit(target.header, head.header)
    if fault:
        raise PairError(
            f"{head.header.path} cannot draft for the target: {fault}",
            "Choose the head that was made for this very model, or leave it out.",
        )


def _can_compute_head(source: Source) -> bool:
    """Whether libllama has the functions that the head in a file needs.

    True if there is no head in the file, or no file. False is logged.
    """
    from localspec.llama.quirks.nextn import missing_functions  # loads libllama

    if source.header is None:
        return True
    facts = head_facts(source.header)
    if facts is None or facts.graph is HeadGraph.MEDUSA:
        return True
    missing = missing_functions(reads_layers=bool(facts.layers_read))
    if not missing:
        return True
    logger.warning("heads are off: this libllama lacks %s", ", ".join(missing))
    return False


def _head_options(target_options: LlamaOptions) -> LlamaOptions:
    """The options of a head in a file of its own: mostly the target's.

    With RPC servers its layers stay on this machine. The options still name the servers, since
    a head may share the target's output layer or cache, which are there.
    """
    if target_options.rpc:
        target_options = replace(target_options, num_gpu_layers=0, device=None)
    return replace(
        target_options,
        max_outputs=REPLAY_TOKENS,
        num_snapshots=0,
        exact=None,
    )


def _target_options(options: LlamaOptions, drafting: Drafting) -> LlamaOptions:
    """The target's options, with as many rows and snapshots as the loop needs.

    If the user chose no number of snapshots, it is that of the drafted tokens; None, for as
    many as fit, if the user did not choose that either.
    """
    num_snapshots = options.num_snapshots
    if num_snapshots is None:
        num_snapshots = drafting.draft_tokens
        if drafting.is_off:
            num_snapshots = 0
    return replace(options, max_outputs=MAX_DRAFT_TOKENS + 1, num_snapshots=num_snapshots)


def reporting(sources: list[Source], progress: Callable[[float], None] | None) -> list[Source]:
    """The sources, which report their progress together.

    Args:
        sources: The models, which are opened in this order.
        progress: Called with the loaded share of the bytes of all files, 0 … 1; None for no
            reports.

    Raises:
        OptionError: If `progress` cannot be called.
    """
    if progress is None:
        return sources
    if not callable(progress):
        raise OptionError(f"progress is {progress!r}", "Give a function of the loaded share.")
    sizes = []
    for source in sources:
        size = 0
        if source.header is not None:
            size = os.path.getsize(source.header.path)
        sizes.append(size)
    total_bytes = max(sum(sizes), 1)  # without files the sum is 0

    def report(bytes_before: int, size: int, share: float) -> None:
        """Report the loaded share of all files, from that of the file that is being loaded."""
        loaded_bytes = bytes_before + share * size
        progress(loaded_bytes / total_bytes)

    reporting_sources = []
    bytes_before = 0
    for source, size in zip(sources, sizes, strict=True):
        reporting_sources.append(source._replace(report=partial(report, bytes_before, size)))
        bytes_before += size
    return reporting_sources
