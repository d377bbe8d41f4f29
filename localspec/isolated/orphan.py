"""The end of a child that nobody needs any more, whatever its threads do."""

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
    """Behind the block this process ends within so many seconds.

    What is freed and written meanwhile may wait for threads, and one of these may never end.
    """
    try:
        yield
    finally:
        timer = threading.Timer(seconds, os._exit, (1,))
        timer.daemon = True
        timer.start()


def end_with_parent() -> None:
    """Let the system end this process half a minute after the other one ended.

    Python alone would not notice that while code of C holds the interpreter. On Linux; on other
    systems such a process stays. (PR_SET_PDEATHSIG is no way: it counts the end of the thread
    that started the child.)
    """
    parent = multiprocessing.parent_process()
    if sys.platform != "linux" or parent is None:
        return
    import fcntl

    libc = ctypes.CDLL(None)
    # The handler is a function of C: alarm(seconds). It gets the number of the signal, 29.
    handler = ctypes.cast(libc.alarm, ctypes.c_void_p)
    libc.signal(ctypes.c_int(signal.SIGIO), handler)
    # The other process has an end of this pipe until it ends, and writes nothing more to it.
    pipe = int(parent.sentinel)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
