"""Waiting for another thread."""

from __future__ import annotations

import sys
from queue import Empty, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")

_LOOK_S = 0.1  # on Windows, where Ctrl-C does not end waiting


def taken(queue: SimpleQueue[Item]) -> Item:
    """The next item, waiting for it in a way that Ctrl-C ends."""
    while sys.platform == "win32":
        try:
            return queue.get(timeout=_LOOK_S)
        except Empty:
            continue
    return queue.get()
