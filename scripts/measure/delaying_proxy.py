"""A TCP proxy that hands everything on after a delay, as a network between two machines does.

Each direction has its own thread to read and another to write, so that what is sent together
arrives together, and a delay adds nothing but itself.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20
_SPIN_S = 0.0005  # that a system's sleep may be late


@contextlib.contextmanager
def delaying(address: str, round_trip_s: float) -> Iterator[str]:
    """The address of a proxy for another address. round_trip_s: what `ping` would show."""
    host, _, port = address.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the block was left
                while True:
                    client, _ = listening.accept()
                    server = socket.create_connection((host, int(port)))
                    for one, other in ((client, server), (server, client)):
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        _pass_on(one, other, round_trip_s / 2)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _pass_on(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Begin to hand on what comes, each piece after a delay."""
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def read() -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            waiting.put((time.perf_counter() + delay_s, data))

    def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, data = waiting.get()
                _wait_until(due_s)
                if not data:
                    sink.shutdown(socket.SHUT_RDWR)
                    return
                sink.sendall(data)

    for work in (read, write):
        threading.Thread(target=work, daemon=True).start()


def _wait_until(due_s: float) -> None:
    """Sleep, and spin for the rest, which a sleep may miss."""
    left_s = due_s - time.perf_counter()
    if left_s > _SPIN_S:
        time.sleep(left_s - _SPIN_S)
    while time.perf_counter() < due_s:
        pass
