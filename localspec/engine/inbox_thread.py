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
    """A daemon thread that does the work in its inbox. It starts with the first work.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: Inbox = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last_thread: threading.Thread | None = None  # it may be ending
        # Held while the attributes are changed. Reentrant: a signal handler may take it in the
        # thread that holds it.
        self._lock = threading.RLock()

    # In any thread

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller runs in this thread, as a finalizer may."""
        return threading.current_thread() is self._last_thread

    def put(self, work: Callable[[], object]) -> None:
        """Add work to the inbox, without waiting for it. Its errors are only logged."""
        # Held, so that `end` cannot come in between: the work would then never be done.
        with self._lock:
            if self._thread is None:
                self._inbox = SimpleQueue()
                self._thread = threading.Thread(
                    target=self._run,
                    args=(self._inbox, self._last_thread),
                    name=self._name,
                    daemon=True,
                )
                self._last_thread = self._thread
                self._thread.start()
            self._inbox.put(work)

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in the thread, and wait. Returns its result, or raises its error.

        Called in the thread itself, it runs the function at once.
        """
        if self.is_this_thread:
            return function()
        # Not the future itself is waited for, but a queue: then Ctrl-C ends the wait, by means
        # of `take_from`.
        results: SimpleQueue[Future[Result]] = SimpleQueue()

        def work() -> None:
            outcome: Future[Result] = Future()
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)
            results.put(outcome)
            # An error's traceback holds this frame, and `outcome` the error: break the cycle.
            del outcome

        self.put(work)
        return take_from(results).result()

    def end(self) -> threading.Thread | None:
        """Have the thread end after the work in its inbox, without waiting for that.

        Later work starts another thread. Returns the thread that ends; None if there is none.
        """
        with self._lock:
            thread = self._thread
            self._thread = None
            if thread is not None:
                self._inbox.put(None)
            return thread

    def stop(self) -> None:
        """Have the thread end, and wait until it has."""
        thread = self.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # In the thread

    def _may_step(self) -> bool:
        """Whether there is work for `_step` while the inbox is empty."""
        return False

    def _step(self) -> None:
        """Do a part of the work that is not in the inbox."""

    def _run(self, inbox: Inbox, last_thread: threading.Thread | None) -> None:
        """Do the work in the inbox, and steps while it is empty, until None is in the inbox.

        Args:
            inbox: The work.
            last_thread: The thread before this one, if any. It may still work: it ends first.
        """
        if last_thread is not None:
            last_thread.join()
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
            del work  # so that an idle thread keeps nothing alive
