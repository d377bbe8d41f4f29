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
FIRST_BYTE_S = 10.0  # a connection that has sent nothing for this long is ended
STALLED_S = 10.0  # a client that reads no more of its response for this long can be ended
# A connection is ended if the headers of a request, or reading a response, take this long.
UNUSED_S = 60.0
_NEW_S = 1.0  # a connection counts as new for this long
_ACCEPTED_AT_ONCE = 128  # connections that are accepted before any of them can be ended
_KEEP_ALIVE_S = 30  # an idle connection stays open for this long
_GRACE_S = 5  # when the server stops, answers may take this long to end
LOOK_TICKS = 10  # tenths of a second between two checks for unused connections


class PortError(LocalspecError):
    """The server cannot listen on an address."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on a host's port; port 0 is any free port. Raises PortError."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family = addresses[0][0]
        listener = socket.create_server((host, port), family=family)
        # Name the protocol, or asyncio leaves Nagle's algorithm on: an event would wait up to
        # 40 ms until the client has acknowledged the event before it.
        return socket.socket(family, listener.type, socket.IPPROTO_TCP, listener.detach())
    except (OSError, OverflowError) as error:
        raise PortError(
            f"cannot listen on {host}:{port}: {error}",
            "Stop the program that listens there, or choose another port: --port N.",
        ) from error


def _allow_open_files(number: int) -> None:
    """Raise the limit of open files to a number, as far as it may: macOS begins with 256."""
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
    """What a connection does while no request of it is being answered.

    If connections have to be ended to make room for others, those of the first use come first.
    """

    SILENT = enum.auto()  # it has sent nothing at all
    IDLE = enum.auto()  # its last request is answered, and no other has begun
    SENDS_HEAD = enum.auto()  # the headers of a request have not all arrived
    IS_NEW = enum.auto()  # it was opened a moment ago, and no request has arrived yet
    TAKES_ANSWER = enum.auto()  # the client has not read the whole response yet


class _Unused(NamedTuple):
    """What an unused connection does, and since when. The smallest one makes room first."""

    use: _Use
    since_s: float
    """The time by `time.monotonic`."""


class _ClientConnection(H11Protocol):
    """A client's connection. It uses h11: uvicorn's other parsers allow headers of any size.

    If there are too many connections, an unused one is ended for a new one. If all others are
    in use, the new one is ended, or file descriptors would run out.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        # When the last response ended; before the first one, when the connection was made.
        self._quiet_since_s = time.monotonic()
        # Since when writing is paused because the client does not read; None if it is not.
        self._paused_since_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, and end one if there are too many. asyncio calls this."""
        super().connection_made(transport)
        if len(self.connections) <= MOST_ANSWERED + SPARE_CONNECTIONS:
            return
        others: list[Any] = [other for other in self.connections if other is not self]
        surplus = _first_to_end(others) or self
        surplus.hang_up()

    def on_response_complete(self) -> None:
        self._quiet_since_s = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._paused_since_s = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._paused_since_s = None
        super().resume_writing()

    def hang_up(self) -> None:
        """End the connection without writing the rest of a response. It no longer counts."""
        self.connections.discard(self)
        self.transport.abort()

    @property
    def unused(self) -> _Unused | None:
        """What the connection does if it is unused; None while a request is being answered.

        It also counts as unused if the client has read nothing of a response for `STALLED_S`.
        """
        since_s = self._paused_since_s
        if since_s is not None and time.monotonic() - since_s > STALLED_S:
            return _Unused(_Use.TAKES_ANSWER, since_s)
        if self._is_answering() and not self.transport.is_closing():
            return None
        return _Unused(self._use_between_answers(), self._quiet_since_s)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _use_between_answers(self) -> _Use:
        """What the connection does while no request of it is being answered."""
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

        uvicorn would wait for ever for a client that sends headers byte by byte, or that does
        not read its response.

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


def _first_to_end(connections: Iterable[_ClientConnection]) -> _ClientConnection | None:
    """The unused connection that has to make room first; None if all are in use."""
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
        on_ready: called once requests are answered.
        on_stop: called before the server ends, while clients can still get an error.
    """

    def __init__(
        self,
        app: ASGIApp,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
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
        _allow_open_files(2 * MOST_ANSWERED)  # more than all connections that may be open
        self._app = app
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # uvicorn lets only _ACCEPTED_AT_ONCE connections wait to be accepted.
        for listener in sockets or ():
            listener.listen(MOST_ANSWERED)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)
        if self.force_exit:  # after a second Ctrl-C uvicorn does not shut the application down
            await self.lifespan.shutdown()

    async def on_tick(self, counter: int) -> bool:
        """End unused connections once a second. uvicorn calls this ten times a second.

        Returns:
            Whether the server has to end.
        """
        if counter % LOOK_TICKS == 0:
            self._end_unused()
        return await super().on_tick(counter)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application; refuse it if too many are being answered."""
        if scope["type"] == "http" and self._num_answered() > MOST_ANSWERED:
            refusal = overloaded(f"{MOST_ANSWERED} requests are being answered already")
            refusal.headers = {"connection": "close"}
            await refusal_response(scope["path"], refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _num_answered(self) -> int:
        """The number of requests that are being answered now."""
        connections: set[Any] = self.server_state.connections
        return sum(connection.unused is None for connection in connections)

    def _end_unused(self) -> None:
        now_s = time.monotonic()
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            connection.end_if_unused(now_s)
