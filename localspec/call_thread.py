"""A call in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class CallThread(threading.Thread, Generic[Result]):
    """A thread that makes one call, and ends.

    A pool refuses work once the main thread has ended, while others continue. daemon: whether
    the process may end before it.
    """

    def __init__(self, call: Callable[[], Result], *, daemon: bool = False) -> None:
        super().__init__(name="localspec-call", daemon=daemon)
        self._call = call
        self._outcome: Future[Result] = Future()

    def run(self) -> None:
        try:
            self._outcome.set_result(self._call())
        except BaseException as failure:
            self._outcome.set_exception(failure)

    def result(self) -> Result:
        """The call's result, or what it raises, once the thread has ended."""
        self.join()
        return self._outcome.result()
