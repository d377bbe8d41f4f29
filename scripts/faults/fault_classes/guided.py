"""Inputs that atheris makes by the code that they reach, for what Python reads.

    python -m fault_classes.guided KIND FOLDER SECONDS SEED MODULES

reads them, in a process of its own; what is lost lies in FOLDER/lost, beside what happened.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from fault_classes.kinds import samples
from fault_classes.tried import Tried
from fault_classes.watched import MOST_BYTES, PATIENCE_S, Work, kinds_of, outcome_of

KEPT = Path(tempfile.gettempdir()) / "localspec-faults"
_MOST_INPUT = 200_000  # bytes
_ENDS = ("crash", "timeout", "oom")  # how atheris names the inputs at which it ends
_EXECUTED = re.compile(r"stat::number_of_executed_units: *(\d+)")


def is_installed() -> bool:
    """Whether atheris is here, which has no wheels for all systems."""
    return importlib.util.find_spec("atheris") is not None


def tried(work: Work, seconds: float) -> Tried:
    """What became of inputs of a kind, whose samples are made."""
    what = f"{kinds_of(work.modules)[work.name].what}, by the code that is reached (atheris)"
    command = [
        sys.executable,
        "-m",
        "fault_classes.guided",
        work.name,
        str(work.folder),
        str(max(1, int(seconds))),
    ]
    command += [str(work.seed), ",".join(work.modules)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    most_s = seconds + 4 * PATIENCE_S
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=work.folder,  # and not where there is a localspec that is not installed
            capture_output=True,
            timeout=most_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Tried(what, "", 0, [*_losses(work), f"{work.name}: atheris did not end"])
    said = done.stderr.decode(errors="replace")
    losses = _losses(work)
    if done.returncode:
        losses.append(f"{work.name}: its process ended ({done.returncode}): {said[-200:]!r}")
    executed = _EXECUTED.search(said)
    return Tried(what, "read or refused in words", int(executed[1]) if executed else 0, losses)


def _losses(work: Work) -> list[str]:
    """A line for each input that was lost, and for each at which atheris ended itself."""
    lost = work.folder / "lost"
    read = [
        _kept(work, path.with_suffix(".input"), path.read_text("utf-8"))
        for path in sorted(lost.glob("*.txt"))
    ]
    ended = [path for kind in _ENDS for path in sorted(lost.glob(f"{kind}-*"))]
    return read + [_kept(work, path, f"atheris ended: {path.name}") for path in ended]


def _kept(work: Work, path: Path, happened: str) -> str:
    """A loss in a line, once its input is where it can be read again."""
    KEPT.mkdir(exist_ok=True)
    kept = KEPT / f"{work.name}-{path.stem}"
    shutil.copy(path, kept)
    repeat = f"python scripts/faults/repeat_file.py {work.name} --file {kept}"
    return f"{work.name}: {happened} ({repeat})"


def _read(name: str, folder: Path, seconds: str, seed: int, modules: Sequence[str]) -> None:
    """Read inputs for so long, and end the process."""
    import atheris

    kind, known = kinds_of(modules)[name], samples(folder)
    lost, corpus = folder / "lost", folder / "corpus"
    for path in (lost, corpus):
        path.mkdir(exist_ok=True)
    for number, data in enumerate(known):
        (corpus / f"{number}").write_bytes(data)
    with atheris.instrument_imports(include=["localspec"]):
        read = kind.opened(folder)
        for data in known:  # what is imported late
            outcome_of(read, data)

    def read_one(data: bytes) -> None:
        happened = outcome_of(read, data)
        if happened:
            path = lost / hashlib.sha256(happened.encode()).hexdigest()[:12]
            path.with_suffix(".input").write_bytes(data)
            path.with_suffix(".txt").write_text(happened, "utf-8")

    def change(data: bytes, most: int, number: int) -> bytes:
        random = Random(number)
        try:
            changed = kind.change(random.choice((data, *known)), random, known)
        except Exception:  # what is no longer whole is changed byte by byte
            changed = atheris.Mutate(data, most)
        return bytes(changed[:most])

    options = {
        "max_total_time": seconds,
        "seed": seed + 1,
        "max_len": _MOST_INPUT,
        "timeout": int(PATIENCE_S),
        "rss_limit_mb": 2 * MOST_BYTES >> 20,
        "artifact_prefix": f"{lost}/",
        "print_final_stats": 1,
    }
    arguments = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup([name, *arguments, str(corpus)], read_one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    _read(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5].split(","))
