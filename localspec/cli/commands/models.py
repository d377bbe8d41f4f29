"""`localspec models`: presets, and names for models of one's own."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from localspec.advice.recommendation import (
    ASSUMED_BYTES_PER_S,
    ENOUGH_TOKENS_PER_S,
    measured_bytes_per_s,
    recommend,
)
from localspec.cli import exit_codes
from localspec.cli.completers import complete_model, complete_preset
from localspec.cli.flags import with_all
from localspec.cli.help import Group
from localspec.cli.json_output import json_option, to_json, write_json
from localspec.cli.progress_line import waiting
from localspec.cli.screen import counted, fitted, note, printable, readable_bytes, say
from localspec.cli.shared_options import shared
from localspec.cli.standard_streams import is_terminal
from localspec.errors import DownloadError, LocalspecError, PresetError
from localspec.hub.hub_file import HubModel
from localspec.planning.free_memory import MemoryRoom, free_memory
from localspec.planning.plan import fits_by_size
from localspec.presets import located
from localspec.presets.local_models import (
    FolderContent,
    ProposedPreset,
    files_here,
    search_folder,
)
from localspec.presets.located import (
    PresetState,
    damaged_files,
    list_models,
    locate,
    preset_state,
)
from localspec.presets.model_names import default_model, drop_alias, set_alias, set_default
from localspec.presets.presets import (
    DEFAULT_PRESET,
    Adapter,
    LocalModel,
    PackagedModel,
    Preset,
    Role,
    find_preset,
    load_presets,
    read_names,
    user_presets,
    user_presets_file,
)
from localspec.presets.user_presets import add_preset, drop_preset, presets_extending

if TYPE_CHECKING:
    from localspec.engine.disk_usage import DiskUsage

# Where a model's file comes from, for --json.
_SOURCES = {
    HubModel: "hub",
    PackagedModel: "packaged",
    LocalModel: "local",
}
# The values by which the list is sorted, in their order.
_STATES = ("ready", "partial", "absent")
_FITS = (True, None, False)
_FITS_IN_WORDS = {True: "yes", None: "-", False: "no"}


_FOREIGN_COMMANDS = {
    "ls": "localspec models list",
    **dict.fromkeys(("rm", "delete"), "localspec models remove PRESET"),
    **dict.fromkeys(("pull", "get", "download"), "localspec download PRESET"),
    **dict.fromkeys(("show", "info", "explain"), "localspec explain MODEL"),
    **dict.fromkeys(("run", "chat"), "localspec chat MODEL"),
    "cp": "localspec models alias SHORT MODEL",
    "create": "localspec models add NAME --target MODEL",
    "MODEL": "localspec explain MODEL",
}


# The options of `localspec models`, and of `localspec models list`.
_LISTING = (
    click.option(
        "--fits",
        "only_fitting",
        is_flag=True,
        help="Only presets that fit.",
    ),
    json_option("array with everything known"),
)


@click.group(cls=Group, invoke_without_command=True, foreign_commands=_FOREIGN_COMMANDS)
@functools.partial(with_all, _LISTING)
@click.pass_context
def models(context: click.Context, /, **listing: bool) -> None:
    """List presets, and say which one to use on this machine.

    Presets that fit into the memory that is free now come first: those on this machine, then
    the newest. A * marks presets of which some details are unconfirmed; --json says which. Then
    come GGUF files that were used before or lie in the usual folders.

    \b
        localspec models
        localspec models --fits
        localspec models default qwen3.5-9b
        localspec models path qwen3.5-9b
        localspec models add mine --target T.gguf --draft D.gguf
        localspec models import ~/.lmstudio/models
    """
    if context.invoked_subcommand is None:
        context.invoke(list_presets, **listing)


@models.command("list")
@functools.partial(with_all, _LISTING)
def list_presets(*, only_fitting: bool, as_json: bool) -> None:
    """List presets, as 'localspec models' does."""
    free = free_memory()

    def order(state: PresetState) -> tuple[int, int]:
        return _FITS.index(_fits(state, free)), _STATES.index(state.state)

    newest_first = sorted(list_models(), key=lambda state: state.preset.released, reverse=True)
    all_states = sorted(newest_first, key=order)  # a stable sort: the newest stay first
    embedders = [state.name for state in all_states if state.preset.embeds]
    states = all_states
    if only_fitting:
        states = [state for state in all_states if _fits(state, free)]
    if as_json:
        write_json([_state_json(state, free) for state in states])
        return
    _print_table(states, free)
    other_files = files_here()
    advice = "\n".join(_advice(all_states, other_files, free))
    click.echo("\n" + fitted(advice))
    if other_files:
        click.echo("\nFiles that no preset names, for 'localspec chat FILE':")
    for path in other_files:
        size = readable_bytes(located.size_of(LocalModel(path=path)))
        click.echo(printable(f"{size:>9}  {path}"))
    note(
        "FITS: whether it fits into the memory that is free now, judged by file sizes; "
        "'localspec explain PRESET' is more exact.\n"
        "*: some details are unconfirmed; --json says which.\n"
        f"For 'localspec serve --embeddings PRESET': {', '.join(embedders)}.\n"
        f"Default: {_default_name()}."
    )


def _print_table(states: list[PresetState], free: MemoryRoom) -> None:
    """Print a header, and a line for each preset."""
    rows = [("PRESET", "STATE", "SIZE", "FITS", "RELEASED", "LICENCE")]
    for state in states:
        preset = state.preset
        name = state.name
        if preset.unconfirmed:
            name += "*"
        size = readable_bytes(state.size_bytes)
        fits = _FITS_IN_WORDS[_fits(state, free)]
        released = preset.released or "-"
        rows.append((name, state.state, size, fits, released, preset.target.license or "-"))
    longest_name = max((len(state.name) for state in states), default=0)
    width = longest_name + 2  # room for a star and a blank
    for name, state_word, size, fits, released, licence in rows:
        line = f"{name:<{width}}{state_word:<8}{size:>9}  {fits:<6}{released:<10}{licence}"
        click.echo(printable(line))


def _default_name() -> str:
    """The name of the model that commands use when none is named."""
    usual = default_model()
    if usual is None:
        return DEFAULT_PRESET
    return usual.name


def _advice(
    all_states: list[PresetState],
    other_files: list[Path],
    free: MemoryRoom,
) -> list[str]:
    """Lines that say which preset to take on this machine, and why.

    Args:
        all_states: all presets.
        other_files: GGUF files on this machine that no preset names.
        free: the free memory.
    """
    files = list(other_files)
    for state in all_states:
        if state.is_installed:
            files.append(located.path_of(state.preset.target))
    best = recommend(all_states, free, measured_bytes_per_s(files, free))
    question = "Which should I take?"
    if best is None:
        return [f"{question} {DEFAULT_PRESET}: nothing else fits into the memory that is free."]
    name = best.state.name
    size = f"it takes {readable_bytes(best.state.size_bytes)}"
    if best.is_on_gpus:
        reason = f"the newest of the largest models of {best.year} that fit onto the GPU"
        return [f"{question} {name}: {reason}; {size}.", f"    localspec chat {name}"]
    enough = f"{ENOUGH_TOKENS_PER_S:.0f} tokens/s"
    condition = f"that fit into main memory and can write {enough} there"
    reason = f"the newest of the largest models of {best.year} {condition}"
    if not best.is_quick:
        condition = f"that fits, though none can write {enough} here"
        reason = f"the fastest model of {best.year} {condition}"
    bytes_per_s = best.bytes_per_s or ASSUMED_BYTES_PER_S
    source = "measured here"
    if not best.bytes_per_s:
        source = "assumed, since nothing was measured here"
    speed = "less than one"
    if best.tokens_per_s >= 1:
        speed = f"up to {best.tokens_per_s:.0f} tokens/s"
    return [
        f"{question} {name}: {reason}; {size}.",
        f"It reads {readable_bytes(best.token_bytes)} of memory for each token, at "
        f"{bytes_per_s / 1e9:.0f} GB/s ({source}): {speed}, or more where drafts are accepted.",
        f"    localspec chat {name}",
    ]


@models.command("path")
@click.argument("preset", shell_complete=complete_preset)
def print_paths(*, preset: str) -> None:
    """Print the paths of target, draft, head and projector, one per line."""
    for path in locate(find_preset(preset)).values():
        click.echo(path)


@models.command("remove")
@click.argument("preset", shell_complete=complete_preset)
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_preset(*, preset: str, yes: bool) -> None:
    """Delete the downloaded files of a preset, and a preset of your own.

    Saved caches of its conversations and its measured costs are deleted, too; sessions stay.
    Files that another preset uses, that another program put into the cache, or that are in your
    own folders stay, too. A preset that you added is asked about separately. While the file of
    your presets is malformed, no model is deleted: a preset in it may use it.
    """
    # Imported here, because every command imports this module, and NumPy takes its time.
    from localspec.engine.disk_usage import disk_usage

    chosen = find_preset(preset)
    removal = located.removal_of(chosen)
    usage = disk_usage(chosen)
    for file, users in removal.shared.items():
        say(f"{file.name} stays: {', '.join(users)} uses it")
    for file in removal.foreign:
        say(f"{file.name} stays: another program put it there")
    for file, size in removal.owned.items():
        say(f"{file.repo} {file.file}: {readable_bytes(size)}")
    if usage.num_bytes:
        _free_disk_of(chosen, usage, yes=yes)
    is_own = False
    # A malformed file was shown by `find_preset`. It keeps files of the hub from being deleted,
    # and no preset in it can be removed.
    with contextlib.suppress(PresetError):
        is_own = chosen.name in user_presets()
    if is_own:
        _remove_from_own_file(chosen.name, yes=yes)
    elif not usage.num_bytes:
        say("Nothing to remove.")


def _free_disk_of(preset: Preset, usage: DiskUsage, *, yes: bool) -> None:
    """Delete files, caches and measured costs of a preset, once the user has agreed.

    Raises click.Abort if the user says no.
    """
    from localspec.engine.disk_usage import free_disk

    if usage.caches:
        say(f"caches of conversations: {readable_bytes(sum(usage.caches.values()))}")
    if usage.costs:
        say(f"measured costs: {readable_bytes(sum(usage.costs.values()))}")
    if not yes:
        question = f"Remove and free {readable_bytes(usage.num_bytes)}?"
        click.confirm(question, abort=True, err=True)
    freed = free_disk(preset, "files", "caches", "costs")
    say(f"{readable_bytes(freed)} freed")


def _remove_from_own_file(name: str, *, yes: bool) -> None:
    """Remove a preset from the user's file, unless another extends it or the user says no."""
    extending = presets_extending(name)
    if extending:
        say(f"The preset {name} stays: {', '.join(extending)} extends it")
        return
    question = f"Remove the preset {name} from {user_presets_file()}?"
    if yes or click.confirm(question, err=True):
        drop_preset(name)
        say(f"{name} is removed from {user_presets_file()}")


