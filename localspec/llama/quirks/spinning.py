"""How long threads wait for each other awake before they sleep.

ggml's threads meet hundreds of times in a step. Where GCC's OpenMP library keeps them, one that
waits turns in a loop for some milliseconds before it lets others run. If the one that it waits
for has no core, since another program is there, each of these meetings takes as long as that.
Sleeping at once costs more on a quiet machine, where all arrive within microseconds. In between
there is a length that costs next to nothing there, and keeps the worst step in bounds
(docs/performance.md).

Goes when ggml bounds how long its threads wait awake, or is built without libgomp: then nobody
reads these settings.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_SPINS = "3000"  # turns of the loop, some 60 microseconds
_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@contextlib.contextmanager
def spinning_briefly() -> Iterator[None]:
    """What libgomp reads when it is loaded within, unless the user or the host has set it.

    Where it is loaded already nothing changes, nor for processes that are started later.
    """
    if any(name in os.environ for name in _SETTINGS):
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)
