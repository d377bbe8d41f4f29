"""`localspec explain`"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from localspec.cli import exit_codes
from localspec.cli.fact_sheet import FactSheet
from localspec.cli.flags import usual_flag
from localspec.cli.help import Command
from localspec.cli.json_output import json_option, write_json
from localspec.cli.progress_line import waiting
from localspec.cli.screen import counted, in_flags, note, pays_from, readable_bytes
from localspec.cli.shared_options import model_argument, shared
from localspec.errors import DownloadError
from localspec.hub.hub_file import HubModel
from localspec.planning.plan import MOST_PARALLEL, served_kept_bytes
from localspec.presets.local_models import LARGEST_SHARE
from localspec.presets.located import missing_files, preset_state, size_of
from localspec.presets.model_names import choose_model, resolve
from localspec.presets.presets import Preset
from localspec.system.machine import memory_here

if TYPE_CHECKING:
    from localspec.advice.explanation import (
        Explanation,
        HeadReport,
        ModelFacts,
        ProjectorReport,
    )
    from localspec.planning.free_memory import MemoryRoom, PairMemory

_NOT_MEASURED = "not measured on this machine yet; run: localspec bench"


@click.command(cls=Command)
@model_argument
@shared("target", "draft", "head", "mmproj", "adapters")
@shared("context_length", help="Context in tokens. [default: as for chat]")
@shared("num_gpu_layers", help="Layers of each model on GPUs. [default: as many as fit]")
@shared("device", "rpc", "tensor_split")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure the devices again with this model, instead of what was measured before.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, MOST_PARALLEL),
    help="Plan for this many answers at once; 'localspec serve' gives 4. [default: 1, as in a "
    "chat]",
)
@json_option("object with everything found")
def explain(
    *,
    model: str | None,
    target: str | None,
    parallel: int | None,
    measure: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Say whether a pair fits into memory and speeds up answers, before any download.

    For models that are not on this machine only the headers of their files are read, a few
    megabytes. MODEL: as for chat. Exit code 1 if the draft or head does not match the target.

    \b
        localspec explain qwen3.5-9b
        localspec explain T.gguf --draft D.gguf --ctx 16384
        localspec explain T.gguf --head H.gguf
        localspec explain qwen2-7b --parallel 4
        localspec explain T.gguf --rpc workshop-pc:50052
        localspec explain bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_0 --json
    """
    from localspec.advice import explanation  # not needed for completion

    asked["adapters"] = asked["adapters"] or None  # which are the preset's
    is_target = asked["draft"] is not None or asked["head"] is not None
    first = choose_model(model, None, target, is_target=is_target)
    at_once: dict[str, Any] = {"measure": measure}
    if parallel is not None:
        at_once["parallel"] = parallel
        at_once["kept_bytes"] = served_kept_bytes(memory_here().total_bytes)
    try:
        with waiting(lambda: "Looking at the models …"):
            found = explanation.explain(first, target=target, **asked, **at_once)
    except DownloadError as error:
        preset = None if first is None else resolve(first).preset
        if preset is None or is_target or as_json:
            raise
        click.echo(_preset_sheet(preset).text())
        note(f"More would follow from the headers of the files, but {error}. {error.hint}")
        return
    if as_json:
        write_json(found)
    else:
        sheet = explanation_sheet(found)
        _add_commands(sheet, found, model, {"target": target} | asked)
        click.echo(sheet.text())
    if not found.is_pair:
        raise click.exceptions.Exit(exit_codes.FAILED)


def _preset_sheet(preset: Preset) -> FactSheet:
    """The facts about a preset whose headers cannot be read."""
    sheet = FactSheet()
    sheet.add("Pair", preset.description)
    for role, model in preset.by_role().items():
        files = model.files if isinstance(model, HubModel) else [model.path]
        names = ", ".join(file.name for file in files)
        size = _size(size_of(model), is_here=not missing_files(model))
        sheet.add(role.capitalize(), f"{names}, {size}")
    whole = readable_bytes(preset_state(preset).size_bytes)
    free = readable_bytes(memory_here().available_bytes)
    sheet.add("Memory", f"all files {whole}, free memory {free}")
    return sheet


