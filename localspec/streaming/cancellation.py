"""Cancelling an answer, the work for an answer, or a measurement."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

CancelCheck = Callable[[], bool]  # whether work was cancelled; called from any thread


def never() -> bool:
    """A `CancelCheck` for work that nobody cancels."""
    return False


class Cancellation:
    """A request to end one answer, from any thread, before it begins or while it runs.

    It ends this answer and no other. No request is lost, at whatever time it comes.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._interrupt: Callable[[], None] | None = None  # set while the answer runs
        # Reentrant, since a signal handler may request it in the thread that holds the lock.
        self.lock = threading.RLock()

    def request(self) -> None:
        """End the answer, now or as soon as it begins; no effect once it is over."""
        with self.lock:
            self.is_requested = True
            if self._interrupt is not None:
                self._interrupt()

    @contextlib.contextmanager
    def obeyed(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """While the block runs, a request interrupts it; at once if it came before."""
        with self.lock:
            self._interrupt = interrupt
            if self.is_requested:
                interrupt()
        try:
            yield
        finally:
            with self.lock:
                self._interrupt = None


@dataclass(frozen=True, slots=True)
class Watch:
    """Callback and cancellation of the caller that waits for a measurement."""

    progress: Callable[[str, float | None], None]
    """Called with the present work in words, and the seconds that all of it will probably take
    from now on; None if that is not known."""

    cancellation: Cancellation = field(default_factory=Cancellation)
