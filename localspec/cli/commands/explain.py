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
    **model_options: Any,
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
    from localspec.advice.explanation import explain as explain_pair  # slow to import

    model_options["adapters"] = model_options["adapters"] or None  # None means the preset's
    # With a draft or head of its own, MODEL names the target alone, not a pair.
    is_target = model_options["draft"] is not None or model_options["head"] is not None
    chosen_model = choose_model(
        model,
        None,
        target,
        is_target=is_target,
    )
    server_options: dict[str, Any] = {}
    if parallel is not None:
        server_options["parallel"] = parallel
        server_options["kept_bytes"] = served_kept_bytes(memory_here().total_bytes)
    try:
        with waiting(lambda: "Looking at the models …"):
            explanation = explain_pair(
                chosen_model,
                target=target,
                measure=measure,
                **model_options,
                **server_options,
            )
    except DownloadError as error:  # without the headers, less is known
        preset = None
        if chosen_model is not None:
            preset = resolve(chosen_model).preset
        if preset is None or is_target or as_json:
            raise
        sheet = _preset_sheet(preset)
        click.echo(sheet.text())
        note(f"More would follow from the headers of the files, but {error}. {error.hint}")
        return
    if as_json:
        write_json(explanation)
    else:
        sheet = explanation_sheet(explanation)
        _add_commands(sheet, explanation, model, {"target": target} | model_options)
        click.echo(sheet.text())
    if not explanation.is_pair:
        raise click.exceptions.Exit(exit_codes.FAILED)


def _preset_sheet(preset: Preset) -> FactSheet:
    """The facts about a preset that are known without the headers of its files."""
    sheet = FactSheet()
    sheet.add("Pair", preset.description)
    for role, model in preset.by_role().items():
        if isinstance(model, HubModel):
            names = [file.name for file in model.files]
        else:
            names = [model.path.name]
        size = _size_in_words(size_of(model), is_here=not missing_files(model))
        sheet.add(role.capitalize(), f"{', '.join(names)}, {size}")
    all_files = readable_bytes(preset_state(preset).size_bytes)
    free = readable_bytes(memory_here().available_bytes)
    sheet.add("Memory", f"all files {all_files}, free memory {free}")
    return sheet


def _size_in_words(num_bytes: int | None, *, is_here: bool) -> str:
    """The size of a model's files, and whether they are on this machine."""
    size = readable_bytes(num_bytes)
    if is_here:
        return f"{size} on this machine"
    return f"{size} to download"


def _add_commands(
    sheet: FactSheet,
    explanation: Explanation,
    model: str | None,
    options: dict[str, Any],
) -> None:
    """Add the commands to type next, if it is a pair: to chat with it, and to measure a draft.

    A draft that was found on this machine, and not named, is among their options.
    If the pair does not fit, the commands have the largest context that fits. If no context
    fits, the only command is for a smaller preset, if there is one.

    Args:
        model: The argument MODEL; None if it was not given.
        options: The values of the other options, by keyword.
    """
    if not explanation.is_pair:
        return
    if not explanation.fits and not explanation.largest_context:
        if explanation.smaller:
            sheet.add("To chat", f"localspec chat {explanation.smaller}")
        return
    options = dict(options)
    if not explanation.fits:
        options["context_length"] = explanation.largest_context
    can_draft = explanation.target.can_roll_back
    if explanation.draft_here is not None and can_draft:
        options["draft"] = explanation.draft_here
    sheet.add("To chat", _command_line("chat", model, options))
    if explanation.draft_to_measure is not None and can_draft:
        options["draft"] = explanation.draft_to_measure
        sheet.add("To measure", _command_line("bench", model, options))


def _command_line(name: str, model: str | None, options: dict[str, Any]) -> str:
    """A command of localspec as the user would type it.

    Args:
        name: The name of the command, such as "chat".
        model: The argument MODEL, if there is one.
        options: The values of options by keyword; None and () are left out. It must have the
            key "adapters".
    """
    words = ["localspec", name]
    if model is not None:
        words.append(model)
    for adapter in options["adapters"] or ():
        words += ["--lora", f"{adapter.file}={adapter.scale:g}"]
    for keyword, value in options.items():
        if keyword == "adapters" or value in (None, ()):
            continue
        text = str(value)
        if isinstance(value, tuple | list):
            text = ",".join(map(str, value))
        words += [usual_flag(keyword), text]
    return shlex.join(words)


