"""`localspec download`, and the offer to do it for a command that needs the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from localspec.cli.bars import fetch_with_bars, readable_bytes, shows_bars
from localspec.cli.completion import complete_preset
from localspec.cli.help import Command
from localspec.cli.standard_input import on_terminal
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
    help="Put the files into this folder instead of the hub's shared cache.",
)
@click.option(
    "--reuse/--no-reuse",
    default=None,
    help="Take files that LM Studio, Ollama or llama.cpp keep. [default: ask; no on a pipe]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be fetched.")
def download(
    *, presets: tuple[str, ...], local_dir: Path | None, reuse: bool | None, dry_run: bool
) -> None:
    """Fetch the files of presets; their paths on stdout.

    A file that is here already is used. An interrupted download goes on where it stopped, and
    every file is checked against its sha256. What stands in DIR under a file's name already is
    compared with it, and never replaced. Besides presets: hf:owner/repo/file.gguf,
    hf:owner/repo@revision/file.gguf and owner/repo:QUANT.

    \b
        localspec download qwen2-7b
        localspec download smollm2-1.7b --local-dir models
        localspec download bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_0
    """
    plan = _plan(presets, local_dir)
    for remote in plan.unchecked:
        click.echo(f"{remote.file.name} stands in {plan.place.root} and is compared", err=True)
    for remote in plan.missing:
        size = readable_bytes(remote.size_bytes)
        click.echo(f"{remote.file.repo} {remote.file.file}: {size}", err=True)
    if dry_run:
        click.echo(
            f"{readable_bytes(plan.num_bytes)} to fetch into {plan.place.root}, "
            f"{readable_bytes(plan.free_bytes)} free",
            err=True,
        )
        return
    for path in fetch_with_bars(plan, reuse=_ask_reuse(plan) if reuse is None else reuse):
        click.echo(path)


def _plan(names: Sequence[str], local_dir: Path | None) -> DownloadPlan:
    with waiting(lambda: "Asking the hub …"):
        return plan_download(names, local_dir, lambda _progress: None)


def _ask_reuse(plan: DownloadPlan) -> bool:
    """Whether to take what other programs keep: asked on a terminal, told on a pipe."""
    for file, candidate in plan.elsewhere.items():
        click.echo(f"{candidate.owner} has {file.name}: {candidate.path}", err=True)
    if not plan.elsewhere:
        return False
    if not on_terminal():
        click.echo("To take it instead of fetching it again: --reuse", err=True)
        return False
    return click.confirm("Take it instead of fetching it again?", default=True, err=True)


def offer_download(name: str) -> None:
    """On a terminal, ask whether to fetch what is missing of a preset or model, and do so.

    Elsewhere, and after a no, it does nothing: loading it tells what to type.
    """
    if not is_missing(name) or not (on_terminal() and shows_bars()):
        return
    plan = _plan([name], None)
    question = (
        f"{name} is not on this machine. Fetch {readable_bytes(plan.num_bytes)} into "
        f"{plan.place.root} ({readable_bytes(plan.free_bytes)} free)?"
    )
    if click.confirm(question, default=True, err=True):
        fetch_with_bars(plan, reuse=_ask_reuse(plan))
