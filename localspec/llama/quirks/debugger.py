"""No debugger where libllama ends the process.

Before ggml aborts it starts gdb, or lldb, for a backtrace, and waits for it. Where the debugger
may not attach, or asks a server for symbols, that takes minutes or for ever: an engine in a
process of its own then hangs where it should crash.

Remove it when ggml starts none by itself in the oldest llama-cpp-python that is allowed.
"""

from __future__ import annotations

import os

_SWITCH = "GGML_NO_BACKTRACE"  # ggml asks whether it is set, whatever it says


def start_none() -> None:
    """Let ggml start none in this process, nor in those that it starts."""
    os.environ.setdefault(_SWITCH, "1")