def _size(num_bytes: int | None, *, is_here: bool) -> str:
    return f"{readable_bytes(num_bytes)} {'on this machine' if is_here else 'to download'}"


def _add_commands(
    sheet: FactSheet, found: Explanation, model: str | None, named: dict[str, Any]
) -> None:
    """Add the commands to type next.

    Args:
        model: The argument MODEL, if one was given.
        named: The other options of the models that were given, by their keywords.
    """
    if not found.is_pair:
        return
    if not found.fits and not found.largest_context:
        if found.smaller:
            sheet.add("To chat", f"localspec chat {found.smaller}")
        return
    if not found.fits:
        named = {**named, "context_length": found.largest_context}
    if found.draft_here is not None and found.target.can_roll_back:
        named = {**named, "draft": found.draft_here}
    sheet.add("To chat", _command("chat", model, named))
    if found.draft_to_measure is not None and found.target.can_roll_back:
        named = {**named, "draft": found.draft_to_measure}
        sheet.add("To measure", _command("bench", model, named))


def _command(name: str, model: str | None, named: dict[str, Any]) -> str:
    """A command of localspec as it is typed, with a model and options by their keywords."""
    words = ["localspec", name, *([] if model is None else [model])]
    for adapter in named["adapters"] or ():
        words += ["--lora", f"{adapter.file}={adapter.scale:g}"]
    for keyword, value in named.items():
        if keyword != "adapters" and value not in (None, ()):
            is_list = isinstance(value, tuple | list)
            words += [usual_flag(keyword), ",".join(map(str, value)) if is_list else str(value)]
    return shlex.join(words)


def explanation_sheet(found: Explanation) -> FactSheet:
    """The explanation in words."""
    sheet = FactSheet()
    if found.description:
        sheet.add("Pair", found.description)
    sheet.add("Target", *_model_lines(found.target))
    sheet.add("Exact", _exact(found.target))
    if found.draft is not None:
        sheet.add("Draft", *_model_lines(found.draft))
    if found.vocabulary is not None:
        sheet.add("Tokens", str(found.vocabulary))
    if found.size_warning:
        sheet.add("Sizes", found.size_warning)
    if found.head is not None:
        sheet.add("Head", _head(found.head))
    if found.adapters:
        sheet.add("Adapters", *_adapters(found))
    if found.projector is not None:
        sheet.add("Images", _projector(found.projector))
    sheet.add("Tools", _tools(found.target))
    if found.is_pair:
        _add_plan(sheet, found)
    else:
        sheet.add("NO PAIR", *_no_pair(found))
    return sheet


def _add_plan(sheet: FactSheet, found: Explanation) -> None:
    """Add how a pair would run here: what drafts, where, and how fast."""
    if found.draft is None and found.head is None:
        sheet.add("Draft", *_no_draft(found))
    else:
        sheet.add("Caches", _rollback(found))
    sheet.add("Device", found.device)
    sheet.add("Memory", *_memory_lines(found))
    if found.can_draft:
        sheet.add("Speed-up", *_gain_lines(found))
    sheet.add("Variants", *(f"{name}: {text}" for name, text in found.variants.items()))


