"""llama.cpp's RPC servers for tests, and one that answers as it was told to, or not at all.

scripts/develop/build_rpc_server.py builds the program.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import threading
from collections.abc import Iterator

import llama_cpp
import pytest

from comparison.llama_tools import RPC_SERVER, binaries_of, default_folder, program_in
from comparison.rpc_server import RpcServer

HELLO, DEVICE_COUNT, DEVICE_MEMORY = 14, 15, 11  # of enum rpc_cmd in ggml-rpc.cpp


def hello(major: int, minor: int, patch: int = 0) -> bytes:
    """What a server of that version says first."""
    return struct.pack("<Q3B25x", 28, major, minor, patch)


def device_count(count: int) -> bytes:
    """How many devices it has."""
    return struct.pack("<QI", 4, count)


def device_memory(free: int, total: int) -> bytes:
    """What a device of it has."""
    return struct.pack("<QQQ", 16, free, total)


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The address of a port that answers each request with the next of these, then hangs up.

    Without any it is mute: it accepts, and says nothing.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):  # the block was left
                while True:
                    line, _ = listening.accept()
                    kept.append(line)
                    if answers:
                        _answer(line, answers)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for line in kept:
                line.close()


def _answer(line: socket.socket, answers: tuple[bytes, ...]) -> None:
    with line, contextlib.suppress(OSError):
        for answer in answers:
            head = line.recv(9, socket.MSG_WAITALL)
            if len(head) < 9:
                return
            line.recv(struct.unpack("<xQ", head)[0], socket.MSG_WAITALL)
            line.sendall(answer)


# Before tests have a cache of their own.
PROGRAM = program_in(binaries_of(default_folder()), RPC_SERVER)

needs_servers = pytest.mark.skipif(
    not (llama_cpp.llama_supports_rpc() and PROGRAM.exists()),
    reason="ggml-rpc-server is not installed, or this llama-cpp-python has no RPC backend",
)


@contextlib.contextmanager
def stopped(server: RpcServer) -> Iterator[None]:
    """While the block runs, it stands still."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)
