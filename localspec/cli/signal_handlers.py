"""What a command does on Ctrl-C, and on signals to end."""

from __future__ import annotations

import contextlib
import signal
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
    names = ("SIGTERM", "SIGHUP")  # Windows has the first one
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {n: signal.signal(n, lambda number, _frame: leave(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
