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

_LOOK_S = 0.1  # seconds between two checks on Windows, where Ctrl-C does not end a wait


def take_from(queue: SimpleQueue[Item]) -> Item:
    """Wait for the next item. Ctrl-C ends the wait."""
    while sys.platform == "win32":  # wait in short turns, since Ctrl-C comes between two
        try:
            return queue.get(timeout=_LOOK_S)
        except Empty:
            continue
    return queue.get()


class Outbox(Generic[Item]):
    """Items on their way to threads and tasks. The first that takes an item gets it."""

    def __init__(self) -> None:
        self._items: SimpleQueue[Item] = SimpleQueue()
        self._wakes: list[Callable[[], object]] = []  # each wakes a task that waits

    def put(self, item: Item) -> None:
        """Add an item, from any thread or signal handler."""
        self._items.put(item)
        # Each task is woken once, since waking takes longer than an item.
        wakes = self._wakes
        self._wakes = []
        for wake in wakes:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                wake()

    def take(self) -> Item:
        """Wait for the next item, in a thread."""
        return take_from(self._items)

    async def take_async(self) -> Item:
        """Wait for the next item, in a task."""
        while True:
            with contextlib.suppress(Empty):
                return self._items.get_nowait()
            news = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._wakes.append(functools.partial(loop.call_soon_threadsafe, news.set))
            if self._items.empty():  # else an item came before the task could be woken
                await news.wait()

    def take_all(self) -> list[Item]:
        """All present items, without waiting."""
        items: list[Item] = []
        with contextlib.suppress(Empty):
            while True:
                items.append(self._items.get_nowait())
        return items
