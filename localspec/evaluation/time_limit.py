"""Ends a check or a measurement early: at a time limit, or when a person interrupts it."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from localspec.engine.engine import Engine
from localspec.errors import Interrupted
from localspec.streaming.cancellation import Cancellation, Watch


class EndedBy(enum.Enum):
    """The reason why a result is partial."""

    TIME = "time"
    INTERRUPT = "interrupt"


@dataclass(slots=True)
class Limit:
    """The end of a check."""

    ended: Cancellation = field(default_factory=Cancellation)
    """Requested when it is to end."""

    by: EndedBy | None = None
    """Why it ended early."""


@contextlib.contextmanager
def limited(engine: Engine, watch: Watch, seconds: float) -> Iterator[Limit]:
    """Check an engine until the watch's cancellation or the time limit ends the block.

    Both end it even within a long decode. The engine's draft policy is restored afterwards.
    """
    limit = Limit()
    policy = engine._draft_policy
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), limit.ended.request)
    timer.daemon = True
    timer.start()
    try:
        with watch.cancellation.obeyed(limit.ended.request):
            yield limit
    except Interrupted:
        is_wish = watch.cancellation.is_requested
        limit.by = EndedBy.INTERRUPT if is_wish else EndedBy.TIME
    finally:
        timer.cancel()
        engine._draft_policy = policy
