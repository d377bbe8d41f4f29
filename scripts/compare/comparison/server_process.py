"""A server of a model in a process of its own, asked over HTTP."""

from __future__ import annotations

import json
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from comparison.child import Child
from localspec.errors import LocalspecError

_START_S = 600.0  # a large file from a slow disk


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
