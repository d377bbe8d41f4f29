"""Stands where an RPC server is expected, and answers as it was told to, or not at all."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

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
