"""`localspec models verify`"""

from __future__ import annotations

import click

from localspec.errors import DownloadError
from localspec.installed import damaged_files, state_of
from localspec.presets import find_preset, load_presets


@click.command()
@click.argument("presets", nargs=-1, metavar="[PRESET]...")
def verify(*, presets: tuple[str, ...]) -> None:
    """Read files again and compare them with their sums; without names, all that are here."""
    chosen = (
        [find_preset(name) for name in presets]
        if presets
        else [p for p in load_presets().values() if state_of(p).state == "ready"]
    )
    damaged = []
    for preset in chosen:
        found = damaged_files(preset, lambda _num_bytes: None)
        click.echo(f"{preset.name}: {'damaged' if found else 'ok'}")
        damaged += found
    if damaged:
        raise DownloadError(
            f"damaged: {', '.join(str(path) for path in dict.fromkeys(damaged))}",
            "Remove them (localspec models remove PRESET) and download again.",
        )
