"""A line on stderr while a command waits for something that takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import click

from localspec.cli.standard_streams import echo_off, is_terminal, num_columns

_PATIENCE_S = 0.5
_REFRESH_S = 0.2
_terminal = threading.Lock()
_length = [0]  # of the longest text on the line that waits


@contextlib.contextmanager
def waiting(describe: Callable[[], str], pipe_s: float | None = None) -> Iterator[None]:
    """While the block runs, show the text of `describe`, which another thread calls.

    The line is rewritten with carriage returns, and blank when the block ends. What is typed
    meanwhile is not shown, but read later. pipe_s: where stderr is no terminal, a new line
    comes every so many seconds; None for nothing.
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
            # An echoed Ctrl-C has room behind it: on the next line it could not be cleared.
            text = describe()[: _room() - len("^C")]
            with _terminal:
                _length[0] = max(_length[0], len(text))
                click.echo("\r" + text.ljust(_length[0]), nl=False, err=True)
            pause = _REFRESH_S
        with line_gone():
            pass

    shower = threading.Thread(target=show, name="localspec-waiting", daemon=True)
    shower.start()
    try:
        with echo_off():
            yield
    finally:
        done.set()
        shower.join()


@contextlib.contextmanager
def line_gone() -> Iterator[None]:
    """Clear the line of `waiting` while the block writes to stderr."""
    with _terminal:
        if _length[0]:
            blanks = " " * (_length[0] + len("^C"))
            click.echo(f"\r{blanks}\r", nl=False, err=True)
            _length[0] = 0
        yield


def _room() -> int:
    return num_columns(err=True) - 1
