"""How long threads spin before they sleep at a barrier.

ggml's threads meet at hundreds of barriers in a step. With GCC's OpenMP library, a thread that
waits spins for some milliseconds before it lets others run. If another program has the core of
the thread that it waits for, each barrier takes that long. Sleeping at once costs more on an
idle machine, where all threads arrive within microseconds. A length in between costs next to
nothing there, and bounds the worst step (docs/performance.md).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from localspec.call_thread import CallThread

Found = TypeVar("Found")

_SPINS = "3000"  # passes of the loop, some 60 microseconds
_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@contextlib.contextmanager
def spinning_briefly() -> Iterator[None]:
    """Set what libgomp reads when it is loaded in the block, unless it is set already.

    Nothing changes if libgomp is loaded already, nor for processes that are started later.
    """
    if any(name in os.environ for name in _SETTINGS):
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)


def computed_apart(function: Callable[[], Found]) -> Found:
    """The result of a function that decodes, in a thread that ends with it.

    libgomp keeps threads for each thread that has computed. If they outnumber the cores, all
    sleep at each barrier: a decode of a 1.5B on two cores took 41 ms in place of 34.
    """
    thread = CallThread(function)
    thread.start()
    try:
        return thread.result()
    finally:
        thread.join()  # also after Ctrl-C: what it computes with is in use until then
