"""Ends a check or a measurement early: at a time limit, or when a person interrupts it."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator

from localspec.streaming.cancellation import Cancellation


class EndedBy(enum.Enum):
    """The reason why a result is partial."""

    TIME = "time"
    INTERRUPT = "interrupt"


@contextlib.contextmanager
def limited(cancellation: Cancellation, seconds: float) -> Iterator[Cancellation]:
    """A cancellation that is requested with another, or after a time limit.

    Such a request ends work even within a long decode.
    """
    ended = Cancellation()
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), ended.request)
    timer.daemon = True
    timer.start()
    try:
        with cancellation.obeyed(ended.request):
            yield ended
    finally:
        timer.cancel()


def ended_by(cancellation: Cancellation) -> EndedBy:
    """The reason why the work inside `limited` ended early."""
    return EndedBy.INTERRUPT if cancellation.is_requested else EndedBy.TIME
