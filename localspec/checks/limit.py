"""What ends a check or a measurement before it is done: its time, or whoever waits for it."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator

from localspec.streaming.cancellation import Cancellation


class EndedBy(enum.Enum):
    """Why a result is of a part of what was to be looked at."""

    TIME = "time"
    INTERRUPT = "interrupt"


@contextlib.contextmanager
def limited(cancellation: Cancellation, seconds: float | None) -> Iterator[Cancellation]:
    """A wish to end that comes with the other one, or once so many seconds are over.

    Whoever obeys it ends in the midst of a decode, however long that takes. seconds: None for
    no limit.
    """
    ended = Cancellation()
    timer = threading.Timer(min(seconds or 0.0, threading.TIMEOUT_MAX), ended.request)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        with cancellation.obeyed(ended.request):
            yield ended
    finally:
        timer.cancel()


def ended_by(cancellation: Cancellation) -> EndedBy:
    """What ended the work of `limited`, which did not end by itself."""
    return EndedBy.INTERRUPT if cancellation.is_requested else EndedBy.TIME