def explanation_sheet(explanation: Explanation) -> FactSheet:
    """The explanation for people: what the models are, and how the pair would run here."""
    sheet = FactSheet()
    if explanation.description:
        sheet.add("Pair", explanation.description)
    sheet.add("Target", *_model_lines(explanation.target))
    sheet.add("Exact", _exact_in_words(explanation.target))
    if explanation.draft is not None:
        sheet.add("Draft", *_model_lines(explanation.draft))
    if explanation.vocabulary is not None:
        sheet.add("Tokens", str(explanation.vocabulary))
    if explanation.size_warning:
        sheet.add("Sizes", explanation.size_warning)
    if explanation.head is not None:
        sheet.add("Head", _head_in_words(explanation.head))
    if explanation.adapters:
        sheet.add("Adapters", *_adapter_lines(explanation))
    if explanation.projector is not None:
        sheet.add("Images", _projector_in_words(explanation.projector))
    sheet.add("Tools", _tools_in_words(explanation.target))
    if explanation.is_pair:
        _add_plan(sheet, explanation)
    else:
        sheet.add("NO PAIR", *_no_pair_lines(explanation))
    return sheet


def _add_plan(sheet: FactSheet, explanation: Explanation) -> None:
    """Add how a pair would run here: what drafts, where, and how fast."""
    if explanation.draft is None and explanation.head is None:
        sheet.add("Draft", *_no_draft_lines(explanation))
    else:
        sheet.add("Caches", _rollback_in_words(explanation))
    sheet.add("Device", explanation.device)
    sheet.add("Memory", *_memory_lines(explanation))
    if explanation.can_draft:
        sheet.add("Speed-up", *_gain_lines(explanation))
    variants = [f"{name}: {description}" for name, description in explanation.variants.items()]
    sheet.add("Variants", *variants)


def _model_lines(model: ModelFacts) -> list[str]:
    """The facts about a model: its files, architecture, layers, vocabulary and weights."""
    weights = f"{_millions_in_words(model.num_weights)} weights stored"
    if model.num_output_weights:
        num_output = _millions_in_words(model.num_output_weights)
        weights += f", {num_output} of them in its output layer"
    kind = f"{model.architecture} {model.size_label}".rstrip()
    heads = f"{model.num_heads} attention heads, {model.num_kv_heads} of keys and values"
    context = f"context up to {model.trained_context}"
    if model.sliding_window:
        context += f", sliding window {model.sliding_window}"
    return [
        f"{model.name}, {_size_in_words(model.size_bytes, is_here=model.is_here)}",
        f"{kind}, {weights}",
        f"{model.num_layers} layers of width {model.width}, {heads}",
        f"vocabulary of {model.vocab_size} tokens, {context}",
        f"weights: {', '.join(_type_shares(model))}",
    ]


def _type_shares(model: ModelFacts) -> Iterator[str]:
    """The types of weights with their shares of the bytes; types below 1 % are left out."""
    total_bytes = sum(model.type_bytes.values())
    for name, num_bytes in model.type_bytes.items():
        share = num_bytes / total_bytes
        if share >= 0.01:
            yield f"{name} {share:.0%}"


def _tools_in_words(target: ModelFacts) -> str:
    """How the prompt describes tools to the target: by its chat template, or in words."""
    if target.has_tools:
        return "its chat template has them, in a form of calls that is known"
    return (
        "described in words: its chat template has none, or calls in a form that is not known"
    )


def _millions_in_words(count: int) -> str:
    """A number in millions, or in billions from a billion on."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} billion"
    return f"{count / 1e6:.0f} million"


def _exact_in_words(target: ModelFacts) -> str:
    """The settings that --exact would use, and whether they were found exact here."""
    result = "the first load with it tests whether that is enough"
    if target.exactness is not None:
        result = "found exact on this machine"
        if target.exactness.steps:
            result += f": {target.exactness.steps}"
    return f"with --exact: {', '.join(target.exact_settings)}; {result}"


def _no_pair_lines(explanation: Explanation) -> list[str]:
    """Why the models cannot be loaded together, and which models can."""
    projector = explanation.projector
    if projector is not None and projector.is_named and projector.misfit:
        return [projector.misfit]
    if not explanation.misfit:
        return ["a head only drafts for the model that it was trained for"]
    target = explanation.target
    largest_draft = readable_bytes(round(target.size_bytes * LARGEST_SHARE))
    return [
        explanation.misfit,
        f"a draft for {target.name} needs the same {target.vocab_size} tokens, or nearly, and "
        f"at most {largest_draft}: use a smaller model of its family, or no draft",
    ]


def _head_in_words(head: HeadReport) -> str:
    """A head, where it is, and whether it can draft for the target."""
    if head.is_apart:
        parts = [head.name]
        if head.description:
            parts.append(head.description)
        parts.append(_size_in_words(head.size_bytes, is_here=head.is_here))
        title = ", ".join(parts)
    else:
        size = readable_bytes(head.size_bytes)
        title = f"{head.description} of {size} in the target's file"
    if head.why_not:
        return f"{title}: NOT USABLE, {in_flags(head.why_not)}"
    return f"{title}: drafts for this target"


def _projector_in_words(projector: ProjectorReport) -> str:
    """The projector, or why the one that was found is not used."""
    if projector.misfit and not projector.is_named:
        return f"none, since {projector.name} is not used: {projector.misfit}"
    size = _size_in_words(projector.size_bytes, is_here=projector.is_here)
    return f"{projector.name}, {projector.kind}, {size}"


def _adapter_lines(explanation: Explanation) -> list[str]:
    """A line for each adapter, and one that says which model they change."""
    lines = []
    for adapter in explanation.adapters:
        tensors = counted(adapter.num_weights, "tensor")  # it counts matrices
        size = readable_bytes(adapter.size_bytes)
        lines.append(f"{adapter.name} times {adapter.scale:g}: it changes {tensors}, {size}")
    lines.append("on the target alone: a draft or a head keeps its own weights")
    return lines


def _no_draft_lines(explanation: Explanation) -> list[str]:
    """What drafts without a draft model, and which model could be one."""
    if not explanation.target.can_roll_back:
        return [f"none: {_rollback_in_words(explanation)}"]
    lookup = "none: lookup drafts without a model wherever the text repeats an earlier passage"
    if explanation.draft_here is not None:
        candidate = f"{explanation.draft_here.name} could draft: its tokenizer and its size fit"
    elif explanation.draft_to_measure is not None:
        candidate = f"{explanation.why_no_draft}: a draft of that size hardly pays"
    else:
        candidate = f"{explanation.why_no_draft}: a draft is a small model of the same family"
    return [lookup, candidate]


def _rollback_in_words(explanation: Explanation) -> str:
    """Whether and how far the target's cache can be rolled back, which drafting needs."""
    if not explanation.target.can_roll_back:
        return "the target's cache cannot be rolled back: plain decoding"
    target = explanation.memory.models[0]
    if target.num_snapshots:
        return (
            f"the target can roll back up to {counted(target.num_snapshots, 'token')}; their "
            f"recurrent states take {readable_bytes(target.snapshot_bytes)}"
        )
    return "the target's cache can be rolled back, as drafting needs it"


