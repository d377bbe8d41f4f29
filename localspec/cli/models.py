"""`localspec models`: the list of presets, and what can be done with one."""

from __future__ import annotations

import json
from typing import Any

import click

from localspec.cli.bars import readable_bytes
from localspec.cli.completion import complete_model, complete_preset
from localspec.cli.help import Group
from localspec.cli.screen import printable
from localspec.cli.waiting import waiting
from localspec.errors import DownloadError
from localspec.models import installed
from localspec.models.hub import locate
from localspec.models.installed import PresetState, damaged_files, state_of
from localspec.models.preset import HubModel, PackagedModel
from localspec.models.presets import find_preset, load_presets, user_presets_file
from localspec.models.user_presets import NewPreset, add_preset


@click.group(cls=Group, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One array with all that is known.")
@click.pass_context
def models(context: click.Context, *, as_json: bool) -> None:
    """List the presets: state, size, licence.

    A * marks presets with facts that rest on one source or none; --json says which.

    \b
        localspec models
        localspec models path qwen2-7b
        localspec models add mine --target T.gguf --draft D.gguf
    """
    if context.invoked_subcommand is not None:
        return
    states = [state_of(preset) for preset in load_presets().values()]
    if as_json:
        click.echo(json.dumps([_as_object(state) for state in states]))
        return
    width = max(len(state.preset.name) for state in states)
    for state in states:
        preset = state.preset
        mark = "*" if preset.unconfirmed else " "
        license = preset.target.license or "-"
        size = readable_bytes(state.size_bytes)
        click.echo(
            printable(f"{preset.name + mark:<{width + 2}}{state.state:<8}{size:>9}  {license}")
        )


@models.command()
@click.argument("preset", shell_complete=complete_preset)
def path(*, preset: str) -> None:
    """Print the paths of a preset's target, draft and head, a line each."""
    for found in locate(find_preset(preset)).by_role().values():
        click.echo(found)


@models.command()
@click.argument("name")
@click.option(
    "--target",
    required=True,
    metavar="MODEL",
    shell_complete=complete_model,
    help="The model that answers.",
)
@click.option(
    "--draft",
    metavar="MODEL",
    shell_complete=complete_model,
    help="A small model of the same family.",
)
@click.option(
    "--head",
    metavar="MODEL",
    shell_complete=complete_model,
    help="A trained head in a file of its own.",
)
@click.option("--description", default="", help="For the list of models.")
@click.option(
    "--ctx",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    help="Context in tokens.",
)
def add(
    *, name: str, target: str, draft: str | None, head: str | None, description: str, ctx: int
) -> None:
    """Name a pair of your own.

    A MODEL is a GGUF file, hf:owner/repo/file.gguf, owner/repo:QUANT, or a preset's. Models
    of the hub are pinned to what it has now.

    \b
        localspec models add mine --target T.gguf --draft D.gguf
        localspec models add qwen --draft qwen2.5-7b \\
            --target Qwen/Qwen2.5-7B-Instruct-GGUF:Q8_0
    """
    new = NewPreset(
        name=name,
        target=target,
        draft=draft,
        head=head,
        description=description or name,
        context_length=ctx,
    )
    with waiting(lambda: "Looking at the models …"):
        add_preset(new)
    click.echo(f"{name} added to {user_presets_file()}", err=True)


@models.command()
@click.argument("preset", shell_complete=complete_preset)
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(*, preset: str, yes: bool) -> None:
    """Delete the files that localspec fetched for a preset.

    Files that another preset uses, or that another tool put into the cache, stay.
    """
    removal = installed.removal_of(find_preset(preset))
    for file, users in removal.shared.items():
        click.echo(f"{file.name} stays: {', '.join(users)} uses it", err=True)
    for file in removal.foreign:
        click.echo(f"{file.name} stays: another tool put it there", err=True)
    if not removal.owned:
        click.echo("Nothing to remove.", err=True)
        return
    for file, size in removal.owned.items():
        click.echo(f"{file.repo} {file.file}: {readable_bytes(size)}", err=True)
    if not yes:
        question = f"Remove and free {readable_bytes(removal.num_bytes)}?"
        click.confirm(question, abort=True, err=True)
    click.echo(f"{readable_bytes(installed.remove(removal))} freed", err=True)


@models.command()
@click.argument("presets", nargs=-1, metavar="[PRESET]...", shell_complete=complete_preset)
def verify(*, presets: tuple[str, ...]) -> None:
    """Read files again and compare them with their sums; without names, all that are here."""
    chosen = (
        [find_preset(name) for name in presets]
        if presets
        else [p for p in load_presets().values() if state_of(p).state == "ready"]
    )
    damaged = []
    for preset in chosen:
        found = damaged_files(preset, lambda _num_bytes: None)
        click.echo(f"{preset.name}: {'damaged' if found else 'ok'}")
        damaged += found
    if damaged:
        raise DownloadError(
            f"damaged: {', '.join(str(path) for path in dict.fromkeys(damaged))}",
            "Remove them (localspec models remove PRESET) and download again.",
        )


def _as_object(state: PresetState) -> dict[str, Any]:
    preset = state.preset
    return {
        "name": preset.name,
        "description": preset.description,
        "state": state.state,
        "size_bytes": state.size_bytes,
        "context_length": preset.context_length,
        "max_context_length": preset.max_context_length,
        "notes": preset.notes,
        "unconfirmed": preset.unconfirmed,
        "target": _model_object(preset.target),
        "draft": None if preset.draft is None else _model_object(preset.draft),
        "head": None if preset.head is None else _model_object(preset.head),
    }


def _model_object(model: Any) -> dict[str, Any]:
    common = {"quantization": model.quantization, "license": model.license}
    if isinstance(model, HubModel):
        files = [
            {"repo": f.repo, "file": f.file, "revision": f.revision,
             "size_bytes": f.size_bytes, "sha256": f.sha256}
            for f in model.files
        ]  # fmt: skip
        return {"kind": "hub", **common, "files": files}
    kind = "packaged" if isinstance(model, PackagedModel) else "local"
    return {"kind": kind, **common, "path": str(model.path)}
