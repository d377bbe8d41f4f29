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

    Each answer has its own. A request is kept: it also ends an answer that begins after it.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._interrupt: Callable[[], None] | None = None  # set while the answer runs
        # Reentrant, since a signal handler may call `request` in the thread that holds it.
        self.lock = threading.RLock()

    def request(self) -> None:
        """End the answer, now or as soon as it begins. No effect once the answer is over."""
        with self.lock:
            self.is_requested = True
            if self._interrupt is not None:
                self._interrupt()

    @contextlib.contextmanager
    def obeyed(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """While the block of a `with` runs, a request calls `interrupt`.

        If the request came before, `interrupt` is called at the beginning of the block.
        """
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
    """How a caller follows a measurement, and ends it."""

    progress: Callable[[str, float | None], None]
    """Called with a description of the present work, and the seconds that the measurement will
    probably still take; None if that is not known."""

    cancellation: Cancellation = field(default_factory=Cancellation)
