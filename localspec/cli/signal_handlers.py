"""Signal handlers of commands, for Ctrl-C and for signals to end."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Let the first SIGINT call `cancel` while the body runs; the next has its usual effect."""

    def on_interrupt(_number: int, _frame: object) -> None:
        cancel()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def leave_on_termination(leave: Callable[[int], None]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP call `leave` with their number while the body runs."""
    numbers = [signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)

    def on_signal(number: int, _frame: object) -> None:
        leave(number)

    previous = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
