"""`localspec download`"""

from __future__ import annotations

from pathlib import Path

import click

from localspec.cli.completers import complete_preset
from localspec.cli.download_dialogue import ask_hub, ask_reuse, download_with_bars
from localspec.cli.flags import option
from localspec.cli.help import Command
from localspec.cli.screen import readable_bytes, say


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
    plan = ask_hub(presets, local_dir, mmproj=mmproj)
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
        reuse = ask_reuse(plan)
    for path in download_with_bars(plan, reuse=reuse):
        click.echo(path)
