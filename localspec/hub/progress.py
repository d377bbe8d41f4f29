"""The progress of downloads, from the threads that fetch to the caller's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from localspec.hub.hub_file import HubFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of one file.

    state: "checking" (bytes that were here already), "downloading", "waiting" (for the hub, or
    for another process that fetches the same file), or "done". file: for owner/repo:QUANT it is
    named QUANT.gguf until the hub has said which file that is. total_bytes: 0 until known.
    """

    file: HubFile
    state: str
    received_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


class ProgressBoard:
    """The latest progress of each file. A slow reader misses steps, but is never behind."""

    def __init__(self) -> None:
        # Taken and given back in C: Ctrl-C cannot come in between, and leave it taken.
        self._changing = threading.Lock()
        self._called: SimpleQueue[None] = SimpleQueue()  # once while there is something new
        self._news: dict[HubFile, Progress] = {}
        self._ended: list[HubFile] = []

    def tell(self, progress: Progress) -> None:
        """Post the progress of a file."""
        with self._changing:
            self._call()
            self._news[progress.file] = progress

    def end(self, file: HubFile) -> None:
        """Say that a file's download has ended, whether it worked or not."""
        with self._changing:
            self._call()
            self._ended.append(file)

    def _call(self) -> None:
        if not (self._news or self._ended):
            self._called.put(None)

    def take(self, seconds: float) -> tuple[list[Progress], list[HubFile]]:
        """News since the last call, and files that have ended; waits at most so long."""
        with contextlib.suppress(Empty):
            self._called.get(timeout=seconds)
        with self._changing:
            news, self._news = list(self._news.values()), {}
            ended, self._ended = self._ended, []
        return news, ended
