"""The engine.

Operations in any order on engines of tiny files, in processes that may die of them. An answer
is held against a fresh engine's, and a loss is shortened to the operations that it needs.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fault_classes.engine_kinds import REAL, kinds_here
from fault_classes.engine_machine import drawn_operations
from fault_classes.engine_world import Operation
from fault_classes.tried import Tried

_FOLDER = Path(__file__).parents[1]
_HOLDS = "text, rows and conversation are those of a fresh engine of the target alone"
_MORE_S = 120.0  # beyond its time, in which a process has to end
SHORTENING_S = 180.0
_SLICE_S = 15.0


def tries(seconds: float, seed: int) -> Iterator[Tried]:
    """A share of the time for every kind of engine that can be made here."""
    names = kinds_here(seconds, seed)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            yield of_kind(name, seconds / len(names), seed, Path(folder))
    if REAL not in kinds_here(math.inf, seed):
        yield Tried(REAL, "skipped: LOCALSPEC_REAL_MODELS names no folder that has it", 0, [])


def of_kind(name: str, seconds: float, seed: int, folder: Path, *more: str) -> Tried:
    """Operations on engines of a kind, until the time is over or something was lost.

    more: arguments of the process, for a test that plants a fault.
    """
    asked = {"kind": name, "seed": seed, "seconds": seconds}
    found = in_process(asked, folder, *more)
    if "loss" not in found:
        return Tried(name, _HOLDS, found["count"], [])
    number = found["number"]
    operations = drawn_operations(f"{name}/{number}", found["at"])
    shortest = _shortened(name, number, operations, folder, *more)
    words = " ".join(f"{each.name}({each.first},{each.second})" for each in shortest)
    return Tried(name, _HOLDS, found["count"], [f"{name}, {number}: {found['loss']}; {words}"])


def in_process(asked: dict[str, Any], folder: Path, *more: str) -> dict[str, Any]:
    """What a process found. Its death, and that it hangs, are losses as well."""
    progress = folder / "progress"
    progress.write_text("")
    arguments = [str(folder), str(progress), json.dumps(asked), *more]
    # As a module: a script's own folder would hide modules of the standard library.
    command = [sys.executable, "-m", "fault_classes.engine_child", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=_FOLDER,
            capture_output=True,
            text=True,
            timeout=asked.get("seconds", 0.0) + _MORE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _died("it hangs", asked, progress)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return _died(f"the process ended with {done.returncode}: {last:.200}", asked, progress)


def _died(loss: str, asked: dict[str, Any], progress: Path) -> dict[str, Any]:
    known = [int(each) for each in progress.read_text().split()[:2]]
    number, at = known if len(known) == 2 else (asked.get("number", 0), 0)
    return {"count": at + 1, "number": number, "at": at + 1, "loss": loss}


def _shortened(
    name: str, number: int, operations: Sequence[Operation], folder: Path, *more: str
) -> Sequence[Operation]:
    """Without the operations that it fails without; as they were where it does not repeat."""
    end = time.monotonic() + SHORTENING_S

    def fails(some: Sequence[Operation]) -> bool:
        asked = {"kind": name, "number": number, "operations": some}
        return bool(some) and "loss" in in_process(asked, folder, *more)

    if not fails(operations):
        return operations[-3:]
    size = max(len(operations) // 2, 1)
    while time.monotonic() < end:
        begin = 0
        while begin < len(operations) and time.monotonic() < end:
            fewer = [*operations[:begin], *operations[begin + size :]]
            if fails(fewer):
                operations = fewer
            else:
                begin += size
        if size == 1:
            break
        size //= 2
    return operations
