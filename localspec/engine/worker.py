"""The thread that computes for an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from localspec.engine.inbox_thread import InboxThread
from localspec.engine.schedule import Schedule
from localspec.errors import BusyError
from localspec.streaming.line import Line

Found = TypeVar("Found")


class Worker(InboxThread):
    """Does the work in its inbox and, while that is empty, the schedule's next decode.

    Idle work is done while no answer runs or waits, and ends at the next request.

    Args:
        schedule: The lanes at work.
        line: The answers that run or wait.
    """

    def __init__(self, schedule: Schedule, line: Line) -> None:
        super().__init__("localspec-worker")
        self._schedule = schedule
        self._line = line
        self._make_way: Callable[[], None] | None = None  # ends idle work

        self.num_asked = 0
        """Answers and wishes to end that were asked for. Idle work ends when it changes."""

    def note_asked(self) -> None:
        """Note a request, and end idle work."""
        with self._starting:
            self.num_asked += 1
            if self._make_way is not None:
                self._make_way()

    def put(self, work: Callable[[], object]) -> None:
        super().put(work)
        with self._starting:
            if self._make_way is not None:
                self._make_way()

    def when_idle(self, function: Callable[[], Found]) -> Found:
        """Call a function while no answer runs; returns its result. BusyError if one runs."""

        def work() -> Found:
            if self._line.num_places:
                what = "the engine is producing another answer"
                raise BusyError(what, "Finish or close that answer first.")
            return function()

        return self.call(work)

    def use_idle_time(
        self,
        function: Callable[[], None],
        make_way: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Call a function while there is no request, unless idle work runs already.

        Args:
            function: Does the work.
            make_way: Ends the work soon, from any thread.
            is_wanted: Whether to begin; called in the worker's thread.
        """

        def work() -> None:
            self._make_way = make_way
            try:
                if not self._line.num_places and is_wanted() and self._inbox.empty():
                    function()
            finally:
                with self._starting:  # no later request ends the work
                    self._make_way = None

        if self._make_way is None:
            try:
                self.call(work)
            except BaseException:
                with self._starting:
                    if self._make_way is make_way:
                        make_way()  # Ctrl-C has ended the waiting, but not the work
                raise

    def _may_step(self) -> bool:
        return self._schedule.may_step()

    def _step(self) -> None:
        self._schedule.step()