@models.command("verify")
@click.argument("presets", nargs=-1, metavar="[PRESET]...", shell_complete=complete_preset)
def verify_files(*, presets: tuple[str, ...]) -> None:
    """Check files against their sha256; without names, all that are on this machine."""
    chosen = [find_preset(name) for name in presets]
    if not presets:
        chosen = list(_ready_presets())
    all_damaged: dict[Path, str] = {}  # a hint for each file
    for preset in chosen:
        damaged = damaged_files(preset)
        result = "ok"
        if damaged:
            result = "damaged"
        click.echo(f"{preset.name}: {result}")
        all_damaged |= damaged
    if all_damaged:
        paths = ", ".join(map(str, all_damaged))
        hints = dict.fromkeys(all_damaged.values())  # each once
        raise DownloadError(f"damaged: {paths}", " ".join(hints))


def _ready_presets() -> Iterator[Preset]:
    """The presets whose files are all on this machine."""
    for preset in load_presets().values():
        if preset_state(preset).state == "ready":
            yield preset


def _fits(state: PresetState, free: MemoryRoom) -> bool | None:
    """Whether the preset probably fits; None if its size is unknown."""
    if state.size_bytes is None:
        return None
    return fits_by_size(state.size_bytes, free)


def _state_json(state: PresetState, free: MemoryRoom) -> dict[str, Any]:
    """Everything known about a preset, for --json: its own fields, and those of its state."""
    converted: dict[str, Any] = to_json(state)
    preset_fields = converted.pop("preset")
    converted |= preset_fields
    converted["fits"] = _fits(state, free)
    del converted["models"]  # the same models as under their roles
    for role in get_args(Role):
        if converted[role] is not None:
            model = getattr(state.preset, role)
            converted[role]["kind"] = _SOURCES[type(model)]
    return converted


