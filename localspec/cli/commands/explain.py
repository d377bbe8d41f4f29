"""`localspec explain`"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
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

    asked["adapters"] = asked["adapters"] or None  # None: those of the preset
    is_target = asked["draft"] is not None or asked["head"] is not None
    first = choose_model(
        model,
        None,
        target,
        is_target=is_target,
    )
    at_once: dict[str, Any] = {"measure": measure}
    if parallel is not None:
        at_once["parallel"] = parallel
        at_once["kept_bytes"] = served_kept_bytes(memory_here().total_bytes)
    try:
        with waiting(lambda: "Looking at the models …"):
            found = explanation.explain(
                first,
                target=target,
                **asked,
                **at_once,
            )
    except DownloadError as error:
        preset = None
        if first is not None:
            preset = resolve(first).preset
        if preset is None or is_target or as_json:
            raise
        sheet = _preset_sheet(preset)
        click.echo(sheet.text())
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
        if isinstance(model, HubModel):
            names = [file.name for file in model.files]
        else:
            names = [model.path.name]
        size = _size(size_of(model), is_here=not missing_files(model))
        sheet.add(role.capitalize(), f"{', '.join(names)}, {size}")
    all_files = readable_bytes(preset_state(preset).size_bytes)
    free = readable_bytes(memory_here().available_bytes)
    sheet.add("Memory", f"all files {all_files}, free memory {free}")
    return sheet


def _size(num_bytes: int | None, *, is_here: bool) -> str:
    size = readable_bytes(num_bytes)
    if is_here:
        return f"{size} on this machine"
    return f"{size} to download"


def _add_commands(
    sheet: FactSheet,
    found: Explanation,
    model: str | None,
    named: dict[str, Any],
) -> None:
    """Add the commands to type next.

    Args:
        model: The argument MODEL, if one was given.
        named: The other options that name models and their settings, by keyword.
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
    """A command of localspec as it is typed.

    Args:
        name: The name of the subcommand.
        model: The argument MODEL, if there is one.
        named: The values of options by keyword, among them "adapters".
    """
    words = ["localspec", name]
    if model is not None:
        words.append(model)
    for adapter in named["adapters"] or ():
        words += ["--lora", f"{adapter.file}={adapter.scale:g}"]
    for keyword, value in named.items():
        if keyword == "adapters" or value in (None, ()):
            continue
        if isinstance(value, tuple | list):
            typed = ",".join(map(str, value))
        else:
            typed = str(value)
        words += [usual_flag(keyword), typed]
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
    variants = [f"{name}: {description}" for name, description in found.variants.items()]
    sheet.add("Variants", *variants)


def _model_lines(model: ModelFacts) -> list[str]:
    weights = f"{_in_words(model.num_weights)} weights stored"
    if model.num_output_weights:
        weights += f", {_in_words(model.num_output_weights)} of them in its output layer"
    kind = f"{model.architecture} {model.size_label}".rstrip()
    heads = f"{model.num_heads} attention heads, {model.num_kv_heads} of keys and values"
    context = f"context up to {model.trained_context}"
    if model.sliding_window:
        context += f", sliding window {model.sliding_window}"
    return [
        f"{model.name}, {_size(model.size_bytes, is_here=model.is_here)}",
        f"{kind}, {weights}",
        f"{model.num_layers} layers of width {model.width}, {heads}",
        f"vocabulary of {model.vocab_size} tokens, {context}",
        f"weights: {', '.join(_type_shares(model))}",
    ]


def _type_shares(model: ModelFacts) -> Iterator[str]:
    """The types of weights with their shares of the bytes, from 1 % on."""
    total = sum(model.type_bytes.values())
    for name, num_bytes in model.type_bytes.items():
        if num_bytes >= 0.01 * total:
            yield f"{name} {num_bytes / total:.0%}"


def _tools(target: ModelFacts) -> str:
    """Where the target gets the descriptions of the tools that it may call."""
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
    result = "the first load with it tests whether that is enough"
    if target.exactness is not None:
        result = "found exact on this machine"
        if target.exactness.steps:
            result += f": {target.exactness.steps}"
    return f"with --exact: {', '.join(target.exact_settings)}; {result}"


def _no_pair(found: Explanation) -> list[str]:
    """Why the models cannot be loaded together, and which could be."""
    projector = found.projector
    if projector is not None and projector.is_named and projector.misfit:
        return [projector.misfit]
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
    if head.is_apart:
        parts = [head.name]
        if head.description:
            parts.append(head.description)
        parts.append(_size(head.size_bytes, is_here=head.is_here))
        what = ", ".join(parts)
    else:
        size = readable_bytes(head.size_bytes)
        what = f"{head.description} of {size} in the target's file"
    if head.why_not:
        return f"{what}: NOT USABLE, {in_flags(head.why_not)}"
    return f"{what}: drafts for this target"


def _projector(projector: ProjectorReport) -> str:
    if projector.misfit and not projector.is_named:
        return f"none, since {projector.name} is not used: {projector.misfit}"
    size = _size(projector.size_bytes, is_here=projector.is_here)
    return f"{projector.name}, {projector.kind}, {size}"


def _adapters(found: Explanation) -> list[str]:
    lines = []
    for adapter in found.adapters:
        tensors = counted(adapter.num_weights, "tensor")
        size = readable_bytes(adapter.size_bytes)
        lines.append(f"{adapter.name} times {adapter.scale:g}: it changes {tensors}, {size}")
    lines.append("on the target alone: a draft or a head keeps its own weights")
    return lines


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
        sizes = [getattr(model, f"{part}_bytes") for model in models]
        return readable_bytes(sum(sizes))

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
    names = ["main memory"]
    free_bytes = [free.main_bytes]
    for gpu in free.gpus:
        names.append(f"{gpu.name} ({gpu.description})")
        free_bytes.append(gpu.free_bytes)
    needed_bytes = [memory.main_bytes, *memory.gpu_bytes]
    lines = []
    for place, name in enumerate(names):
        needed = readable_bytes(needed_bytes[place])
        line = f"{needed} of {name}, {readable_bytes(free_bytes[place])} free"
        layers = list(_layers_at(place, memory))
        if layers:
            line += f": {', '.join(layers)}"
        lines.append(line)
    return lines


def _layers_at(place: int, memory: PairMemory) -> Iterator[str]:
    """The layers of each model that go into a memory, with their bytes.

    Args:
        place: 0 for main memory, n for the nth GPU.
    """
    for role, model in zip(memory.roles, memory.models, strict=True):
        if place == 0:
            num_layers = model.num_layers - sum(model.gpu_layers)
            num_bytes = model.main_bytes
        else:
            num_layers = model.gpu_layers[place - 1]
            num_bytes = model.gpu_bytes[place - 1]
        size = readable_bytes(num_bytes)
        if num_layers:
            yield f"{num_layers} of {model.num_layers} layers of the {role} ({size})"
        elif place == 0 and model.num_cpu_moe_layers:
            yield f"the experts of {model.num_cpu_moe_layers} layers of the {role} ({size})"


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
    drafter = "draft"
    if found.draft is None:
        drafter = "head"
    lines = [f"the {drafter} {pays_from(found.break_even)}"]
    for gain in found.gains:
        tokens = counted(gain.num_draft_tokens, "draft token")
        lines.append(
            f"if {gain.acceptance:.0%} are: {gain.speedup:.2f} times as fast, with {tokens} "
            "a step"
        )
    return lines
