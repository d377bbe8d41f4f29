"""Whether a libllama multiplies right, and faster than another, in processes of their own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.kernels import trial
from localspec.kernels.steps import OnStep, last_line

_NUM_ROUNDS = 3
_LEAST_SPEEDUP = 1.05  # of all products together; noise reaches less
_MOST_SLOWDOWN = 0.9  # of any product


class NotFasterError(LocalspecError):
    """A build computes right, and is no faster than what is installed.

    Args:
        speedups: How many times as fast it is, by product.
    """

    def __init__(self, message: str, speedups: dict[str, float]) -> None:
        super().__init__(
            message,
            "Nothing was kept. If other programs were busy, run it again without them.",
        )
        self.speedups = speedups


def compare(installed: Path, made: Path, on_progress: OnStep) -> dict[str, float]:
    """How many times as fast a library multiplies as the installed one, by product.

    Both are timed in turn, each time in a new process. Raises LocalspecError if the made one
    multiplies wrong.
    """
    times: dict[Path, list[dict[str, float]]] = {installed: [], made: []}
    for number in range(_NUM_ROUNDS):
        on_progress("comparing it with what is installed", number / _NUM_ROUNDS)
        for folder, rounds in times.items():
            rounds.append(_tried(folder, is_new=folder == made))
    speedups = {}
    for product in times[made][0]:
        before = min(each[product] for each in times[installed])
        after = min(each[product] for each in times[made])
        speedups[product] = before / after
    return speedups


def _tried(folder: Path, *, is_new: bool) -> dict[str, float]:
    """Seconds by product. Raises LocalspecError if a new library multiplies wrong."""
    library = next(file for file in sorted(folder.glob("*llama.*")) if file.exists())
    back_ends = (str(folder), str(folder.parent / "bin"))
    command = [sys.executable, "-I", "-S", trial.__file__, str(library)]
    done = subprocess.run(
        [*command, *back_ends],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        what = "what was compiled" if is_new else "the installed libllama"
        raise LocalspecError(
            f"{what} ended a trial of its products: status {done.returncode}, "
            f"{last_line(done.stderr)}",
            "Nothing was kept. Report this with the output of localspec doctor.",
        ) from None
    if is_new and found["wrong"]:
        raise LocalspecError(
            f"what was compiled multiplies wrong: {'; '.join(found['wrong'])}",
            "Nothing was kept. Try the other compiler: localspec kernels --zig.",
        )
    seconds: dict[str, float] = found["seconds"]
    return seconds


def require_faster(speedups: dict[str, float]) -> None:
    """Raise NotFasterError if that is not faster on the whole, or slower in a part."""
    together = statistics.geometric_mean(speedups.values())
    slowest = min(speedups.values())
    if together < _LEAST_SPEEDUP or slowest < _MOST_SLOWDOWN:
        raise NotFasterError(
            "what was compiled is no faster than what is installed: "
            f"{together:.2f} of its speed, {slowest:.2f} in the worst product",
            speedups,
        )
