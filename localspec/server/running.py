"""A server on a port, until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from localspec.errors import LocalspecError

MOST_CONNECTIONS = 512
_KEEP_ALIVE_S = 30
_GRACE_S = 5  # for answers to end when the server stops


class PortError(LocalspecError):
    """An address that cannot be listened on."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free. Raises PortError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
        # Named, or asyncio leaves Nagle's algorithm on: an event then waits up to 40 ms until
        # the client has acknowledged the one before.
        return socket.socket(family, made.type, socket.IPPROTO_TCP, made.detach())
    except (OSError, OverflowError) as error:
        raise PortError(
            f"{host}:{port} cannot be listened on: {error}",
            "Stop what listens there, or choose another: --port N.",
        ) from error


class Runner(uvicorn.Server):
    """Answers what comes in on a socket (`run(sockets=[…])`) until Ctrl-C or `should_exit`.

    ready: called once it does.
    """

    def __init__(self, app: ASGIApp, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server.startup`."""
        await super().startup(sockets)
        self._ready()
