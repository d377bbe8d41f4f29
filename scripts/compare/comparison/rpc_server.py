"""ggml-rpc-server on the loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from localspec.errors import LocalspecError, RpcError
from localspec.llama.rpc_servers import ask_server

_START_S = 60.0


class RpcServer:
    """A running server at a port of its own. program: its path."""

    def __init__(self, program: Path, num_threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.address = f"127.0.0.1:{port}"
        self._command: list[str | Path] = [
            program,
            "-H",
            "127.0.0.1",
            "-p",
            port,
            "-t",
            str(num_threads),
        ]
        self.start()

    def start(self) -> None:
        """Start it, again if it has ended, and wait until it answers. Raises LocalspecError."""
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(RpcError):
                ask_server(self.address)
                return
            time.sleep(0.02)
        self.kill()
        raise LocalspecError(f"{self._command[0]} did not start at {self.address}")

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_servers(program: Path, count: int, num_threads: int) -> Iterator[list[RpcServer]]:
    """RPC servers that run while the block does."""
    with contextlib.ExitStack() as undo:
        servers = []
        for _ in range(count):
            server = RpcServer(program, num_threads)
            undo.callback(server.kill)
            servers.append(server)
        yield servers
