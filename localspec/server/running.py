"""Runs the server on a port until it is stopped."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.errors import LocalspecError
from localspec.server.refusal import overloaded, refusal_response

MOST_CONNECTIONS = 512
SPARE_CONNECTIONS = 256  # above that, until the oldest are ended
UNUSED_S = 60.0  # for a connection to send a request's headers, or to take what was written
_ACCEPTED_AT_ONCE = 128  # before any of them can be ended
_KEEP_ALIVE_S = 30
_GRACE_S = 5  # for answers to end when the server stops
LOOK_TICKS = 10  # of a tenth of a second, between two looks at the connections


class PortError(LocalspecError):
    """An address that cannot be listened on."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free. Raises PortError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family)
        # With its protocol named, or asyncio leaves Nagle's algorithm on: an event would wait
        # up to 40 ms until the client has acknowledged the one before.
        return socket.socket(family, made.type, socket.IPPROTO_TCP, made.detach())
    except (OSError, OverflowError) as error:
        raise PortError(
            f"cannot listen on {host}:{port}: {error}",
            "Stop what listens there, or choose another: --port N.",
        ) from error


def _allow_open_files(number: int) -> None:
    """Raise the limit of open files to the number, if allowed: macOS starts with 256."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _ClientConnection(H11Protocol):
    """A connection. Other parsers, which uvicorn prefers if they are there, bound no heads.

    What comes beyond all bounds is hung up on at once: there would be no file descriptors left.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS + SPARE_CONNECTIONS:
            transport.abort()


class Runner(uvicorn.Server):
    """Serves an application on a socket (`run(sockets=[…])`) until Ctrl-C or `should_exit`.

    ready: called once it serves. stop: called before it ends, while clients can still be told.
    """

    def __init__(
        self, app: ASGIApp, ready: Callable[[], None], stop: Callable[[], None]
    ) -> None:
        config = uvicorn.Config(
            self._answer,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            interface="asgi3",
            http=_ClientConnection,
            backlog=_ACCEPTED_AT_ONCE,
            ws="none",
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        super().__init__(config)
        _allow_open_files(2 * MOST_CONNECTIONS)
        self._app = app
        self._ready = ready
        self._stop = stop
        self._unused: dict[Any, tuple[Any, float]] = {}  # connections, since when

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():  # else as many may wait as are accepted at once
            each.listen(MOST_CONNECTIONS)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves it out at a second Ctrl-C, with a traceback
            await self.lifespan.shutdown()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % LOOK_TICKS == 0:
            self._end_unused(time.monotonic())
        return await super().on_tick(counter)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, or a refusal if there are too many connections."""
        if scope["type"] == "http" and len(self.server_state.connections) > MOST_CONNECTIONS:
            refusal = overloaded(f"{MOST_CONNECTIONS} connections are open already")
            refusal.headers = {"connection": "close"}
            await refusal_response(scope["path"], refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _end_unused(self, now_s: float) -> None:
        """End connections on which nothing has been answered for long.

        Such clients send headers byte by byte, or do not take what was written; uvicorn would
        wait for ever. If there are too many connections, the oldest are ended at once.
        """
        unused = {}
        for connection in self.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            is_done = cycle is None or cycle.response_complete
            if is_done or connection.transport.is_closing():
                last, since_s = self._unused.get(connection, (None, now_s))
                unused[connection] = (cycle, since_s if last is cycle else now_s)
        self._unused = unused
        num_surplus = len(self.server_state.connections) - MOST_CONNECTIONS
        by_age = sorted(unused, key=lambda connection: unused[connection][1])
        for number, connection in enumerate(by_age):
            if number < num_surplus or now_s - unused[connection][1] > UNUSED_S:
                connection.transport.abort()
