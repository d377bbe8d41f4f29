"""llama.cpp's RPC servers for tests: built beside llama-server, of the same source.

`python scripts/develop/build_rpc_server.py` builds the program.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import pytest

from comparison.llama_tools import RPC_SERVER, binaries_of, default_folder, program_in

# Before tests have a cache of their own.
PROGRAM = program_in(binaries_of(default_folder()), RPC_SERVER)

needs_servers = pytest.mark.skipif(
    not (llama_cpp.llama_supports_rpc() and PROGRAM.exists()),
    reason="llama-cpp-python with RPC, or ggml-rpc-server, is not installed",
)


class Server:
    """A running server on the loopback, of which a test may do with as it likes."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Start it, again if it has ended. Returns once it listens."""
        command = [PROGRAM, "-H", "127.0.0.1", "-p", str(self.port), "-t", "1"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while not _listens(self.port):
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """End it, and start it again."""
        self.kill()
        self.start()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """While the block runs, it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def _listens(port: int) -> bool:
    """Whether somebody does. Asks the system, since a server takes one client at a time."""
    wanted = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text("utf-8").splitlines()[1:]
    return any(line.split()[1] == wanted and line.split()[3] == "0A" for line in lines)


@contextlib.contextmanager
def running_servers(count: int) -> Iterator[list[Server]]:
    """So many servers, which have ended when the block is left."""
    with contextlib.ExitStack() as undo:
        servers = []
        for _ in range(count):
            server = Server()
            undo.callback(lambda one=server: one.process.poll() is None and one.kill())
            servers.append(server)
        yield servers
