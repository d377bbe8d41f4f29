"""The end of a child that is no longer needed, even if one of its threads never ends."""

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
    """After the block, this process ends within that many seconds.

    Meanwhile models are freed and caches are written. That may wait for a thread which never
    ends.
    """
    try:
        yield
    finally:
        timer = threading.Timer(seconds, os._exit, (1,))
        timer.daemon = True
        timer.start()


def end_with_parent() -> None:
    """On Linux, let the system end this process half a minute after the other one has ended.

    Python alone would not notice that end while C code holds the interpreter. On other systems
    such a process stays. (PR_SET_PDEATHSIG does not help: it reacts to the end of the thread
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
    # The other process holds an end of this pipe until it ends, and writes nothing to it.
    pipe = int(parent.sentinel)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
