"""Waits for what other threads and processes do, and threads that work at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil


def wait_until(is_so: Callable[[], object], patience_s: float = 60) -> None:
    """Look again and again; AssertionError if it is never so."""
    until_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def processes_with(argument: str) -> list[psutil.Process]:
    """The processes that have this argument."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if argument in process.cmdline():
                found.append(process)
    return found


@contextlib.contextmanager
def at_once(*works: Callable[[], Any]) -> Iterator[list[Any]]:
    """Threads that do these, joined behind the block; what each returned or raised."""
    found: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            found[number] = works[number]()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    yield found
    for thread in threads:
        thread.join()
