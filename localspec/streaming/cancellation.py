"""The wish that an answer, the work for one, or a measurement should end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

CancelCheck = Callable[[], bool]  # whether work need not be finished any more; from any thread


def never() -> bool:
    """A `CancelCheck` for work that nobody cancels."""
    return False


class Cancellation:
    """The wish to end an answer, from any thread, before it has begun or while it runs.

    It reaches this answer and no other, and no request is lost, whenever it comes.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._interrupt: Callable[[], None] | None = None  # while the answer runs
        # A signal handler requests it from between two lines of the thread that answers.
        self.lock = threading.RLock()

    def request(self) -> None:
        """End the answer, now or as soon as it begins; nothing if it is over. Idempotent."""
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
    """Callback and cancellation of whoever waits for a measurement."""

    progress: Callable[[str, float | None], None]
    """Gets what is being done, and how many seconds all of it will probably take from now
    on; None while nobody knows."""

    cancellation: Cancellation = field(default_factory=Cancellation)
