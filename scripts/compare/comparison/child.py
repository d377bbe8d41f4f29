"""A child process whose peak memory is known when it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO


class Child:
    """A running command; only this may wait for its end.

    errors: the file that gets its standard error. folder: where it runs, if not here.
    """

    def __init__(
        self, command: Sequence[str | Path], errors: IO[bytes], folder: Path | None = None
    ) -> None:
        self._peak_bytes: int | None = None
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            text=True,
            encoding="utf-8",
            errors="replace",
        )

    def say(self, line: str) -> str:
        """Send a line and return the next one; empty when the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self.process.stdout.readline()

    def has_ended(self) -> bool:
        """Whether it is over."""
        return self._reap(block=False)

    def wait(self) -> int | None:
        """Its peak memory in bytes, where the system has it, once it has ended by itself."""
        self._reap(block=True)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return self._peak_bytes

    def end(self) -> int | None:
        """Terminate it if it still runs, then as `wait`."""
        if not self.has_ended():
            self.process.terminate()
        return self.wait()

    def _reap(self, *, block: bool) -> bool:
        process = self.process
        if process.returncode is not None:
            return True
        if not hasattr(os, "wait4"):
            return (process.wait() if block else process.poll()) is not None
        # Not `Popen.wait`, which asks for no usage.
        found, status, usage = os.wait4(process.pid, 0 if block else os.WNOHANG)
        if found == 0:
            return False
        process.returncode = os.waitstatus_to_exitcode(status)
        self._peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return True
