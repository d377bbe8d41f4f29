"""Shortens how long threads spin, that is, wait in a busy loop, before they sleep at a barrier.

ggml's threads meet at hundreds of barriers in a step. With libgomp, GCC's OpenMP library, a
waiting thread spins for some milliseconds before it sleeps and lets others run. If another
program has the core of the thread for which it waits, each barrier takes that long. Sleeping at
once costs more on an idle machine, where all threads arrive within microseconds. A time in
between costs next to nothing there, and bounds the worst step (docs/performance.md).

Remove it when libgomp's own default is as short.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from localspec.system.call_thread import CallThread, Result

# Threads spin for 3,000 passes of the loop, about 60 µs. libgomp keeps threads for each thread
# that has computed. If they outnumber the cores, they spin for 100 passes only, too few to
# meet: next to a second engine a decode of a 135M model on two cores took 9.8 ms instead of
# 4.9. "active" makes that 1,000 passes.
_SETTINGS = {"GOMP_SPINCOUNT": "3000", "OMP_WAIT_POLICY": "active"}


@contextlib.contextmanager
def spinning_briefly() -> Iterator[None]:
    """A block in which libgomp, when it is loaded, takes our settings.

    They are environment variables, which are removed after the block. Does nothing if the user
    has set one of them. Has no effect if libgomp was loaded before.
    """
    if _SETTINGS.keys() & os.environ.keys():
        yield
        return
    os.environ.update(_SETTINGS)
    try:
        yield
    finally:
        for name in _SETTINGS:
            os.environ.pop(name, None)


def computed_apart(function: Callable[[], Result]) -> Result:
    """The result of a function that decodes, called in a thread of its own that then ends.

    libgomp keeps threads for each thread that has computed, until that thread ends. If libgomp
    was loaded with its own settings, kept threads would slow all later decodes: of a 135M model
    on two cores, 17 ms instead of 6.5.
    """
    thread = CallThread(function)
    thread.start()
    try:
        return thread.result()
    finally:
        thread.join()  # also after Ctrl-C: until then the thread uses the model
