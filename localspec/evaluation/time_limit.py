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
    """Requested when the check is to end."""

    by: EndedBy | None = None
    """Why the check ended early; None if it did not."""


@contextlib.contextmanager
def limited(engine: Engine, watch: Watch, seconds: float) -> Iterator[Limit]:
    """A block in which an engine is checked, ended by the watch's cancellation or a time limit.

    Both request `Limit.ended`, which the block has to obey. An Interrupted from the block ends
    it without an error; `Limit.by` then says why. The engine's draft policy is restored
    afterwards.
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
        if watch.cancellation.is_requested:
            limit.by = EndedBy.INTERRUPT
        else:
            limit.by = EndedBy.TIME
    finally:
        timer.cancel()
        engine._draft_policy = policy
