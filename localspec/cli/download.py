"""`localspec download`, and the question of other commands whether to download."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from localspec.cli.bars import fetch_with_bars
from localspec.cli.completion import complete_preset
from localspec.cli.flags import option
from localspec.cli.help import Command
from localspec.cli.quantities import readable_bytes
from localspec.cli.screen import printable
from localspec.cli.standard_streams import is_terminal
from localspec.cli.waiting import waiting
from localspec.presets.downloads import DownloadPlan, plan_download
from localspec.presets.located import is_missing


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
    help="Use files of LM Studio, Ollama or llama.cpp. [default: ask; no on a pipe]",
)
@option(
    "mmproj",
    flags=["--mmproj/--no-mmproj"],
    heading="Model",
    default=True,
    help="Fetch the projector, with which a model sees images. [default: yes]",
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

    Files that are on this machine already are used. An interrupted download resumes where it
    stopped, and every file is checked against its sha256. A file that DIR already has is
    compared, and never replaced. Also takes hf:owner/repo/file.gguf,
    hf:owner/repo@revision/file.gguf and owner/repo:QUANT.

    \b
        localspec download qwen2-7b
        localspec download smollm2-1.7b --local-dir models
        localspec download bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_0
    """
    plan = _plan(presets, local_dir, mmproj=mmproj)
    for remote in plan.unchecked:
        click.echo(
            f"{remote.file.name} is in {plan.place.root} already and is compared", err=True
        )
    for remote in plan.missing:
        size = readable_bytes(remote.size_bytes)
        click.echo(f"{remote.file.repo} {remote.file.file}: {size}", err=True)
    if dry_run:
        click.echo(
            f"{readable_bytes(plan.num_bytes)} to download to {plan.place.root}, "
            f"{readable_bytes(plan.free_bytes)} free",
            err=True,
        )
        return
    for path in fetch_with_bars(plan, reuse=_ask_reuse(plan) if reuse is None else reuse):
        click.echo(path)


def _plan(names: Sequence[str], local_dir: Path | None, *, mmproj: bool = True) -> DownloadPlan:
    with waiting(lambda: "Asking the hub …"):
        return plan_download(names, local_dir, lambda _progress: None, mmproj=mmproj)


def _ask_reuse(plan: DownloadPlan) -> bool:
    """Whether to use files of other programs: asked on a terminal, a note on a pipe."""
    for file, candidate in plan.elsewhere.items():
        text = f"{candidate.owner} has {file.name}: {candidate.path}"
        click.echo(printable(text), err=True)
    if not plan.elsewhere:
        return False
    if not is_terminal(sys.stdin):
        click.echo("To use it instead of downloading it again: --reuse", err=True)
        return False
    return click.confirm("Use it instead of downloading it again?", default=True, err=True)


def offer_download(name: str) -> None:
    """On a terminal, ask whether to download missing files of a preset or model, and do so.

    Elsewhere, and after a no, nothing happens: the error of loading says what to type.
    """
    if not is_missing(name) or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return
    plan = _plan([name], None)
    question = (
        f"{name} is not on this machine. Download {readable_bytes(plan.num_bytes)} to "
        f"{plan.place.root} ({readable_bytes(plan.free_bytes)} free)?"
    )
    if click.confirm(question, default=True, err=True):
        fetch_with_bars(plan, reuse=_ask_reuse(plan))
