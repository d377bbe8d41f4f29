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

MOST_ANSWERED = 512  # requests at a time, each on a connection of its own
SPARE_CONNECTIONS = 256  # above that, on which nothing is answered, or only a refusal
FIRST_BYTE_S = 10.0  # for a new connection to send anything
STALLED_S = 10.0  # for a client to take what was written, before it makes room for others
UNUSED_S = 60.0  # for a connection to send a request's headers, or to take what was written
_NEW_S = 1.0  # until a new connection may have to make room before others
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
            "Stop the program that listens there, or choose another port: --port N.",
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


class _Use(enum.IntEnum):
    """The uses of connections without a request; the first of these makes room first."""

    SILENT = enum.auto()  # it has sent nothing at all
    IDLE = enum.auto()  # its last request is answered, and no other has begun
    SENDS_HEAD = enum.auto()  # the headers of a request are not all there
    IS_NEW = enum.auto()  # it has not had the time to ask
    TAKES_ANSWER = enum.auto()  # what is written has not been taken


class _Unused(NamedTuple):
    """How a connection is unused, and since when: the least of several makes room first."""

    use: _Use
    since_s: float


class _ClientConnection(H11Protocol):
    """A connection. Other parsers, which uvicorn prefers if they are there, bound no heads.

    One too many takes the place of an unused one at once. Where none is unused, it is hung up
    on itself: there would be no file descriptors left.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._quiet_since_s = time.monotonic()  # since it was made, or since its last answer
        self._untaken_since_s: float | None = None  # where more is written than is taken

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) <= MOST_ANSWERED + SPARE_CONNECTIONS:
            return
        others: list[Any] = [each for each in self.connections if each is not self]
        (_first_unused(others) or self).hang_up()

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
        """End the connection, whatever is still to be written; it no longer counts."""
        self.connections.discard(self)
        self.transport.abort()

    @property
    def unused(self) -> _Unused | None:
        """How the connection is unused; None while a request is being answered."""
        since_s = self._untaken_since_s
        if since_s is not None and time.monotonic() - since_s > STALLED_S:
            return _Unused(_Use.TAKES_ANSWER, since_s)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and not self.transport.is_closing():
            return None
        return _Unused(self._use_between_answers(), self._quiet_since_s)

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
        """Hang up if nothing has been sent, asked or taken for too long.

        Such clients send headers byte by byte, or do not take what was written; uvicorn would
        wait for ever.
        """
        unused = self.unused
        if unused is None:
            return
        limit_s = FIRST_BYTE_S if unused.use is _Use.SILENT else UNUSED_S
        if now_s - unused.since_s > limit_s:
            self.hang_up()


def _first_unused(connections: Iterable[_ClientConnection]) -> _ClientConnection | None:
    """The connection that makes room first; None if all are in use."""
    unused = [(each.unused, each) for each in connections]
    found = [(how, each) for how, each in unused if how is not None]
    if found:
        return min(found, key=lambda pair: pair[0])[1]
    return None


class Runner(uvicorn.Server):
    """Serves an application on a socket (`run(sockets=[…])`) until Ctrl-C or `should_exit`.

    Args:
        ready: Called once it serves.
        stop: Called before it ends, while clients can still be told.
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
        _allow_open_files(2 * MOST_ANSWERED)
        self._app = app
        self._ready = ready
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():  # else as many may wait as are accepted at once
            each.listen(MOST_ANSWERED)
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
        """How many requests are being answered, this one among them."""
        connections: set[Any] = self.server_state.connections
        return sum(each.unused is None for each in connections)

    def _end_unused(self) -> None:
        now_s = time.monotonic()
        connections: list[Any] = list(self.server_state.connections)
        for each in connections:
            each.end_if_unused(now_s)
