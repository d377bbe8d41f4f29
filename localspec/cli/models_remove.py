"""`localspec models remove`"""

from __future__ import annotations

import click

from localspec import installed
from localspec.cli.bars import readable_bytes
from localspec.presets import find_preset


@click.command()
@click.argument("preset")
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
