"""How long threads spin before they sleep at a barrier.

ggml's threads meet at hundreds of barriers in a step. With GCC's OpenMP library, a waiting
thread spins for some milliseconds before it lets others run. If another program has the core of
the thread for which it waits, each barrier takes that long. Sleeping at once costs more on an
idle machine, where all threads arrive within microseconds. A length in between costs next to
nothing there, and bounds the worst step (docs/performance.md).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from localspec.system.call_thread import CallThread, Result

# libgomp keeps threads for each thread that has computed. If they outnumber the cores, they
# spin 100 passes of the loop, too few to meet: next to a second engine a decode of a 135M on
# two cores took 9.8 ms, not 4.9. "active" makes that 1 000. Otherwise they spin 3 000, about 60
# µs.
_SETTINGS = {"GOMP_SPINCOUNT": "3000", "OMP_WAIT_POLICY": "active"}


@contextlib.contextmanager
def spinning_briefly() -> Iterator[None]:
    """Set the variables that libgomp reads when it is loaded in the block, unless they are set.

    Nothing changes if libgomp is loaded already, nor for processes that are started later.
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
    """Call a function that decodes in a thread that ends with it; returns its result.

    If libgomp was loaded before with its own settings, the threads that it keeps for another
    thread would slow all decodes: of a 135M on two cores, 17 ms instead of 6.5.
    """
    thread = CallThread(function)
    thread.start()
    try:
        return thread.result()
    finally:
        thread.join()  # also after Ctrl-C: until then the thread uses the model
