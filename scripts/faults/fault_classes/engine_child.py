"""Does operations on an engine of one kind, in a process of its own, which may die of them.

    python -m fault_classes.engine_child FOLDER PROGRESS \\
        '{"kind": …, "seed": 0, "seconds": 60}' [PLANT.py]

What is done stands in the file PROGRESS before it is done; what was lost is printed as JSON. A
test has a file run before, which plants a fault.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path += [
    str(ROOT / each)
    for each in (
        "scripts/faults",
        "scripts/heads",
        "scripts/measure",
        "scripts/develop",
        "tests",
    )
]

from fault_classes.engine_kinds import KINDS, Keywords, load_kind, made, target_alone  # noqa: E402
from fault_classes.engine_machine import Machine, drawn_operations  # noqa: E402
from fault_classes.engine_model import Fresh, hold  # noqa: E402
from fault_classes.engine_world import Operation  # noqa: E402

PER_ENGINE = 250  # operations, then another engine is loaded


def run(asked: dict[str, Any], folder: Path, progress: Path) -> dict[str, Any]:
    """What was done: `count` operations, and the `loss`, if any."""
    os.environ.update(dict.fromkeys(("XDG_CACHE_HOME", "XDG_DATA_HOME"), str(folder / "home")))
    name = asked["kind"]
    own = folder / str(list(KINDS).index(name))
    child = _Child(_made_once(name, own), own, progress)
    if operations := asked.get("operations"):
        done = [Operation(*each) for each in operations]
        return {"count": len(done), **child.done(asked["number"], done)}
    end, count, number = time.monotonic() + asked["seconds"], 0, asked["seed"] * 10_000
    while time.monotonic() < end:
        drawn = drawn_operations(f"{name}/{number}", PER_ENGINE)
        found = child.done(number, drawn, end)
        count += found["at"]
        if "loss" in found:
            return {"count": count, "number": number, **found}
        number += 1
    return {"count": count}


def _made_once(name: str, folder: Path) -> Keywords:
    """Of files that an earlier process made there, if it came to that."""
    known = folder / "made.json"
    if not known.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        known.write_text(json.dumps(made(name, folder), default=str))
    return dict(json.loads(known.read_text()))


class _Child:
    """progress: a file that says where it is."""

    def __init__(self, keywords: Keywords, folder: Path, progress: Path) -> None:
        self._keywords, self._folder, self._progress = keywords, folder, progress
        self._fresh = Fresh(load_kind(target_alone(keywords)))
        self._unraisable: list[str] = []
        sys.unraisablehook = lambda found: self._unraisable.append(repr(found.exc_value))

    def done(
        self, number: int, operations: Sequence[Operation], end: float = math.inf
    ) -> dict[str, Any]:
        """How many were done on an engine, and what was lost at the last."""
        at = 0
        try:
            with self._progress.open("w") as file:
                machine = Machine(self._keywords, self._folder, number, self._fresh)
                for at, operation in enumerate(operations):
                    file.seek(0)
                    file.write(f"{number} {at} ")
                    file.flush()
                    machine.do(operation)
                    wrong = [each for each in self._unraisable if "Struck" not in each]
                    hold(not wrong, "raised where nobody can hear of it", *wrong)
                    if time.monotonic() > end:
                        break
            machine.close()
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("FAULTS_TRACEBACK"):
                traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            name = operations[at].name
            words = f"{name}: {type(error).__name__}: {error}"
            return {
                "at": at + 1,
                "loss": f"{words} ({Path(where.filename).name}:{where.lineno})",
            }
        return {"at": at + 1}


if __name__ == "__main__":
    for plant in sys.argv[4:]:
        runpy.run_path(plant)
    result = run(json.loads(sys.argv[3]), Path(sys.argv[1]), Path(sys.argv[2]))
    print("RESULT " + json.dumps(result), flush=True)
    os._exit(0)