@models.command
@click.argument("name")
@shared("target", required=True)
@shared("draft", "head", "mmproj")
@shared("adapters", help="A LoRA adapter for the target, and its scale. Repeatable. [SCALE: 1]")
@click.option("--description", default="", help="A description for the list of models.")
@shared(
    "context_length",
    help="Context in tokens. [default: what target and draft were trained for, up to 8192]",
)
def add(
    *,
    name: str,
    adapters: tuple[Adapter, ...],
    description: str,
    context_length: int | None,
    **models: Any,
) -> None:
    """Add a preset of your own.

    MODEL is a GGUF file, hf:owner/repo/file.gguf, hf:owner/repo@revision/file.gguf,
    owner/repo:QUANT, or a preset. Models on the hub are pinned to their current revision. A
    draft with too few tokens in common with its target is refused.

    \b
        localspec models add mine --target T.gguf --draft D.gguf
        localspec models add qwen --draft qwen2.5-7b \\
            --target Qwen/Qwen2.5-7B-Instruct-GGUF:Q8_0
    """
    with waiting(lambda: "Looking at the models …"):
        add_preset(
            name,
            models,
            adapters=adapters,
            description=description or name,
            context_length=context_length,
        )
    say(f"{name} added to {user_presets_file()}")


@models.command("import")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--yes", is_flag=True, help="Do not ask.")
def import_models(*, folder: Path, yes: bool) -> None:
    """Add presets for the GGUF files in a folder and its subfolders.

    Folders of LM Studio and Ollama work, too. The draft of a model is the smallest one with the
    same tokenizer, if it has at most a third of its size. The presets are shown before they are
    added; no file is copied or moved.

    \b
        localspec models import ~/models
        localspec models import ~/.lmstudio/models --yes
        localspec models import ~/.ollama/models
    """
    with waiting(lambda: "Looking at the models …"):
        content = search_folder(folder)
    for line in _content_lines(content):
        say(line)
    if not content.proposals:
        say("Nothing to add.")
        return
    presets = counted(len(content.proposals), "preset")
    if not yes and not is_terminal(sys.stdin):
        say(f"To add {presets} to {user_presets_file()}: --yes")
        return
    if not yes:
        click.confirm(f"Add {presets} to {user_presets_file()}?", abort=True, err=True)
    are_added = [_add_proposed(proposed) for proposed in content.proposals]
    if not all(are_added):
        raise click.exceptions.Exit(exit_codes.FAILED)


