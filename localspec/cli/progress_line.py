"""The line on stderr that is shown while a command waits for something."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import click

from localspec.cli.screen import clock_time
from localspec.cli.standard_streams import echo_off, is_terminal, num_columns

_FIRST_S = 0.5  # before the line is shown: a shorter wait shows nothing
_REFRESH_S = 0.2  # between two texts of the line
_terminal = threading.Lock()  # held while the line is written or cleared
_length = [0]  # characters of the longest text since the line was last blank


@contextlib.contextmanager
def waiting(describe: Callable[[], str], pipe_s: float | None = None) -> Iterator[None]:
    """Show a text that may change, from another thread, while the body runs.

    On a terminal it is one line that is rewritten, and cleared at the end. What the user types
    is not shown meanwhile; it is read later.

    Args:
        describe: returns the current text; called in the other thread.
        pipe_s: if stderr is no terminal, the seconds between two printed lines; None for none.
    """
    has_line = is_terminal(sys.stderr)
    if not has_line and pipe_s is None:
        yield
        return
    done = threading.Event()

    def show() -> None:
        """Show the text until `done` is set."""
        if has_line:
            _rewrite_line(describe, done)
            return
        while not done.wait(pipe_s):
            click.echo(describe(), err=True)

    thread = threading.Thread(
        target=show,
        name="localspec-waiting",
        daemon=True,
    )
    thread.start()
    try:
        with echo_off():
            yield
    finally:
        done.set()
        thread.join()


def _rewrite_line(describe: Callable[[], str], done: threading.Event) -> None:
    """Show the current text in one line of the terminal until `done` is set, then clear it."""
    pause_s = _FIRST_S
    while not done.wait(pause_s):
        # Columns are left for an echoed Ctrl-C: on the next line it could not be cleared.
        text = describe()[: num_columns(err=True) - len(" ^C")]
        with _terminal:
            _length[0] = max(_length[0], len(text))
            # Blanks cover a longer text before it.
            click.echo("\r" + text.ljust(_length[0]), nl=False, err=True)
        pause_s = _REFRESH_S
    with line_cleared():
        pass


@contextlib.contextmanager
def line_cleared() -> Iterator[None]:
    """Clear the line of `waiting`, and keep it blank while the body writes to stderr."""
    with _terminal:
        if _length[0]:
            blanks = " " * (_length[0] + len("^C"))
            click.echo(f"\r{blanks}\r", nl=False, err=True)
            _length[0] = 0
        yield


class ProgressLine:
    """The text of a measurement's line: the time so far, the time left, and the stage.

    Args:
        limit_s: the time limit of the measurement in seconds.
        clock: returns the time in seconds.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._started_s = clock()
        self._reported: tuple[str, float | None] = ("starting", None)
        self._reported_s = self._started_s

    def report(self, stage: str, seconds_left: float | None) -> None:
        """Take the stage and the estimated time left, as a `Watch` reports them.

        A report that is equal to the last one changes nothing: the time left has been counted
        down since that one came.

        Args:
            stage: what is being measured.
            seconds_left: the estimate; None if there is none.
        """
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
        qualifier = "at most"
        if seconds_left is not None:
            since_report_s = now - self._reported_s
            estimated_s = max(0.0, seconds_left - since_report_s)
            if estimated_s < left_s:
                qualifier = "about"
                left_s = estimated_s
        return f"{clock_time(spent_s)}, {qualifier} {clock_time(left_s)} left · {stage}"
