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
    """Show the text of `describe`, which another thread calls, until the context is left.

    The line is rewritten with carriage returns, and blank at the end. What is typed meanwhile
    is not shown, but read later. pipe_s: where stderr is no terminal, a new line
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
            # Columns are left for an echoed Ctrl-C: on the next line it could not be cleared.
            text = describe()[: num_columns(err=True) - len(" ^C")]
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
    """Clear the line of `waiting`, so that something else can be written to stderr."""
    with _terminal:
        if _length[0]:
            blanks = " " * (_length[0] + len("^C"))
            click.echo(f"\r{blanks}\r", nl=False, err=True)
            _length[0] = 0
        yield
