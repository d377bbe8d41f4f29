"""`localspec download`, and other commands' offer to download missing files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from localspec.cli.completion_command import complete_preset
from localspec.cli.flags import option
from localspec.cli.help import Command
from localspec.cli.progress_line import waiting
from localspec.cli.screen import readable_bytes, say
from localspec.cli.standard_streams import is_terminal
from localspec.hub import transfer
from localspec.presets.downloads import DownloadPlan, plan_download, run_download
from localspec.presets.located import is_missing

_STATES = {"checking": "checking the file", "waiting": "waiting"}


@click.command(cls=Command)
@click.argument(
    "presets", nargs=-1, required=True, metavar="PRESET...", shell_complete=complete_preset
)
@click.option(
    "--local-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Put the files into this folder instead of the shared hub cache.",
)
@click.option(
    "--reuse/--no-reuse",
    default=None,
    help="Use files that LM Studio, Ollama or llama.cpp stored. [default: ask; no on a pipe]",
)
@option(
    "mmproj",
    flags=["--mmproj/--no-mmproj"],
    heading="Model",
    default=True,
    help="Download the projector, too, with which a model sees images. [default: yes]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be downloaded.")
def download(
    *,
    presets: tuple[str, ...],
    local_dir: Path | None,
    reuse: bool | None,
    mmproj: bool,
    dry_run: bool,
) -> None:
    """Download the files of presets, and print their paths.

    Files already on this machine are not downloaded again. An interrupted download resumes
    where it stopped. Every file is checked against its sha256, also a file already in DIR,
    which is never replaced. PRESET can also be hf:owner/repo/file.gguf,
    hf:owner/repo@revision/file.gguf or owner/repo:QUANT.

    \b
        localspec download qwen3.5-9b
        localspec download smollm2-1.7b --local-dir models
        localspec download bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_0
    """
    plan = _plan(presets, local_dir, mmproj=mmproj)
    for remote in plan.unchecked:
        say(f"{remote.file.name} is already in {plan.store.root} and will be checked")
    for remote in plan.missing:
        size = readable_bytes(remote.size_bytes)
        say(f"{remote.file.repo} {remote.file.file}: {size}")
    if dry_run:
        say(
            f"{readable_bytes(plan.num_bytes)} to download to {plan.store.root}, "
            f"{readable_bytes(plan.free_bytes)} free"
        )
        return
    if reuse is None:
        reuse = _ask_reuse(plan)
    for path in _fetch(plan, reuse=reuse):
        click.echo(path)


def _plan(names: Sequence[str], local_dir: Path | None, *, mmproj: bool = True) -> DownloadPlan:
    with waiting(lambda: "Asking the hub …"):
        return plan_download(
            names,
            local_dir,
            lambda _progress: None,
            mmproj=mmproj,
        )


def _ask_reuse(plan: DownloadPlan) -> bool:
    """Whether to use files of other programs: asks on a terminal, prints a note on a pipe."""
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

    Does nothing on a pipe or after a no: the error of loading then names the command to type.
    """
    if not is_missing(name) or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return
    plan = _plan([name], None)
    question = (
        f"{name} is not on this machine. Download {readable_bytes(plan.num_bytes)} to "
        f"{plan.store.root} ({readable_bytes(plan.free_bytes)} free)?"
    )
    if click.confirm(question, default=True, err=True):
        _fetch(plan, reuse=_ask_reuse(plan))


def _fetch(plan: DownloadPlan, *, reuse: bool) -> list[Path]:
    """Download with a bar for each file on stderr; on a pipe, a line for each finished file.

    Returns the paths of the plan's files.
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
    if event.state == "done":
        say(f"{event.file.name}: {readable_bytes(event.total_bytes)}")
