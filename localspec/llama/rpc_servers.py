"""Asks llama.cpp's RPC servers for their devices, with a plain socket.

libllama ends the process if a server does not answer, so each server is tried here first, with
a limit on every wait. Follows ggml-rpc.cpp: a request is a command (1 byte), a size (8 bytes;
all numbers are little-endian) and that many bytes; an answer is a size and that many bytes. A
server serves one client at a time: the system accepts other connections, which then wait.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from localspec.errors import RpcError
from localspec.llama.devices import REMOTE, Device
from localspec.system.call_thread import CallThread

SERVER_WAIT_S = 5.0  # seconds for a connection, and for each answer
_HELLO = 14
_DEVICE_COUNT = 15
_DEVICE_MEMORY = 11  # of enum rpc_cmd
_CAPABILITIES = bytes(24)  # of RDMA: none
_MOST_DEVICES = 64  # more are ignored


class Protocol(NamedTuple):
    """A version of the RPC protocol."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, slots=True)
class RpcServer:
    """A server's description of itself."""

    address: str
    """"host:port", as the user wrote it."""

    protocol: Protocol
    devices: tuple[Device, ...]


def ask_server(address: str) -> RpcServer:
    """Ask the server at a checked address, and no other.

    Raises RpcError if it does not answer within seconds, or is not an RPC server.
    """
    try:
        with _asking(address) as ask:
            # The version is followed by a byte of padding and 24 bytes of capabilities.
            protocol = Protocol(*ask(_HELLO, _CAPABILITIES, "<3B25x"))
            (count,) = ask(_DEVICE_COUNT, b"", "<I")
            memory = []
            for index in range(min(count, _MOST_DEVICES)):
                memory.append(ask(_DEVICE_MEMORY, struct.pack("<I", index), "<QQ"))
    except TimeoutError as error:
        raise RpcError(
            f"{address} did not answer within {SERVER_WAIT_S:.0f} s",
            "It has to be an idle RPC server of llama.cpp: one serves one client at a time.",
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RpcError(
            f"{address} cannot be reached: {reason}",
            "Start it there: ggml-rpc-server -H ADDRESS -p PORT",
        ) from error
    except (EOFError, ValueError) as error:
        raise RpcError(
            f"{address} does not answer as an RPC server of llama.cpp: {error}",
            "Name a running ggml-rpc-server, built from the source of your llama-cpp-python.",
        ) from error
    if not memory:
        raise RpcError(f"{address} has no device", "Start it with one (--device).")
    devices = []
    for number, (free_bytes, total_bytes) in enumerate(memory, 1):
        name = address
        if number > 1:
            name = f"{address}, device {number}"
        devices.append(
            Device(
                name=name,
                description=f"llama.cpp RPC server, protocol {protocol}",
                kind=REMOTE,
                free_bytes=free_bytes,
                total_bytes=total_bytes,
                server=address,
            )
        )
    return RpcServer(address, protocol, tuple(devices))


@contextlib.contextmanager
def _asking(address: str) -> Iterator[Callable[[int, bytes, str], tuple[int, ...]]]:
    """A connection, as a function of a command, a request, and the layout of the answer.

    The function raises OSError, EOFError for a closed connection, ValueError for an answer of
    another size.
    """
    host, port = _parts(address)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as line, line.makefile("rb") as file:
        reset_at_end(line)
        line.settimeout(SERVER_WAIT_S)
        line.connect((host, int(port)))

        def received(layout: str) -> tuple[int, ...]:
            size = struct.calcsize(layout)
            data = file.read(size)
            if len(data) < size:
                raise EOFError("it closed the connection")
            return struct.unpack(layout, data)

        def ask(command: int, request: bytes, answer: str) -> tuple[int, ...]:
            head = struct.pack("<BQ", command, len(request))
            line.sendall(head + request)
            (size,) = received("<Q")
            expected = struct.calcsize(answer)
            if size != expected:
                raise ValueError(f"it sent {size} bytes instead of {expected}")
            return received(answer)

        yield ask


def ask_servers(addresses: Sequence[str]) -> list[RpcServer | RpcError]:
    """Ask all servers at once. Returns the description of each, or its error."""

    def ask(address: str) -> RpcServer | RpcError:
        try:
            return ask_server(address)
        except RpcError as error:
            return error

    threads = [CallThread(partial(ask, address)) for address in addresses]
    for thread in threads:
        thread.start()
    return [thread.result() for thread in threads]


def reset_at_end(connection: socket.socket) -> None:
    """Reset the connection when it is closed, or its process ends.

    SIGPIPE ends a server of llama.cpp that writes to a client that has left, even to one that
    only waited. On a connection that was reset, reads and writes fail, and the server continues
    with its next client.
    """
    layout = "hh" if sys.platform == "win32" else "ii"
    on = 1
    seconds = 0
    linger = struct.pack(layout, on, seconds)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def reset_lines_at_end(addresses: Sequence[str]) -> None:
    """`reset_at_end` for libllama's connections to the servers, if they can be found."""
    descriptors = Path("/dev/fd")
    if not addresses or not descriptors.is_dir():
        return
    known = set()
    for address in addresses:
        host, port = _parts(address)
        known.add((socket.gethostbyname(host), int(port)))
    for name in os.listdir(descriptors):
        with contextlib.suppress(OSError):  # no socket, no peer, or closed already
            line = socket.socket(fileno=os.dup(int(name)))
            with line:
                if line.family == socket.AF_INET and line.getpeername() in known:
                    reset_at_end(line)


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.partition(":")
    return host, port
