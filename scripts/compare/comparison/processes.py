"""Child processes whose peak memory is known at their end, and servers in them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from localspec.errors import LocalspecError

_START_S = 600.0  # a large file from a slow disk


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


class ServerProcess:
    """A server with /health. It is ready when the block is entered, and ended after it.

    command: to which `--host` and `--port` are added. folder: where it runs, if not here.
    peak_bytes: see `contender.Contender`.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], folder: Path | None = None
    ) -> None:
        self.name = name
        self.peak_bytes: int | None = None
        self._command = command
        self._folder = folder

    def __enter__(self) -> ServerProcess:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()
        command = [*self._command, "--host", "127.0.0.1", "--port", str(port)]
        self._child = Child(command, self._log, self._folder)
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.peak_bytes = self._child.end()
        self._log.close()

    def ask(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """The JSON that it answers with; without a body that of a GET."""
        with self._response(path, body) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def ask_for_events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON of each event of a streamed answer."""
        with self._response(path, body) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))

    def _response(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(asked, timeout=_START_S)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            try:
                self.ask("/health", None)
                return
            except OSError:  # nobody listens yet, or "loading model"
                if self._child.has_ended():
                    break
            time.sleep(0.1)
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")
        raise LocalspecError(f"{self.name} did not start: {said[-600:]}")
