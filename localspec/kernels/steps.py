"""Steps of making a build: other programs, which end with ours, and say why they failed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from localspec.errors import LocalspecError
from localspec.system.machine import cores_here

# What is done now, in words, and the part of it that is done, 0 … 1; None: nobody knows.
OnStep = Callable[[str, float | None], None]


def num_jobs() -> int:
    """How many compilers, or threads of a trial, run at once."""
    return max(1, cores_here().usable)


def run_step(
    command: Sequence[str],
    environment: dict[str, str],
    failure: str,
    read: Callable[[str], None],
) -> None:
    """Run a program, hand each line of its output to `read`, and end it if that is stopped.

    Raises LocalspecError with its last words if it fails.
    """
    # A group of its own: Ctrl-C reaches this process alone, which ends all of the group.
    lines: list[str] = []
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                read(line)
            status = process.wait()
        except BaseException:
            _kill_group(process)
            raise
    if status != 0:
        raise LocalspecError(f"{failure}: {_reason_in(lines)}", _hint_for(lines))


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a program and what it has started."""
    if sys.platform == "win32":  # where nothing is compiled, and there are no groups
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _reason_in(lines: list[str]) -> str:
    """The line that says why a program failed: the last that speaks of an error."""
    spoken = [line for line in lines if re.search("error|no space", line, re.IGNORECASE)]
    return (spoken or lines or ["it said nothing"])[-1].strip()


def _hint_for(lines: list[str]) -> str:
    text = "\n".join(lines)
    if "No space left" in text:
        return "Free some disk space, or choose another place for data: XDG_DATA_HOME=DIR."
    if re.search("Connection|resolve|Network|No matching distribution|Retrying", text):
        return "It takes a network: pip has to reach the package index. Nothing was kept."
    return "Nothing was kept. Another compiler may do it: localspec kernels --zig."


def last_line(text: str) -> str:
    """The last line of a program's output, where it says why it ended."""
    lines = text.strip().splitlines()
    if lines:
        return lines[-1]
    return "it said nothing"