def _model_lines(model: ModelFacts) -> list[str]:
    size = f"{_in_words(model.num_weights)} weights stored"
    if model.num_output_weights:
        size += f", {_in_words(model.num_output_weights)} of them in its output layer"
    named = f"{model.architecture} {model.size_label}".rstrip()
    heads = f"{model.num_heads} attention heads, {model.num_kv_heads} of keys and values"
    window = f", sliding window {model.sliding_window}" if model.sliding_window else ""
    total = sum(model.type_bytes.values())
    types = [
        f"{name} {num_bytes / total:.0%}"
        for name, num_bytes in model.type_bytes.items()
        if num_bytes >= 0.01 * total
    ]
    return [
        f"{model.name}, {_size(model.size_bytes, is_here=model.is_here)}",
        f"{named}, {size}",
        f"{model.num_layers} layers of width {model.width}, {heads}",
        f"vocabulary of {model.vocab_size} tokens, context up to "
        f"{model.trained_context}{window}",
        f"weights: {', '.join(types)}",
    ]


def _tools(target: ModelFacts) -> str:
    """Where the target reads of tools that it may call."""
    if target.has_tools:
        return "its chat template has them, in a form of calls that is known"
    return (
        "described in words: its chat template has none, or calls in a form that is not known"
    )


def _in_words(count: int) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.1f} billion"
    return f"{count / 1e6:.0f} million"


def _exact(target: ModelFacts) -> str:
    """The settings of --exact, and whether they were found to be enough."""
    found = "the first load with it tests whether that is enough"
    if target.exactness is not None:
        steps = target.exactness.steps
        found = f"found exact on this machine{f': {steps}' if steps else ''}"
    return f"with --exact: {', '.join(target.exact_settings)}; {found}"


def _no_pair(found: Explanation) -> list[str]:
    """Why the models cannot be loaded together, and which could be."""
    seen = found.projector
    if seen is not None and seen.is_named and seen.misfit:
        return [seen.misfit]
    if not found.misfit:
        return ["a head only drafts for the model that it was trained for"]
    target = found.target
    largest = readable_bytes(round(target.size_bytes * LARGEST_SHARE))
    return [
        found.misfit,
        f"a draft for {target.name} needs the same {target.vocab_size} tokens, or nearly, and "
        f"at most {largest}: use a smaller model of its family, or no draft",
    ]


def _head(head: HeadReport) -> str:
    what = f"{head.description} of {readable_bytes(head.size_bytes)} in the target's file"
    if head.is_apart:
        known = (head.name, head.description, _size(head.size_bytes, is_here=head.is_here))
        what = ", ".join(filter(None, known))
    if head.why_not:
        return f"{what}: NOT USABLE, {in_flags(head.why_not)}"
    return f"{what}: drafts for this target"


def _projector(projector: ProjectorReport) -> str:
    if projector.misfit and not projector.is_named:
        return f"none, since {projector.name} is not used: {projector.misfit}"
    size = _size(projector.size_bytes, is_here=projector.is_here)
    return f"{projector.name}, {projector.kind}, {size}"


def _adapters(found: Explanation) -> list[str]:
    lines = [
        f"{one.name} times {one.scale:g}: it changes {counted(one.num_weights, 'tensor')}, "
        f"{readable_bytes(one.size_bytes)}"
        for one in found.adapters
    ]
    return [*lines, "on the target alone: a draft or a head keeps its own weights"]


def _no_draft(found: Explanation) -> list[str]:
    """What drafts without a draft model, and which model on this machine could."""
    if not found.target.can_roll_back:
        return [f"none: {_rollback(found)}"]
    lookup = "none: lookup drafts without a model wherever the text repeats an earlier passage"
    if found.draft_here is not None:
        could = f"{found.draft_here.name} could draft: its tokenizer and its size fit"
    elif found.draft_to_measure is not None:
        could = f"{found.why_no_draft}: a draft of that size hardly pays"
    else:
        could = f"{found.why_no_draft}: a draft is a small model of the same family"
    return [lookup, could]


def _rollback(found: Explanation) -> str:
    if not found.target.can_roll_back:
        return "the target's cache cannot be rolled back: plain decoding"
    target = found.memory.models[0]
    if target.num_snapshots:
        return (
            f"the target can roll back up to {counted(target.num_snapshots, 'token')}; their "
            f"recurrent states take {readable_bytes(target.snapshot_bytes)}"
        )
    return "the target's cache can be rolled back, as drafting needs it"


