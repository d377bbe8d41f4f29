"""Downloads of models as a person sees them: the question before, and bars meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from localspec.cli.progress_line import waiting
from localspec.cli.screen import readable_bytes, say
from localspec.cli.standard_streams import is_terminal
from localspec.hub import transfer
from localspec.presets.downloads import DownloadPlan, plan_download, run_download
from localspec.presets.located import is_missing

# What the bar of a file shows for some states of its download.
_STATES = {"checking": "checking the file", "waiting": "waiting"}


def ask_hub(
    names: Sequence[str],
    local_dir: Path | None,
    *,
    mmproj: bool = True,
) -> DownloadPlan:
    """Ask the hub which files of presets to download; a line says so while it is asked.

    Args:
        names: Presets, or names of files on the hub.
        local_dir: Where the files go; None for the shared hub cache.
        mmproj: Whether to download projectors, too.
    """
    with waiting(lambda: "Asking the hub …"):
        return plan_download(
            names,
            local_dir,
            lambda _progress: None,
            mmproj=mmproj,
        )


def ask_reuse(plan: DownloadPlan) -> bool:
    """Ask whether to use files that other programs stored. Returns False if there are none.

    Without a terminal nobody is asked: a note names the option, and the result is False.
    """
    for file, candidate in plan.elsewhere.items():
        say(f"{candidate.owner} has {file.name}: {candidate.path}")
    if not plan.elsewhere:
        return False
    if not is_terminal(sys.stdin):
        say("To use these files instead of downloading them again: --reuse")
        return False
    return click.confirm("Use these files instead of a new download?", default=True, err=True)


def offer_download(name: str) -> None:
    """On a terminal, offer to download the missing files of a preset or model.

    Does nothing on a pipe, or if the user says no: loading then fails with an error that names
    the command to type.
    """
    can_ask = is_terminal(sys.stdin) and is_terminal(sys.stderr)
    if not is_missing(name) or not can_ask:
        return
    plan = ask_hub([name], None)
    question = (
        f"{name} is not on this machine. Download {readable_bytes(plan.num_bytes)} to "
        f"{plan.store.root} ({readable_bytes(plan.free_bytes)} free)?"
    )
    if click.confirm(question, default=True, err=True):
        download_with_bars(plan, reuse=ask_reuse(plan))


def download_with_bars(plan: DownloadPlan, *, reuse: bool) -> list[Path]:
    """Download the files of a plan, and return the paths of all its files.

    Stderr shows a bar for each file; if it is a pipe, a line for each finished file.

    Args:
        plan: what to download, and where to.
        reuse: whether files that other programs stored are used.
    """
    if not is_terminal(sys.stderr):
        return run_download(plan, _say_when_done, reuse=reuse)
    # Imported here, because every command imports this module, and should start fast.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bars = Progress(
        "{task.description}",
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        "{task.fields[state]}",
        console=Console(stderr=True),
    )
    tasks = {}
    for remote in (*plan.unchecked, *plan.missing):
        task = bars.add_task(remote.file.name, total=remote.size_bytes, state="")
        tasks[remote.file] = task

    def show(event: transfer.Progress) -> None:
        state = _STATES.get(event.state, "")
        bars.update(tasks[event.file], completed=event.received_bytes, state=state)

    with bars:
        return run_download(plan, show, reuse=reuse)


def _say_when_done(event: transfer.Progress) -> None:
    """Print a line if a file's download is finished."""
    if event.state == "done":
        say(f"{event.file.name}: {readable_bytes(event.total_bytes)}")
