"""A file with a server's stderr, which errors name and quote."""

from __future__ import annotations

import os
import re
import threading
from io import FileIO
from pathlib import Path

import platformdirs

from localspec.system.atomic_write import make_private_folder

_MOST_BYTES = 1_000_000  # in the file; then it begins anew
_TAIL_BYTES = 4000  # kept in memory, to be quoted
_QUOTED_LINES = 5
_BEGUN_ANEW = b"[earlier lines are not kept]\n"


class ServerLog:
    """Copies a pipe into a file, in a thread of its own.

    Args:
        name: the server's name.
    """

    def __init__(self, name: str) -> None:
        folder = platformdirs.user_state_path("localspec", appauthor=False) / "mcp"
        make_private_folder(folder)
        file_name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        self.path: Path = folder / f"{file_name}.log"
        self.ended = threading.Event()
        """Whether no process can write into the pipe any more: the server has ended."""

        self._tail = b""
        self._file = FileIO(str(self.path), "w")
        self._num_bytes = 0
        self._lock = threading.Lock()
        reading_end, writing_end = os.pipe()
        self.pipe = os.fdopen(writing_end, "w")
        """The server's stderr. It has to be closed here once the server has it."""

        reader = threading.Thread(
            target=self._drain,
            args=(reading_end,),
            name="localspec-mcp-log",
            daemon=True,
        )
        reader.start()

    @property
    def last_lines(self) -> list[str]:
        """The last lines that were written, for people."""
        text = self._tail.decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-_QUOTED_LINES:]

    def note(self, text: str) -> None:
        """Add a line of our own."""
        self._write(f"[{text}]\n".encode(errors="replace"))

    def _drain(self, pipe: int) -> None:
        while True:
            data = os.read(pipe, 65536)
            if not data:
                break
            self._write(data)
        os.close(pipe)
        with self._lock:
            self._file.close()
        self.ended.set()

    def _write(self, data: bytes) -> None:
        with self._lock:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            if self._file.closed:
                return
            if self._num_bytes + len(data) > _MOST_BYTES:
                self._file.seek(0)
                self._file.truncate()
                self._file.write(_BEGUN_ANEW)
                self._num_bytes = 0
            self._num_bytes += len(data)
            try:
                self._file.write(data)
            except OSError:
                return  # the disk is full: the last lines are in memory
