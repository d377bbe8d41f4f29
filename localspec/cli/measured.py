"""Runs a check or a measurement with a progress line, and lets Ctrl-C end it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from localspec.cli.interrupt import cancel_on_interrupt
from localspec.cli.quantities import clock_time
from localspec.cli.waiting import waiting
from localspec.engine.base import BaseEngine
from localspec.isolated.watch import Watch

Measured = TypeVar("Measured")


def measured(
    engine: BaseEngine,
    function: Callable[..., Measured],
    *arguments: Any,
    seconds: float | None,
    **keywords: Any,
) -> Measured:
    """The function's result for the engine; after Ctrl-C or the limit, the result so far."""
    line = ProgressLine(seconds, time.monotonic)
    watch = Watch(line.report)
    with cancel_on_interrupt(watch.cancellation.request), waiting(line.text):
        return engine._measure(function, *arguments, watch=watch, seconds=seconds, **keywords)


class ProgressLine:
    """The progress line: the stage, the time spent and the time left."""

    def __init__(self, limit_s: float | None, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._started_s = clock()
        self._reported: tuple[str, float | None] = ("Starting", None)
        self._reported_s = self._started_s

    def report(self, stage: str, seconds_left: float | None) -> None:
        """Take a report of `watch.Watch`. A repeated one does not restart the estimate."""
        if (stage, seconds_left) != self._reported:
            self._reported, self._reported_s = (stage, seconds_left), self._clock()

    def text(self) -> str:
        """The line now; from any thread."""
        now = self._clock()
        stage, seconds_left = self._reported
        spent_s = now - self._started_s
        text = f"{stage} · {clock_time(spent_s)}"
        most_s = None if self._limit_s is None else max(0.0, self._limit_s - spent_s)
        if seconds_left is not None:
            left_s = max(0.0, seconds_left - (now - self._reported_s))
            if most_s is None or left_s < most_s:
                return f"{text}, about {clock_time(left_s)} left"
        return text if most_s is None else f"{text}, at most {clock_time(most_s)} left"
