"""`localspec doctor`"""

from __future__ import annotations

import click

from localspec.cli.help import Command
from localspec.cli.installation import inspect_installation
from localspec.cli.json_output import json_option, write_json
from localspec.cli.shared_options import shared


@click.command(cls=Command)
@json_option("object with everything found")
@shared("rpc", help="Check these RPC servers, too.")
def doctor(*, as_json: bool, rpc: tuple[str, ...] | None) -> None:
    """Show what is installed, and what to improve.

    Versions, the build of llama.cpp, devices, cores, memory and caches. Each problem comes with
    its remedy. Nothing is sent over the network, except to llama.cpp RPC servers named here or
    in one of your presets.

    \b
        localspec doctor
        localspec doctor --json
        localspec doctor --rpc workshop-pc:50052
    """
    sheet = inspect_installation(rpc or ())
    if as_json:
        write_json(sheet.values, problems=sheet.problems)
        return
    click.echo(sheet.text())
    if not sheet.problems:
        click.echo("\nNo problems found.")
