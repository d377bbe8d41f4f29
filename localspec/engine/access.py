"""Who may work on an engine: one answer at a time, or idle work, which makes way for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from localspec.errors import BusyError

_RETRY_S = 0.005  # between two attempts to end idle work that may only be about to begin


class Access:
    """A lock that an answer is refused by another answer, and never by idle work.

    end_idle_work: ends what runs on the engine within one decode; called from the thread
    that wants access, and only while idle work has it.
    """

    def __init__(self, end_idle_work: Callable[[], None]) -> None:
        self._end_idle_work = end_idle_work
        self._taken = threading.Lock()
        self._is_idle_work = False
        self._changing = threading.Lock()  # held while idle work comes or goes

    def take(self) -> bool:
        """Have it, once idle work has ended; False if an answer has it."""
        while not self._taken.acquire(timeout=_RETRY_S):
            with self._changing:
                # It may have ended by itself just now.
                if self._taken.acquire(blocking=False):
                    return True
                if not self._is_idle_work:
                    return False
                self._end_idle_work()
        return True

    def release(self) -> None:
        """Give it back."""
        self._taken.release()

    @contextlib.contextmanager
    def for_idle_work(self) -> Iterator[bool]:
        """Have it for work that ends when it is told to; False if somebody else has it."""
        with self._changing:
            has_access = self._taken.acquire(blocking=False)
            self._is_idle_work |= has_access
        try:
            yield has_access
        finally:
            if has_access:
                with self._changing:
                    self._is_idle_work = False
                    self._taken.release()


def busy() -> BusyError:
    """What whoever is refused gets to know."""
    return BusyError(
        "the engine is producing another answer",
        "Finish or close that stream first; an engine does one at a time.",
    )


def still_answering() -> BusyError:
    """What whoever would close it gets to know."""
    return BusyError(
        "the engine is producing an answer", "Close the stream first, or close(cancel=True)."
    )
