"""Asks llama.cpp's RPC servers for their devices, with a plain socket.

libllama ends the process if a server does not answer, so each server is tried here first, with
a limit on every wait. Follows ggml-rpc.cpp: a request is a command (1 byte), a size (8 bytes)
and that many bytes; an answer is a size and that many bytes. All numbers are little-endian. A
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
# Commands, numbers of enum rpc_cmd.
_HELLO = 14
_DEVICE_COUNT = 15
_DEVICE_MEMORY = 11
_NO_CAPABILITIES = bytes(24)  # of RDMA
_HELLO_ANSWER = "<3B25x"  # the version; then a byte of padding and 24 bytes of capabilities
_MOST_DEVICES = 64  # of a server; more are ignored


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
    """Ask one server for its protocol and its devices.

    Args:
        address: "host:port", as `rpc_address.checked_addresses` has checked it.

    Raises:
        RpcError: If it does not answer within SERVER_WAIT_S, is not an RPC server, or has no
            device.
    """
    try:
        with _connection(address) as ask:
            protocol = Protocol(*ask(_HELLO, _NO_CAPABILITIES, _HELLO_ANSWER))
            (num_devices,) = ask(_DEVICE_COUNT, b"", "<I")
            sizes = []  # free and total bytes of each device
            for index in range(min(num_devices, _MOST_DEVICES)):
                request = struct.pack("<I", index)
                sizes.append(ask(_DEVICE_MEMORY, request, "<QQ"))
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
    if not sizes:
        raise RpcError(f"{address} has no device", "Start it with one (--device).")
    devices = []
    for number, (free_bytes, total_bytes) in enumerate(sizes, 1):
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
def _connection(address: str) -> Iterator[Callable[[int, bytes, str], tuple[int, ...]]]:
    """A block with a connection to a server. Raises OSError if it cannot connect.

    Yields:
        A function that sends a request and returns the numbers of the answer. It takes a
        command, the bytes of the request, and the layout of the answer as in `struct`. It
        raises OSError; EOFError if the server closes the connection; ValueError if the answer
        has another size.
    """
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection,
        connection.makefile("rb") as file,
    ):
        reset_at_end(connection)
        connection.settimeout(SERVER_WAIT_S)
        connection.connect(_host_and_port(address))

        def receive(layout: str) -> tuple[int, ...]:
            size = struct.calcsize(layout)
            data = file.read(size)
            if len(data) < size:
                raise EOFError("it closed the connection")
            return struct.unpack(layout, data)

        def ask(command: int, request: bytes, layout: str) -> tuple[int, ...]:
            head = struct.pack("<BQ", command, len(request))
            connection.sendall(head + request)
            (size,) = receive("<Q")
            expected = struct.calcsize(layout)
            if size != expected:
                raise ValueError(f"it sent {size} bytes instead of {expected}")
            return receive(layout)

        yield ask


def ask_servers(addresses: Sequence[str]) -> list[RpcServer | RpcError]:
    """Ask all servers at the same time. Returns the description of each, or its error."""

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
    """Let the system reset the connection when it is closed, or its process ends.

    A server of llama.cpp that writes to a connection that was closed normally is ended by
    SIGPIPE. On a connection that was reset, its reads and writes fail, and it continues with
    its next client.
    """
    layout = "ii"  # of struct linger
    if sys.platform == "win32":
        layout = "hh"
    is_on = 1
    seconds = 0
    linger = struct.pack(layout, is_on, seconds)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def reset_connections_at_end(addresses: Sequence[str]) -> None:
    """`reset_at_end` for libllama's connections to these servers.

    They are found among the open file descriptors of this process. Does nothing where the
    system does not list these.
    """
    descriptors = Path("/dev/fd")
    if not addresses or not descriptors.is_dir():
        return
    servers = set()
    for address in addresses:
        host, port = _host_and_port(address)
        with contextlib.suppress(OSError):  # the name is not found any more
            servers.add((socket.gethostbyname(host), port))
    for descriptor in os.listdir(descriptors):
        # An error: no socket, no peer, or closed already.
        with contextlib.suppress(OSError), _copied_socket(int(descriptor)) as connection:
            is_internet = connection.family == socket.AF_INET
            if is_internet and connection.getpeername() in servers:
                reset_at_end(connection)


def _copied_socket(descriptor: int) -> socket.socket:
    """A socket of a copy of the descriptor, so that libllama's own stays open.

    Raises OSError for the descriptor of something else.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _host_and_port(address: str) -> tuple[str, int]:
    """Host and port of a checked address."""
    host, _, port = address.partition(":")
    return host, int(port)
