"""A file of ours run in a process of its own, for what libllama may end a process by.

Goes with the last of those who need it, `amx` and `rpc_version`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_MOST_S = 20.0  # seconds, of what takes a tenth of one


def written_by(program: str, library: str) -> str:
    """What the program in a file writes about a library.

    Nothing where it fails, or no process can be started.
    """
    # A frozen application, or one that embeds Python, would be started a second time.
    is_frozen = hasattr(sys, "frozen")
    if is_frozen or not Path(sys.executable or "").name.startswith("python"):
        return ""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", program, library],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_MOST_S,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # Not its status: where a host ignores SIGCHLD, that is 0 whatever happened.
    return done.stdout.strip()
