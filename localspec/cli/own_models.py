"""`localspec models` add, import, default and alias: names for models of your own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from localspec.cli import exit_codes
from localspec.cli.completion import complete_file, complete_model
from localspec.cli.help import Command
from localspec.cli.options import shared
from localspec.cli.quantities import counted, readable_bytes
from localspec.cli.screen import printable
from localspec.cli.standard_streams import is_terminal
from localspec.cli.waiting import waiting
from localspec.errors import LocalspecError
from localspec.presets.choice import drop_alias, set_alias, set_default, usual_model
from localspec.presets.folder_import import FolderContent, ProposedPreset, search_folder
from localspec.presets.names import read_names
from localspec.presets.presets import DEFAULT_PRESET, user_presets_file
from localspec.presets.user_presets import NewPreset, add_preset


@click.command(cls=Command)
@click.argument("name")
@shared("target", required=True)
@shared("draft", "head", "mmproj")
@click.option("--description", default="", help="A description for the list of models.")
@shared(
    "context_length",
    help="Context in tokens. [default: what target and draft were trained for, up to 8192]",
)
def add(*, name: str, description: str, **models: Any) -> None:
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
        add_preset(NewPreset(name=name, description=description or name, **models))
    click.echo(f"{name} added to {user_presets_file()}", err=True)


@click.command(cls=Command, name="import")
@click.argument(
    "folder", type=click.Path(path_type=Path), metavar="DIR", shell_complete=complete_file
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def import_models(*, folder: Path, yes: bool) -> None:
    """Add presets for the GGUF files in a folder and its subfolders.

    Folders of LM Studio and Ollama work, too. The draft of a model is the smallest one with the
    same tokenizer, if it has at most a third of its size, or else the smallest with enough
    tokens in common, if it has at most a sixth. The presets are shown before they are added; no
    file is copied or moved.

    \b
        localspec models import ~/models
        localspec models import ~/.lmstudio/models --yes
        localspec models import ~/.ollama/models
    """
    with waiting(lambda: "Looking at the models …"):
        found = search_folder(folder)
    for line in _found_lines(found):
        click.echo(printable(line), err=True)
    if not found.proposals:
        click.echo("Nothing to add.", err=True)
        return
    what = counted(len(found.proposals), "preset")
    if not yes and not is_terminal(sys.stdin):
        click.echo(f"To add {what} to {user_presets_file()}: --yes", err=True)
        return
    if not yes:
        click.confirm(f"Add {what} to {user_presets_file()}?", abort=True, err=True)
    num_added = sum(map(_add_proposal, found.proposals))
    if num_added < len(found.proposals):
        raise click.exceptions.Exit(exit_codes.FAILED)


def _add_proposal(one: ProposedPreset) -> bool:
    """Add a preset. Returns whether that worked; an error does not stop the others."""
    try:
        add_preset(
            NewPreset(
                name=one.name,
                target=str(one.target),
                draft=None if one.draft is None else str(one.draft),
                mmproj=None if one.mmproj is None else str(one.mmproj),
                description=one.target.name,
                context_length=None,
            )
        )
    except LocalspecError as error:
        click.echo(printable(f"{one.name} is not added: {error}"), err=True)
        return False
    click.echo(one.name)
    return True


def _found_lines(found: FolderContent) -> list[str]:
    lines = []
    for one in found.proposals:
        draft = f"no draft: {one.why_no_draft}" if one.draft is None else f"draft {one.draft}"
        draft += f" ({one.common.with_expectation()})" if one.common else ""
        draft += f", sees images with {one.mmproj}" if one.mmproj else ""
        lines.append(f"{one.name}: {one.target}, {readable_bytes(one.size_bytes)}, {draft}")
    lines += [f"{path} is a preset already: {name}" for path, name in found.known.items()]
    lines += [f"Skipped: {reason}" for reason in found.skipped.values()]
    if not found.is_whole:
        lines.append("Some files were not looked at: too many, too deep, or not readable.")
    return lines


@click.command(cls=Command)
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
        set_default(name)
    usual = usual_model()
    click.echo(printable(DEFAULT_PRESET if usual is None else usual.name))
    if usual is not None:
        click.echo(printable(f"That is {usual.origin}."), err=True)


@click.command(cls=Command)
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
        for known, meant in read_names().aliases.items():
            click.echo(printable(f"{known}  {meant}"))
    elif short is not None and clear and name is None:
        before = read_names().default
        drop_alias(short)
        if before == short:
            click.echo(printable(f"The default is still {read_names().default}."), err=True)
    elif short is not None and name is not None and not clear:
        meant = set_alias(short, name)
        click.echo(printable(f"{short} stands for {meant}"), err=True)
        if read_names().default == short:
            click.echo(printable(f"The default is now {meant}, too."), err=True)
    else:
        raise click.UsageError("Give SHORT and NAME, or SHORT and --clear.")
