"""The thread in which an engine decodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from localspec.engine.inbox_thread import InboxThread
from localspec.engine.schedule import Schedule
from localspec.errors import BusyError
from localspec.streaming.line import Line

Result = TypeVar("Result")


class Worker(InboxThread):
    """Does the work in its inbox and, while the inbox is empty, the schedule's next decode.

    It also does idle work: while no answer runs or waits, until the next request.

    Args:
        schedule: Makes the decodes of running answers.
        line: The answers that run or wait.
    """

    def __init__(self, schedule: Schedule, line: Line) -> None:
        super().__init__("localspec-worker")
        self._schedule = schedule
        self._line = line
        # Has the present idle work end soon; None while there is none.
        self._end_idle_work: Callable[[], None] | None = None

        self.num_requests = 0
        """How many requests there were: for answers, and for the end of idle work. Idle work
        ends at the next request."""

    def note_request(self) -> None:
        """Count a request, and end idle work."""
        with self._lock:
            self.num_requests += 1
            if self._end_idle_work is not None:
                self._end_idle_work()

    def put(self, work: Callable[[], object]) -> None:
        super().put(work)
        with self._lock:
            if self._end_idle_work is not None:
                self._end_idle_work()

    def when_idle(self, function: Callable[[], Result]) -> Result:
        """Call a function in the thread, and wait. Returns its result, or raises its error.

        Raises BusyError if an answer runs or waits.
        """

        def work() -> Result:
            if self._line.num_places:
                what = "the engine is producing another answer"
                raise BusyError(what, "Finish or close that answer first.")
            return function()

        return self.call(work)

    def use_idle_time(
        self,
        function: Callable[[], None],
        end_work: Callable[[], None],
        may_begin: Callable[[], bool],
    ) -> None:
        """Call a function in the thread as idle work, and wait until it ends.

        Does nothing if an answer runs or waits, or if there is other work, idle or not.

        Args:
            function: Does the work.
            end_work: Has the function end soon, from any thread; called when other work comes.
            may_begin: Whether to begin after all; called in the worker's thread.
        """

        def work() -> None:
            self._end_idle_work = end_work
            try:
                if not self._line.num_places and may_begin() and self._inbox.empty():
                    function()
            finally:
                with self._lock:  # a request that comes now finds no idle work to end
                    self._end_idle_work = None

        if self._end_idle_work is None:
            try:
                self.call(work)
            except BaseException:
                with self._lock:
                    if self._end_idle_work is end_work:
                        end_work()  # Ctrl-C has ended the waiting, but not the work
                raise

    def _may_step(self) -> bool:
        return self._schedule.resume_answers()

    def _step(self) -> None:
        self._schedule.step()
