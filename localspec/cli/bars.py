"""Download progress: a bar for each file; on a pipe one line for each finished file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from localspec.cli.quantities import readable_bytes
from localspec.cli.standard_streams import is_terminal
from localspec.hub import download_job
from localspec.presets import downloads

_STATES = {"checking": "checking the file", "waiting": "waiting"}


def fetch_with_bars(plan: downloads.DownloadPlan, *, reuse: bool) -> list[Path]:
    """Download with progress on stderr. Returns the path of each file of the plan."""
    if not is_terminal(sys.stderr):
        return downloads.run_download(plan, _say_when_done, reuse=reuse)
    # Imported here, because every command imports this module.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bars = Progress(
        TextColumn("{task.fields[name]}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
        console=Console(stderr=True),
    )
    tasks = {
        remote.file: bars.add_task("", total=remote.size_bytes, name=remote.file.name, state="")
        for remote in (*plan.unchecked, *plan.missing)
    }

    def show(event: download_job.Progress) -> None:
        state = _STATES.get(event.state, "")
        bars.update(tasks[event.file], completed=event.received_bytes, state=state)

    with bars:
        return downloads.run_download(plan, show, reuse=reuse)


def _say_when_done(event: download_job.Progress) -> None:
    if event.state == "done":
        click.echo(f"{event.file.name}: {readable_bytes(event.total_bytes)}", err=True)
