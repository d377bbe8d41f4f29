"""The log of a server: a file with its stderr, whose path and last lines are in errors."""

from __future__ import annotations

import os
import re
import threading
from io import FileIO
from pathlib import Path

import platformdirs

from localspec.system.atomic_write import make_private_folder

_MOST_BYTES = 1_000_000  # bytes in the file; then the file is emptied
_TAIL_BYTES = 4000  # last bytes kept in memory, to be quoted
_QUOTED_LINES = 5
_READ_BYTES = 1 << 16  # bytes of one read: a pipe holds no more on Linux
_EMPTIED_NOTE = b"[earlier lines are not kept]\n"


class ServerLog:
    """Copies what a server writes to stderr from a pipe into a file, in a thread of its own.

    Args:
        name: the server's name.
    """

    def __init__(self, name: str) -> None:
        folder = platformdirs.user_state_path("localspec", appauthor=False) / "mcp"
        make_private_folder(folder)
        file_name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        self.path: Path = folder / f"{file_name}.log"
        self.ended = threading.Event()
        """Set once no process can write to the pipe any more, because the server has ended."""

        self._tail = b""
        self._file = FileIO(str(self.path), "w")
        self._num_bytes = 0
        self._lock = threading.Lock()
        reading_end, writing_end = os.pipe()
        self.pipe = os.fdopen(writing_end, "w")
        """The writing end of the pipe, for the server's stderr. The caller closes it once the
        server has started."""

        reader = threading.Thread(
            target=self._copy_pipe,
            args=(reading_end,),
            name="localspec-mcp-log",
            daemon=True,
        )
        reader.start()

    @property
    def last_lines(self) -> list[str]:
        """The last lines of the log that are not blank, at most _QUOTED_LINES."""
        text = self._tail.decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-_QUOTED_LINES:]

    def note(self, text: str) -> None:
        """Add a line that the server did not write, in brackets."""
        self._write(f"[{text}]\n".encode(errors="replace"))

    def _copy_pipe(self, reading_end: int) -> None:
        """Copy the pipe into the file until every writer has closed it.

        Then set `ended`. The thread's work.

        Args:
            reading_end: The file descriptor of the pipe.
        """
        while True:
            data = os.read(reading_end, _READ_BYTES)
            if not data:
                break
            self._write(data)
        os.close(reading_end)
        with self._lock:
            self._file.close()
        self.ended.set()

    def _write(self, data: bytes) -> None:
        """Write to the file, unless it is closed, and to the tail in memory.

        The file is emptied before it would have more than _MOST_BYTES.
        """
        with self._lock:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            if self._file.closed:
                return
            if self._num_bytes + len(data) > _MOST_BYTES:
                self._file.seek(0)
                self._file.truncate()
                self._file.write(_EMPTIED_NOTE)
                self._num_bytes = 0
            self._num_bytes += len(data)
            try:
                self._file.write(data)
            except OSError:
                return  # the disk is full; the tail in memory has the last lines
