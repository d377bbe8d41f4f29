"""No debugger when libllama ends the process.

Before ggml aborts it starts gdb, or lldb, for a backtrace, and waits for it. If the debugger
may not attach, or asks a server for symbols, that takes minutes or for ever: an engine in a
process of its own then hangs where it should crash.

Remove it when ggml starts no debugger in the oldest llama-cpp-python that is allowed.
"""

from __future__ import annotations

import os

_SWITCH = "GGML_NO_BACKTRACE"  # it counts if it is set, with any value


def start_none() -> None:
    """Let ggml start no debugger in this process and its child processes."""
    os.environ.setdefault(_SWITCH, "1")
