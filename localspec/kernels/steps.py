"""Runs the programs that make a build, ends them with this one, and explains their failures."""

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

# Called with the current step in words, and the part of it that is done, 0 … 1 or None.
OnStep = Callable[[str, float | None], None]


def num_jobs() -> int:
    """The number of compilers that run at once."""
    return max(1, cores_here().usable)


def run_step(
    command: Sequence[str],
    environment: dict[str, str],
    failure: str,
    read: Callable[[str], None],
) -> None:
    """Run a program, and kill it on an exception.

    Args:
        command: The program and its arguments.
        environment: Its environment.
        failure: The beginning of the error's message.
        read: Called with each line of its output.

    Raises:
        LocalspecError: The program failed; the message has the line that says why.
    """
    lines: list[str] = []
    # A group of its own: Ctrl-C reaches only this process, which kills the group.
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
    if sys.platform == "win32":  # nothing is compiled there, and there are no groups
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _reason_in(lines: list[str]) -> str:
    """The line that says why a program failed: the last about an error, or the last of all."""
    for line in reversed(lines):
        if re.search("error|no space", line, re.IGNORECASE):
            return line.strip()
    if lines:
        return lines[-1].strip()
    return "it said nothing"


def _hint_for(lines: list[str]) -> str:
    """What to do about a failure, by the output of the program."""
    text = "\n".join(lines)
    if re.search("No space left|quota exceeded", text):
        return "Free some disk space, or choose another place for data: XDG_DATA_HOME=DIR."
    if re.search(r"Connection|\bresolve\b|Network|No matching distribution|Retrying", text):
        return "It takes a network: pip has to reach the package index. Nothing was kept."
    return "Nothing was kept. Another compiler may do it: localspec kernels --zig."


def last_line(text: str) -> str:
    """The last line of a program's output, where it says why it ended."""
    lines = text.strip().splitlines()
    if lines:
        return lines[-1]
    return "it said nothing"
