"""What a command does on Ctrl-C, and on signals to end."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT call `cancel` while the main thread waits for another; a second one raises."""

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
    """Let SIGTERM and SIGHUP call `leave` with their number."""
    numbers = [signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)

    def on_signal(number: int, _frame: object) -> None:
        leave(number)

    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
