"""Waiting: a line on stderr meanwhile, Ctrl-C, and signals to end."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import click

from localspec.cli.standard_streams import echo_off, is_terminal, num_columns

_PATIENCE_S = 0.5
_REFRESH_S = 0.2
_terminal = threading.Lock()
_length = [0]  # characters of the longest text on the line


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


@contextlib.contextmanager
def cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT call `cancel`, whatever the main thread does; a second one raises.

    Python runs signal handlers only between its own instructions, and the main thread may
    be inside one long decode. The C handler writes to the wake-up socket at once, and a
    thread that waits there calls `cancel`.
    """

    def on_interrupt(_number: int, _frame: object) -> None:
        cancel()
        signal.signal(signal.SIGINT, previous_handler)

    waiting, waking = socket.socketpair()
    waking.setblocking(False)  # noqa: FBT003  the socket module's own signature

    def watch() -> None:
        while received := waiting.recv(16):
            if signal.SIGINT in received:
                cancel()

    watcher = threading.Thread(target=watch, name="localspec-interrupt", daemon=True)
    previous_socket = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    previous_handler = signal.signal(signal.SIGINT, on_interrupt)
    watcher.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
        signal.set_wakeup_fd(previous_socket)
        waking.close()
        watcher.join()
        waiting.close()


@contextlib.contextmanager
def told_to_end(leave: Callable[[int], None]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP call `leave` with their number."""
    names = ("SIGTERM", "SIGHUP")  # Windows has the first one
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {n: signal.signal(n, lambda number, _frame: leave(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
