"""Tries to break localspec, for a minute or for a night, and says what was lost.

    python scripts/faults/campaign.py --minutes 5
    python scripts/faults/campaign.py files engine --minutes 60 --seed 7 --write

Each class of faults is a module of fault_classes. The time is shared among those named, all by
default. `--write` puts their tables into docs/reliability.md. Exit status 1 says that something
was lost; its first cases are printed, with what repeats them.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, cast

ROOT = Path(__file__).parents[2]
# Beside this: what makes tiny models, and clients of a server.
sys.path += [
    str(ROOT / each)
    for each in ("scripts/develop", "scripts/heads", "scripts/measure", "tests")
]

from fault_classes.tried import Tried  # noqa: E402
from marked_part import with_part  # noqa: E402

PAGE = ROOT / "docs/reliability.md"
CLASSES = (
    *("files", "numbers", "downloads", "server", "concurrency", "resources", "engine", "law"),
)
_SHOWN_LOSSES = 20


class FaultClass(Protocol):
    """A module of fault_classes; the first line of its docstring is the heading on the page."""

    def tries(self, seconds: float, seed: int) -> Iterator[Tried]:
        """Try to break localspec for about so many seconds; the seed repeats it."""


def table(rows: Iterable[Tried]) -> str:
    """The rows in Markdown."""
    lines = ["| tried | what has to hold | times | lost |", "|---|---|---|---|"]
    for tried in rows:
        count = f"{tried.count:,}".replace(",", " ")
        lost = len(tried.losses) or ("nothing" if tried.count else "not tried")
        lines.append(f"| {tried.what} | {tried.holds} | {count} | {lost} |")
    return "\n".join(lines) + "\n"


def run(name: str, seconds: float, seed: int, *, write: bool) -> int:
    """Run one class; how much was lost."""
    began = time.monotonic()
    module = importlib.import_module(f"fault_classes.{name}")
    rows: list[Tried] = []
    try:
        rows.extend(cast(FaultClass, module).tries(seconds, seed))
    except (Exception, SystemExit) as error:  # the next class goes on
        traceback.print_exc()
        last = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
        rows.append(Tried(name, "the class runs to its end", 1, [last]))
    heading = (module.__doc__ or "").splitlines()[0].removesuffix(".")
    took = time.monotonic() - began
    print(f"\n## {heading}\n\n{table(rows)}\n{took:.0f} s, seed {seed}", flush=True)
    losses = [loss for tried in rows for loss in tried.losses]
    for loss in losses[:_SHOWN_LOSSES]:
        print(f"lost: {loss}", flush=True)
    if write:
        how = (
            f"\n`python scripts/faults/campaign.py {name} --seed {seed}`, {took:.0f} s, "
            f"Python {platform.python_version()} on {sys.platform}.\n\n"
        )
        marks = (f"<!-- {name} -->\n", f"<!-- end of {name} -->")
        PAGE.write_text(with_part(PAGE.read_text("utf-8"), *marks, how + table(rows)), "utf-8")
    return len(losses)


def main() -> int:
    """Run the classes asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("classes", nargs="*", choices=(*CLASSES, []), metavar="CLASS")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="into docs/reliability.md")
    asked = parser.parse_args()
    names = asked.classes or CLASSES
    share = asked.minutes * 60 / len(names)
    return int(sum(run(name, share, asked.seed, write=asked.write) for name in names) > 0)


if __name__ == "__main__":
    sys.exit(main())