def _memory_lines(explanation: Explanation) -> list[str]:
    """The memory that the pair needs: in all, in each place, and for what."""
    memory = explanation.memory
    models = explanation.memory.models

    def total(part: str) -> str:
        """The sum over the models of what is in their field `part`_bytes."""
        sizes = [getattr(model, f"{part}_bytes") for model in models]
        return readable_bytes(sum(sizes))

    lines = [
        f"{readable_bytes(memory.needed_bytes)} at a context of {memory.context_length} "
        f"tokens: {_fit_in_words(explanation)}",
        *_place_lines(memory, explanation.room),
        f"weights {total('weights')}, caches {total('cache')}, compute {total('compute')}, "
        f"vocabularies {total('vocabulary')}",
    ]
    if explanation.adapters:
        lines.append(f"of the weights, adapters take {total('adapter')}")
    if "mmproj" in memory.roles:
        lines.append(f"of that, up to {total('picture')} for the images that were shown last")
    if memory.peak_bytes > memory.main_bytes:
        lines.append(
            f"peak {readable_bytes(memory.peak_bytes)}, with {total('repacked')} of weights "
            "repacked for the processor"
        )
    at_once = explanation.at_once
    if at_once.num_asked > 1:
        lines.append(
            f"{at_once.num} of {at_once.num_asked} answers at once, each with the whole "
            f"context: {readable_bytes(at_once.num_bytes)} of that"
        )
    lines.append(
        f"and up to {readable_bytes(at_once.kept_bytes)} more for the caches of inactive "
        "conversations"
    )
    if explanation.smaller:
        lines.append(f"the preset {explanation.smaller} fits")
    return lines


def _place_lines(memory: PairMemory, free: MemoryRoom) -> list[str]:
    """A line for main memory and each GPU: needed and free bytes, and the layers there."""
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
    """How many layers of each model go to a place, with their bytes.

    Models without layers there are left out, unless they leave experts in main memory.

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


def _fit_in_words(explanation: Explanation) -> str:
    """Whether the pair fits, and what is the largest context or number of layers that fits."""
    if explanation.fits:
        return f"it fits; the largest context that would fit is {explanation.largest_context}"
    remedy = "no context would fit"
    if explanation.largest_context:
        remedy = f"a context of up to {explanation.largest_context} would fit"
    if explanation.gpu_layers is not None:
        remedy += f", or {explanation.gpu_layers} layers on GPUs (--gpu-layers)"
    return f"IT DOES NOT FIT; {remedy}"


def _gain_lines(explanation: Explanation) -> list[str]:
    """From which acceptance on drafting is faster, and the speed-up at several acceptances.

    One line instead if nothing was measured, or if drafting never pays.
    """
    if explanation.gains is None:
        return [_NOT_MEASURED]
    if explanation.break_even is None:
        return ["none here: the draft is too slow even if all its tokens are accepted"]
    drafter = "draft"
    if explanation.draft is None:
        drafter = "head"
    lines = [f"the {drafter} {pays_from(explanation.break_even)}"]
    for gain in explanation.gains:
        tokens = counted(gain.num_draft_tokens, "draft token")
        lines.append(
            f"if {gain.acceptance:.0%} are: {gain.speedup:.2f} times as fast, with {tokens} "
            "a step"
        )
    return lines
