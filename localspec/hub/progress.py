"""The progress of downloads, from the threads that fetch to the one that listens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from localspec.hub.hub_file import HubFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one file is.

    state: "checking" (bytes that were here already), "downloading", "waiting" (for the hub,
    or for another process that fetches the same file), or "done". file: of owner/repo:QUANT,
    while the hub is asked which file that is, one with the name QUANT.gguf. total_bytes: 0
    until it is known.
    """

    file: HubFile
    state: str
    received_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


class ProgressBoard:
    """The latest of every file: who looks seldom misses steps, and is never behind."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: dict[HubFile, Progress] = {}
        self._ended: list[HubFile] = []

    def tell(self, progress: Progress) -> None:
        """Put up how far a file is."""
        with self._changed:
            self._news[progress.file] = progress
            self._changed.notify()

    def end(self, file: HubFile) -> None:
        """Say that nothing more will come of a file, whether it is there or not."""
        with self._changed:
            self._ended.append(file)
            self._changed.notify()

    def take(self, seconds: float) -> tuple[list[Progress], list[HubFile]]:
        """What is new since the last call, and which files have ended; waits so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._ended, seconds)
            news, self._news = list(self._news.values()), {}
            ended, self._ended = self._ended, []
        return news, ended
