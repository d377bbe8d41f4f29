"""Runs a program of this package in another process, since libllama may end that process.

Remove it with `amx` and `rpc_version`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_MOST_S = 20.0  # seconds; a run usually takes a tenth of a second


def program_output(program: str, *arguments: str) -> str:
    """What a program prints; "" if it cannot be started, or takes too long.

    Args:
        program: The path of a Python file, which is run without any packages.
        arguments: The arguments of its command line.
    """
    # A frozen application, or one that embeds Python, would start itself again.
    is_frozen = hasattr(sys, "frozen")
    if is_frozen or not Path(sys.executable or "").name.startswith("python"):
        return ""
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-S", program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_MOST_S,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # The exit status is not checked: if the host ignores SIGCHLD, it is always 0.
    return process.stdout.strip()