def _add_proposed(proposed: ProposedPreset) -> bool:
    """Add a preset. Returns False, and says why, if that failed."""
    models = {"target": str(proposed.target)}
    if proposed.draft is not None:
        models["draft"] = str(proposed.draft)
    if proposed.mmproj is not None:
        models["mmproj"] = str(proposed.mmproj)
    try:
        add_preset(
            proposed.name,
            models,
            adapters=[Adapter(path) for path in proposed.adapters],
            description=proposed.target.name,
            context_length=None,
        )
    except LocalspecError as error:
        say(f"{proposed.name} is not added: {error}")
        return False
    click.echo(proposed.name)
    return True


def _content_lines(content: FolderContent) -> list[str]:
    """A line for each preset that a folder's files can make, and for each other file."""
    lines = []
    for proposed in content.proposals:
        size = readable_bytes(proposed.size_bytes)
        parts = [f"{proposed.name}: {proposed.target}", size]
        if proposed.draft is None:
            parts.append(f"no draft: {proposed.why_no_draft}")
        else:
            parts.append(f"draft {proposed.draft}")
        if proposed.mmproj:
            parts.append(f"sees images with {proposed.mmproj}")
        for path in proposed.adapters:
            parts.append(f"with the adapter {path}")
        lines.append(", ".join(parts))
    for path, name in content.known.items():
        lines.append(f"{path} is a preset already: {name}")
    for reason in content.skipped.values():
        lines.append(f"Skipped: {reason}")
    return lines


@models.command
@click.argument("name", required=False, shell_complete=complete_model)
@click.option("--clear", is_flag=True, help="Use the demo pair again.")
def default(*, name: str | None, clear: bool) -> None:
    """Show or set the model that commands use when none is named.

    NAME is a preset, an alias, a GGUF file, or a name on the hub. The environment variable
    LOCALSPEC_MODEL takes precedence. Both are for commands only: localspec.load() in Python
    still loads the demo pair.

    \b
        localspec models default
        localspec models default qwen3-8b
        localspec models default --clear
    """
    if clear and name is not None:
        raise click.UsageError("Give a NAME or --clear.")
    if clear or name is not None:
        set_default(name)  # None clears it
    click.echo(printable(_default_name()))
    usual = default_model()
    if usual is not None:
        say(f"That is {usual.origin}.")


@models.command
@click.argument("short", required=False)
@click.argument("name", required=False, shell_complete=complete_model)
@click.option("--clear", is_flag=True, help="Remove the alias SHORT.")
def alias(*, short: str | None, name: str | None, clear: bool) -> None:
    """Give a preset or a model a short name; without arguments, list all.

    \b
        localspec models alias
        localspec models alias q qwen3-8b
        localspec models alias big ~/models/big.gguf
        localspec models alias q --clear
    """
    if short is None and not clear:
        for existing_alias, model in read_names().aliases.items():
            click.echo(printable(f"{existing_alias}  {model}"))
    elif short is not None and clear and name is None:
        drop_alias(short)
    elif short is not None and name is not None and not clear:
        model = set_alias(short, name)
        say(f"{short} stands for {model}")
    else:
        raise click.UsageError("Give SHORT and NAME, or SHORT and --clear.")
