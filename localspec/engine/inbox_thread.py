"""A thread that does what is put into its inbox, in order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from localspec.streaming.outbox import take_from

Result = TypeVar("Result")
Inbox = SimpleQueue[Callable[[], object] | None]  # None ends the thread

logger = logging.getLogger(__name__)


class InboxThread:
    """A daemon thread with an inbox. It starts with the first work.

    While there is nothing to do it keeps nothing of what it did.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: Inbox = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last_thread: threading.Thread | None = None  # also one that is to end
        self._starting = threading.RLock()  # a signal handler may come to it within itself

    # In any thread

    @property
    def is_this_thread(self) -> bool:
        """Whether this thread is the one, as where a collector of garbage runs in it."""
        return threading.current_thread() is self._last_thread

    def put(self, work: Callable[[], object]) -> None:
        """Have something done. What it raises is logged."""
        with self._starting:  # nothing would be done after the wish to end
            if self._thread is None:
                self._inbox = SimpleQueue()
                self._thread = self._last_thread = threading.Thread(
                    target=self._run,
                    args=(self._inbox, self._last_thread),
                    name=self._name,
                    daemon=True,
                )
                self._thread.start()
            self._inbox.put(work)

    def call(self, function: Callable[[], Result]) -> Result:
        """The function's result, or what it raises, called in the thread."""
        if self.is_this_thread:
            return function()
        results: SimpleQueue[Future[Result]] = SimpleQueue()

        def work() -> None:
            outcome: Future[Result] = Future()
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)
            results.put(outcome)
            del outcome  # an error has this frame

        self.put(work)
        return take_from(results).result()

    def end(self) -> threading.Thread | None:
        """Have the thread end, once what it was given is done. More to do starts another."""
        with self._starting:
            thread = self._thread
            self._thread = None
            if thread is not None:
                self._inbox.put(None)
            return thread

    def stop(self) -> None:
        """Have the thread end, and wait for that."""
        thread = self.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # In the thread

    def _may_step(self) -> bool:
        """Whether there is more to do while the inbox is empty."""
        return False

    def _step(self) -> None:
        """Do some of it."""

    def _run(self, inbox: Inbox, before: threading.Thread | None) -> None:
        if before is not None:  # it may still work
            before.join()
        while True:
            try:
                work = inbox.get(block=not self._may_step())
            except Empty:
                self._step()
                continue
            if work is None:
                return
            try:
                work()
            except BaseException:
                logger.exception("a request to an engine failed")
            del work  # while it waits for more, it keeps nothing of the last
