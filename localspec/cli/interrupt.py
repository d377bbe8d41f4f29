"""Ctrl-C stops an answer or a measurement at once; signals to end are heard in order."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator


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
