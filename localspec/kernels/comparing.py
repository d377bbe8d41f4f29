"""Finds out whether a libllama multiplies right, and faster than another.

Both run in processes of their own.
"""

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
_LEAST_SPEEDUP = 1.05  # of all products on average; noise reaches less
_LEAST_PRODUCT_SPEEDUP = 0.9  # of each product


class NotFasterError(LocalspecError):
    """A build computes right, but is slower in a product, or no faster than what is installed.

    Args:
        message: The message.
        speedups: The build's speed ÷ that of the installed library, by product.
    """

    def __init__(self, message: str, speedups: dict[str, float]) -> None:
        super().__init__(
            message,
            "Nothing was kept. If other programs were busy, run it again without them.",
        )
        self.speedups = speedups


def compare(
    installed_folder: Path,
    new_folder: Path,
    on_progress: OnStep,
) -> dict[str, float]:
    """The speed of a new library ÷ that of the installed one, by kind of matrix product.

    Both are timed in turn, each time in a new process. Raises LocalspecError if the new one
    multiplies wrong, or if a process fails.

    Args:
        installed_folder: The folder of the installed library.
        new_folder: The folder of the new one.
        on_progress: Called before each round.
    """
    times: dict[Path, list[dict[str, float]]] = {installed_folder: [], new_folder: []}
    for number in range(_NUM_ROUNDS):
        on_progress("comparing it with what is installed", number / _NUM_ROUNDS)
        for folder, rounds in times.items():
            rounds.append(_timed_products(folder, is_new=folder == new_folder))
    speedups = {}
    for product in times[new_folder][0]:
        before_s = min(seconds[product] for seconds in times[installed_folder])
        after_s = min(seconds[product] for seconds in times[new_folder])
        speedups[product] = before_s / after_s
    return speedups


def _timed_products(folder: Path, *, is_new: bool) -> dict[str, float]:
    """The seconds of each product with the library in a folder, timed in a new process.

    Raises LocalspecError if a new library multiplies wrong, or if the process fails.
    """
    library = next(file for file in sorted(folder.glob("*llama.*")) if file.exists())
    back_ends = (str(folder), str(folder.parent / "bin"))  # where they may be
    command = [sys.executable, "-I", "-S", trial.__file__, str(library)]
    done = subprocess.run(
        [*command, *back_ends],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        results = json.loads(done.stdout)
    except ValueError:
        name = "the installed libllama"
        if is_new:
            name = "what was compiled"
        raise LocalspecError(
            f"{name} ended a trial of its products: status {done.returncode}, "
            f"{last_line(done.stderr)}",
            "Nothing was kept. Report this with the output of localspec doctor.",
        ) from None
    wrong = results["wrong"]
    if is_new and wrong:
        raise LocalspecError(
            f"what was compiled multiplies wrong: {'; '.join(wrong)}",
            "Nothing was kept. Try the other compiler: localspec kernels --zig.",
        )
    seconds: dict[str, float] = results["seconds"]
    return seconds


def require_faster(speedups: dict[str, float]) -> None:
    """Raise NotFasterError unless a library is faster on average, and nowhere much slower."""
    average = statistics.geometric_mean(speedups.values())
    worst = min(speedups.values())
    if average < _LEAST_SPEEDUP or worst < _LEAST_PRODUCT_SPEEDUP:
        raise NotFasterError(
            "what was compiled is slower in a product, or no faster than what is installed: "
            f"{average:.2f} times its speed on average, {worst:.2f} times in the worst product",
            speedups,
        )
