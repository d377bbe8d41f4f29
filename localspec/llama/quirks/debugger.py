"""Keeps ggml from starting a debugger before it ends the process.

When ggml aborts, it first starts gdb or lldb for a backtrace, and waits for it. If the debugger
may not attach, or asks a server for symbols, that takes minutes or does not end: an engine in a
process of its own then hangs where it should crash.

Remove it when ggml starts no debugger in the oldest llama-cpp-python that is allowed.
"""

from __future__ import annotations

import os

_SWITCH = "GGML_NO_BACKTRACE"  # an environment variable; any value switches debuggers off


def prevent_start() -> None:
    """Let ggml start no debugger in this process and its child processes."""
    os.environ.setdefault(_SWITCH, "1")
