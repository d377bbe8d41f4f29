"""Runs the server on a port until it is stopped."""

from __future__ import annotations

import asyncio
import enum
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.errors import LocalspecError
from localspec.server.refusal import overloaded, refusal_response

MOST_ANSWERED = 512  # requests that are answered at a time, each on its own connection
SPARE_CONNECTIONS = 256  # further connections, which are unused or get a refusal
FIRST_BYTE_S = 10.0  # a new connection has to send something within this time
STALLED_S = 10.0  # a client that takes nothing for this long makes room for others
UNUSED_S = 60.0  # a connection has to send a request's headers, or take its response, in time
_NEW_S = 1.0  # a connection is new for this long, and makes room later than an idle one
_ACCEPTED_AT_ONCE = 128  # before the first of them can be ended
_KEEP_ALIVE_S = 30
_GRACE_S = 5  # for answers to end when the server stops
LOOK_TICKS = 10  # tenths of a second between two looks at the connections


class PortError(LocalspecError):
    """An address that cannot be listened on."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free. Raises PortError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family)
        # Name the protocol, or asyncio leaves Nagle's algorithm on: an event would wait up to
        # 40 ms until the client has acknowledged the event before it.
        return socket.socket(family, made.type, socket.IPPROTO_TCP, made.detach())
    except (OSError, OverflowError) as error:
        raise PortError(
            f"cannot listen on {host}:{port}: {error}",
            "Stop the program that listens there, or choose another port: --port N.",
        ) from error


def _allow_open_files(number: int) -> None:
    """Raise the limit of open files to the number, if allowed: macOS starts with 256."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number
    if hard != resource.RLIM_INFINITY:
        wanted = min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Use(enum.IntEnum):
    """The uses of connections without a request; the first of these makes room first."""

    SILENT = enum.auto()  # it has sent nothing at all
    IDLE = enum.auto()  # its last request is answered, and no other has begun
    SENDS_HEAD = enum.auto()  # the headers of a request have not all arrived
    IS_NEW = enum.auto()  # it has not had the time to ask
    TAKES_ANSWER = enum.auto()  # the client has not taken the whole response yet


class _Unused(NamedTuple):
    """How a connection is unused, and since when. The smallest one makes room first."""

    use: _Use
    since_s: float


class _ClientConnection(H11Protocol):
    """A connection. It uses h11: uvicorn's other parsers do not bound the size of headers.

    If there are too many connections, a new one takes the place of an unused one at once. If
    all are in use, the new one itself is ended: file descriptors would run out.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._quiet_since_s = time.monotonic()  # when it was made, or its last answer ended
        self._untaken_since_s: float | None = None  # when writing was paused, if it is

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) <= MOST_ANSWERED + SPARE_CONNECTIONS:
            return
        others: list[Any] = [other for other in self.connections if other is not self]
        ended = _first_unused(others) or self
        ended.hang_up()

    def on_response_complete(self) -> None:
        self._quiet_since_s = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._untaken_since_s = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._untaken_since_s = None
        super().resume_writing()

    def hang_up(self) -> None:
        """End the connection without writing the rest. It no longer counts."""
        self.connections.discard(self)
        self.transport.abort()

    @property
    def unused(self) -> _Unused | None:
        """How the connection is unused; None while a request is being answered."""
        since_s = self._untaken_since_s
        if since_s is not None and time.monotonic() - since_s > STALLED_S:
            return _Unused(_Use.TAKES_ANSWER, since_s)
        if self._is_answering() and not self.transport.is_closing():
            return None
        return _Unused(self._use_between_answers(), self._quiet_since_s)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _use_between_answers(self) -> _Use:
        if self.transport.is_closing() or self.transport.get_write_buffer_size() > 0:
            return _Use.TAKES_ANSWER
        is_first = self.cycle is None
        if is_first and time.monotonic() - self._quiet_since_s < _NEW_S:
            return _Use.IS_NEW
        if self.conn.trailing_data[0]:
            return _Use.SENDS_HEAD
        if is_first:
            return _Use.SILENT
        return _Use.IDLE

    def end_if_unused(self, now_s: float) -> None:
        """End the connection if it has been unused for too long.

        Its client sends headers byte by byte, or does not take the response. uvicorn would wait
        for ever.

        Args:
            now_s: the time, by `time.monotonic`.
        """
        unused = self.unused
        if unused is None:
            return
        limit_s = UNUSED_S
        if unused.use is _Use.SILENT:
            limit_s = FIRST_BYTE_S
        if now_s - unused.since_s > limit_s:
            self.hang_up()


def _first_unused(connections: Iterable[_ClientConnection]) -> _ClientConnection | None:
    """The connection that makes room first; None if all are in use."""
    first: _ClientConnection | None = None
    first_unused: _Unused | None = None
    for connection in connections:
        unused = connection.unused
        if unused is None:
            continue
        if first_unused is None or unused < first_unused:
            first = connection
            first_unused = unused
    return first


class Runner(uvicorn.Server):
    """Serves an application on a socket (`run(sockets=[…])`) until Ctrl-C or `should_exit`.

    Args:
        app: the application.
        ready: called once it serves.
        stop: called before it ends, while clients can still get an error.
    """

    def __init__(
        self,
        app: ASGIApp,
        ready: Callable[[], None],
        stop: Callable[[], None],
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
        _allow_open_files(2 * MOST_ANSWERED)
        self._app = app
        self._ready = ready
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():  # else only _ACCEPTED_AT_ONCE connections may wait
            listener.listen(MOST_ANSWERED)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves it out at a second Ctrl-C, with a traceback
            await self.lifespan.shutdown()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % LOOK_TICKS == 0:
            self._end_unused()
        return await super().on_tick(counter)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, or a refusal if it has too much to answer."""
        if scope["type"] == "http" and self._num_answered() > MOST_ANSWERED:
            refusal = overloaded(f"{MOST_ANSWERED} requests are being answered already")
            refusal.headers = {"connection": "close"}
            await refusal_response(scope["path"], refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _num_answered(self) -> int:
        """The number of requests that are being answered, with this one."""
        connections: set[Any] = self.server_state.connections
        return sum(connection.unused is None for connection in connections)

    def _end_unused(self) -> None:
        now_s = time.monotonic()
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            connection.end_if_unused(now_s)
