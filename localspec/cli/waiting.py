"""A line on stderr that says what is being waited for, once that takes long."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator

import click

from localspec.cli.bars import shows_bars

_PATIENCE_S = 0.5
_REFRESH_S = 0.2


@contextlib.contextmanager
def waiting(describe: Callable[[], str]) -> Iterator[None]:
    """While the block runs, show what `describe` says; it is called from another thread.

    One line is rewritten with carriage returns and blanks, and is blank when the block is
    left: nothing of the terminal is switched that would have to be switched back.
    """
    if not shows_bars():
        yield
        return
    done = threading.Event()

    def show() -> None:
        longest = 0
        pause = _PATIENCE_S
        while not done.wait(pause):
            text = describe()[: _room()]
            longest = max(longest, len(text))
            click.echo("\r" + text.ljust(longest), nl=False, err=True)
            pause = _REFRESH_S
        if longest:
            # Ctrl-C may have been echoed after it.
            blanks = " " * min(longest + len("^C"), _room())
            click.echo(f"\r{blanks}\r", nl=False, err=True)

    shower = threading.Thread(target=show, name="localspec-waiting", daemon=True)
    shower.start()
    try:
        yield
    finally:
        done.set()
        shower.join()


def _room() -> int:
    return shutil.get_terminal_size().columns - 1
