"""Waiting for another thread, in a thread or on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")

_TURN_S = 0.1  # seconds of one turn of a wait on Windows, where Ctrl-C does not end a wait


def take_from(queue: SimpleQueue[Item]) -> Item:
    """Wait for the next item, and take it. Ctrl-C ends the wait."""
    while sys.platform == "win32":  # in short turns: Python handles Ctrl-C after each of them
        try:
            return queue.get(timeout=_TURN_S)
        except Empty:
            continue
    return queue.get()


class Outbox(Generic[Item]):
    """A queue of items for threads and for tasks of event loops. One of them gets each item."""

    def __init__(self) -> None:
        self._items: SimpleQueue[Item] = SimpleQueue()
        self._wakers: list[Callable[[], object]] = []  # each wakes a task that waits

    def put(self, item: Item) -> None:
        """Add an item, from any thread or signal handler. Wakes all tasks that wait."""
        self._items.put(item)
        # A woken task is not woken again for the next item, since waking takes long.
        wakers = self._wakers
        self._wakers = []
        for wake in wakers:
            with contextlib.suppress(RuntimeError):  # the task's event loop is closed
                wake()

    def take(self) -> Item:
        """Wait for the next item in a thread, and take it."""
        return take_from(self._items)

    async def take_async(self) -> Item:
        """Wait for the next item in a task, and take it."""
        while True:
            with contextlib.suppress(Empty):
                return self._items.get_nowait()
            is_put = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._wakers.append(functools.partial(loop.call_soon_threadsafe, is_put.set))
            # An item that was put before the waker was added would wake nobody.
            if self._items.empty():
                await is_put.wait()

    def take_all(self) -> list[Item]:
        """Take all present items, without waiting."""
        items: list[Item] = []
        with contextlib.suppress(Empty):
            while True:
                items.append(self._items.get_nowait())
        return items
