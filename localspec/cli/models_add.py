"""`localspec models add`"""

from __future__ import annotations

import click

from localspec.cli.waiting import waiting
from localspec.presets import user_presets_file
from localspec.user_presets import NewPreset, add_preset


@click.command()
@click.argument("name")
@click.option("--target", required=True, metavar="MODEL", help="The model that answers.")
@click.option("--draft", metavar="MODEL", help="A small model of the same family.")
@click.option("--description", default="", help="For the list of models.")
@click.option("--ctx", type=click.IntRange(min=1), default=8192, show_default=True)
def add(*, name: str, target: str, draft: str | None, description: str, ctx: int) -> None:
    """Name a pair of your own.

    A MODEL is a GGUF file, hf:owner/repo/file.gguf, owner/repo:QUANT, or a preset's. Models
    of the hub are pinned to what it has now.

    \b
        localspec models add mine --target T.gguf --draft D.gguf
        localspec models add qwen --target Qwen/Qwen2.5-7B-Instruct-GGUF:Q8_0 --draft qwen2.5-7b
    """
    new = NewPreset(
        name=name,
        target=target,
        draft=draft,
        description=description or name,
        context_length=ctx,
    )
    with waiting(lambda: "Looking at the models …"):
        add_preset(new)
    click.echo(f"{name} added to {user_presets_file()}", err=True)
