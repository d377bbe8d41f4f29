"""Fetch a preset's files and load them, with bars of one's own.

python examples/download_bar.py smollm2-1.7b
"""

from __future__ import annotations

import sys

import localspec

WIDTH = 40


def draw(name: str, share: float) -> None:
    """A bar on the current line."""
    full = round(WIDTH * share)
    print(f"\r{name:<40.40} [{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%}", end="")


def on_progress(progress: localspec.Progress) -> None:
    """Called whenever a file has come further."""
    draw(progress.file.file, progress.received_bytes / max(1, progress.total_bytes))
    if progress.state == "done":
        print()


def main(preset: str) -> None:
    localspec.download(preset, on_progress=on_progress)
    with localspec.load(preset, progress=lambda share: draw("loading", share)) as engine:
        print(f"\n{engine.description}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/download_bar.py PRESET")
    main(sys.argv[1])
