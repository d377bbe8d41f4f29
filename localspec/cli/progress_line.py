"""The line on stderr while something is waited for, also of a measurement."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import click

from localspec.cli.screen import clock_time
from localspec.cli.standard_streams import echo_off, is_terminal, num_columns

_PATIENCE_S = 0.5
_REFRESH_S = 0.2
_terminal = threading.Lock()
_length = [0]  # characters of the longest text on the line


@contextlib.contextmanager
def waiting(describe: Callable[[], str], pipe_s: float | None = None) -> Iterator[None]:
    """Show the text of `describe`, which another thread calls, until the context is left.

    The line is rewritten with carriage returns, and blank at the end. Text that is typed
    meanwhile is not shown; it is read later.

    Args:
        describe: returns the text.
        pipe_s: seconds between two lines if stderr is no terminal; None for no lines.
    """
    is_shown = is_terminal(sys.stderr)
    if not is_shown and pipe_s is None:
        yield
        return
    done = threading.Event()

    def show() -> None:
        while not is_shown and not done.wait(pipe_s):
            click.echo(describe(), err=True)
        pause = _PATIENCE_S
        while not done.wait(pause):
            # Columns are left for an echoed Ctrl-C: on the next line it could not be cleared.
            text = describe()[: num_columns(err=True) - len(" ^C")]
            with _terminal:
                _length[0] = max(_length[0], len(text))
                click.echo("\r" + text.ljust(_length[0]), nl=False, err=True)
            pause = _REFRESH_S
        with line_gone():
            pass

    shower = threading.Thread(
        target=show,
        name="localspec-waiting",
        daemon=True,
    )
    shower.start()
    try:
        with echo_off():
            yield
    finally:
        done.set()
        shower.join()


@contextlib.contextmanager
def line_gone() -> Iterator[None]:
    """Clear the line of `waiting`, so that something else can be written to stderr."""
    with _terminal:
        if _length[0]:
            blanks = " " * (_length[0] + len("^C"))
            click.echo(f"\r{blanks}\r", nl=False, err=True)
            _length[0] = 0
        yield


class ProgressLine:
    """The progress line: the time spent, the time left, and the stage."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._started_s = clock()
        self._reported: tuple[str, float | None] = ("starting", None)
        self._reported_s = self._started_s

    def report(self, stage: str, seconds_left: float | None) -> None:
        """Take a report of a `Watch`. A repeated report restarts no estimate."""
        reported = (stage, seconds_left)
        if reported != self._reported:
            self._reported = reported
            self._reported_s = self._clock()

    def text(self) -> str:
        """The current line. Can be called from any thread."""
        now = self._clock()
        stage, seconds_left = self._reported
        spent_s = now - self._started_s
        left_s = max(0.0, self._limit_s - spent_s)
        how = "at most"
        if seconds_left is not None:
            probable_s = max(0.0, seconds_left - (now - self._reported_s))
            if probable_s < left_s:
                how = "about"
                left_s = probable_s
        return f"{clock_time(spent_s)}, {how} {clock_time(left_s)} left · {stage}"
