"""Files.

Whatever localspec reads is changed, part by part as its format has them, and read in processes
of their own; with atheris also by the code that is reached.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fault_classes import guided
from fault_classes.tried import Tried
from fault_classes.watched import MODULES, Work, kinds_of, outcomes, samples_made

_AT_ONCE = 2  # processes
_REPEAT = "python scripts/faults/repeat_file.py"


def tries(
    seconds: float,
    seed: int,
    modules: Sequence[str] = MODULES,
    names: Sequence[str] | None = None,
) -> Iterator[Tried]:
    """Inputs of every kind of these modules, or of those named."""
    kinds = kinds_of(modules)
    chosen = tuple(kinds) if names is None else names
    by_code = [name for name in chosen if not kinds[name].is_native]
    if not guided.is_installed():
        by_code = []
    total = sum(kinds[name].share for name in (*chosen, *by_code)) / _AT_ONCE
    making = threading.Lock()
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(_AT_ONCE) as pool:

        def try_kind(name: str, *, is_guided: bool) -> Tried:
            kind, folder = kinds[name], Path(root) / ("guided" if is_guided else "") / name
            work = Work(modules, name, seed, folder)
            with making:  # what makes them is not made for threads
                samples_made(kind, folder)
            share_s = seconds * kind.share / total
            if is_guided:
                return guided.tried(work, share_s)
            return _tried(kind.what, work, share_s)

        yield from pool.map(partial(try_kind, is_guided=False), chosen)
        yield from pool.map(partial(try_kind, is_guided=True), by_code)
    if not guided.is_installed():
        yield Tried("by the code that is reached", "atheris is not installed here", 0, [])


def _tried(what: str, work: Work, seconds: float) -> Tried:
    num_read, num_refused = 0, 0
    losses: list[str] = []
    for outcome in outcomes(work, seconds):
        num_read += outcome.num_read
        num_refused += outcome.num_refused
        losses += [
            f"{work.name}: {lost} ({_REPEAT} {work.name} {number} --seed {work.seed})"
            for number, lost in outcome.losses
        ]
    holds = f"read ({num_read}) or refused in words ({num_refused})"
    return Tried(what, holds, num_read + num_refused + len(losses), losses)
