"""Runs a check or a measurement with a progress line, and lets Ctrl-C end it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from localspec.cli.quantities import clock_time
from localspec.cli.standard_streams import is_terminal, num_columns
from localspec.cli.waiting import cancel_on_interrupt, waiting
from localspec.engine.base import BaseEngine
from localspec.isolated.watch import Watch

Measured = TypeVar("Measured")
_PIPE_S = 5.0  # between two lines where no terminal shows one
_SHORTEST_BAR, _LONGEST_BAR = 4, 20  # characters
_BAR_COLUMNS = 40  # of a terminal that has a bar


def measured(
    engine: BaseEngine,
    function: Callable[..., Measured],
    *arguments: Any,
    seconds: float,
    **keywords: Any,
) -> Measured:
    """The function's result for the engine; after Ctrl-C or the limit, the result so far."""
    line = ProgressLine(seconds, time.monotonic)
    watch = Watch(line.report)

    def describe() -> str:
        return line.text(num_columns(err=True) - 1 if is_terminal(sys.stderr) else 0)

    with cancel_on_interrupt(watch.cancellation.request), waiting(describe, _PIPE_S):
        return engine._measure(function, *arguments, watch=watch, seconds=seconds, **keywords)


class ProgressLine:
    """The progress line: a bar, the time spent, the time left, and the stage."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._started_s = clock()
        self._reported: tuple[str, float | None] = ("starting", None)
        self._reported_s = self._started_s

    def report(self, stage: str, seconds_left: float | None) -> None:
        """Take a report of `watch.Watch`. A repeated report restarts no estimate."""
        if (stage, seconds_left) != self._reported:
            self._reported, self._reported_s = (stage, seconds_left), self._clock()

    def text(self, width: int) -> str:
        """The current line. Can be called from any thread.

        width: columns to fill with a bar, 0 for no bar. The line may be longer.
        """
        now = self._clock()
        stage, seconds_left = self._reported
        spent_s = now - self._started_s
        text = clock_time(spent_s)
        left_s = max(0.0, self._limit_s - spent_s)
        how = "at most"
        if seconds_left is not None:
            probable_s = max(0.0, seconds_left - (now - self._reported_s))
            if probable_s < left_s:
                how, left_s = "about", probable_s
        text += f", {how} {clock_time(left_s)} left · {stage}"
        if width < _BAR_COLUMNS:
            return text
        size = max(_SHORTEST_BAR, min(_LONGEST_BAR, width - len(text) - len("[] ")))
        share = spent_s / (spent_s + left_s) if spent_s else 0.0
        return f"[{'#' * round(share * size):-<{size}}] {text}"