def _memory_lines(found: Explanation) -> list[str]:
    memory = found.memory
    models = found.memory.models

    def total(part: str) -> str:
        return readable_bytes(sum(getattr(model, f"{part}_bytes") for model in models))

    lines = [
        f"{readable_bytes(memory.needed_bytes)} at a context of {memory.context_length} "
        f"tokens: {_fit(found)}",
        *_place_lines(memory, found.room),
        f"weights {total('weights')}, caches {total('cache')}, compute {total('compute')}, "
        f"vocabularies {total('vocabulary')}",
    ]
    if found.adapters:
        lines.append(f"of the weights, adapters take {total('adapter')}")
    if "mmproj" in memory.roles:
        lines.append(f"of that, up to {total('picture')} for the images that were shown last")
    if memory.peak_bytes > memory.main_bytes:
        lines.append(
            f"peak {readable_bytes(memory.peak_bytes)}, with {total('repacked')} of weights "
            "repacked for the processor"
        )
    at_once = found.at_once
    if at_once.num_asked > 1:
        lines.append(
            f"{at_once.num} of {at_once.num_asked} answers at once, each with the whole "
            f"context: {readable_bytes(at_once.num_bytes)} of that"
        )
    lines.append(
        f"and up to {readable_bytes(at_once.kept_bytes)} more for the caches of inactive "
        "conversations"
    )
    if found.smaller:
        lines.append(f"the preset {found.smaller} fits")
    return lines


def _place_lines(memory: PairMemory, free: MemoryRoom) -> list[str]:
    """A line for each memory: needed and free bytes, and the layers that go there."""
    parts: list[list[str]] = [[] for _ in range(1 + len(free.gpus))]
    for role, model in zip(memory.roles, memory.models, strict=True):
        in_main = model.num_layers - sum(model.gpu_layers)
        sizes = (model.main_bytes, *model.gpu_bytes)
        for index, count in enumerate((in_main, *model.gpu_layers)):
            what = f"{count} of {model.num_layers} layers" if count else ""
            if index == 0 and not count and model.num_cpu_moe_layers:
                what = f"the experts of {model.num_cpu_moe_layers} layers"
            if what:
                parts[index].append(f"{what} of the {role} ({readable_bytes(sizes[index])})")
    names = ("main memory", *(f"{gpu.name} ({gpu.description})" for gpu in free.gpus))
    needed = (memory.main_bytes, *memory.gpu_bytes)
    unused = (free.main_bytes, *(gpu.free_bytes for gpu in free.gpus))
    return [
        f"{readable_bytes(taken)} of {name}, {readable_bytes(left)} free"
        + (f": {', '.join(layers)}" if layers else "")
        for name, taken, left, layers in zip(names, needed, unused, parts, strict=True)
    ]


def _fit(found: Explanation) -> str:
    if found.fits:
        return f"it fits; the largest context that would fit is {found.largest_context}"
    longest = "no context would fit"
    if found.largest_context:
        longest = f"a context of up to {found.largest_context} would fit"
    if found.gpu_layers is not None:
        longest += f", or {found.gpu_layers} layers on GPUs (--gpu-layers)"
    return f"IT DOES NOT FIT; {longest}"


def _gain_lines(found: Explanation) -> list[str]:
    if found.gains is None:
        return [_NOT_MEASURED]
    if found.break_even is None:
        return ["none here: the draft is too slow even if all its tokens are accepted"]
    drafter = "head" if found.draft is None else "draft"
    return [
        f"the {drafter} {pays_from(found.break_even)}",
        *(
            f"if {gain.acceptance:.0%} are: {gain.speedup:.2f} times as fast, with "
            f"{counted(gain.num_draft_tokens, 'draft token')} a step"
            for gain in found.gains
        ),
    ]
