"""`localspec models`: the list, and the commands on single presets"""

from __future__ import annotations

import json
from typing import Any

import click

from localspec.cli.bars import readable_bytes
from localspec.cli.models_add import add
from localspec.cli.models_remove import remove
from localspec.cli.models_verify import verify
from localspec.cli.screen import printable
from localspec.hub import locate
from localspec.installed import PresetState, state_of
from localspec.preset import HubModel, PackagedModel
from localspec.presets import find_preset, load_presets


@click.group(invoke_without_command=True)
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
@click.argument("preset")
def path(*, preset: str) -> None:
    """Print the paths of a preset's target and draft, a line each."""
    for found in locate(find_preset(preset)):
        if found is not None:
            click.echo(found)


models.add_command(remove)
models.add_command(verify)
models.add_command(add)


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
