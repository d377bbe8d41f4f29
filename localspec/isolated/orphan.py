"""Ends a child that is no longer needed, even if one of its threads never ends."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ending_within(seconds: float) -> Iterator[None]:
    """A context: this process ends, at the latest, that many seconds after the block.

    In these seconds models are freed and caches are written. Without a limit that might wait
    for a thread that never ends.
    """
    try:
        yield
    finally:
        exit_code = 1
        timer = threading.Timer(seconds, os._exit, (exit_code,))
        timer.daemon = True
        timer.start()


def end_with_parent() -> None:
    """On Linux, have the system end this process half a minute after its parent has ended.

    Python alone would not notice the parent's end while C code holds the interpreter's lock. On
    other systems such a process stays. (PR_SET_PDEATHSIG does not help: it reacts to the end of
    the thread that started the child.)
    """
    parent = multiprocessing.parent_process()
    if sys.platform != "linux" or parent is None:
        return
    import fcntl

    libc = ctypes.CDLL(None)
    # The handler of SIGIO is the function alarm(seconds) of C, which no Python lock delays. Its
    # argument is the signal's number, 29: so the process ends 29 seconds after the signal.
    handler = ctypes.cast(libc.alarm, ctypes.c_void_p)
    libc.signal(ctypes.c_int(signal.SIGIO), handler)
    # The signal comes when the parent's end of this pipe is closed: at the parent's end. The
    # parent never writes to it.
    pipe = int(parent.sentinel)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
