"""Decides which clients may use the server, and reads bodies within limits."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.server.refusal import RequestError, overloaded, refusal_response

CLIENT = "localspec.client"  # the key in a request's scope for what `client_of` returns
_OPEN_PATHS = ("/", "/health", "/v1/health")  # these need no API key
PAGE_PATH = "/page/"  # the page's files need no API key: the page asks the user for it
# The Host header: an address in brackets (group 1) or a name (group 2), and perhaps a port.
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::\d*)?")
# The values of Sec-Fetch-Site for a request that no page of another site makes.
_OWN_SITES = ("same-origin", "none")
# Bodies that are being received together may be as large as this many of the largest size.
_BODIES_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """The rules that say which clients may use the server."""

    keys: Sequence[str]
    """The API keys: a client needs one of them. If there are none, it needs none."""

    hosts: Sequence[str]
    """The names of the server besides localhost."""

    origins: Sequence[str]
    """The origins of the web pages that may use the server; "*" allows all."""

    @property
    def has_one_user(self) -> bool:
        """Whether all clients belong to one user: there is one key, or none."""
        return len(set(self.keys)) < 2

    def client_of(self, key: str | None) -> str:
        """The name of a client: the SHA-256 digest of its key; "" if there is only one user."""
        if key is None or self.has_one_user:
            return ""
        return hashlib.sha256(key.encode()).hexdigest()


class Guard:
    """Hands requests that `access` allows to `app`, and refuses the others (ASGI middleware).

    A stranger's web page can make a browser on this machine send requests here. If the page's
    name was pointed to this machine (DNS rebinding), the Host header has that name. Requests of
    other pages have an Origin header or, if a POST lacks it, Sec-Fetch-Site. A GET without
    Origin is allowed: it may be a link on a page, but the page cannot read the response.
    """

    def __init__(self, app: ASGIApp, access: AccessRules) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand one request to `app`, or send a refusal. An ASGI application."""
        if scope["type"] == "http":
            try:
                self._check(scope, Headers(scope=scope))
            except RequestError as error:
                await refusal_response(scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise RequestError if a request is not allowed; else note its client in the scope.

        No client is noted for OPTIONS, nor for a path that needs no key.
        """
        host = headers.get("host", "")
        if not _is_allowed_host(host, self._access.hosts):
            raise RequestError(
                f"the host {host!r:.80} is not one of this server's",
                "Use localhost or an address, or start it with --allowed-host NAME.",
                code="forbidden_host",
            )
        method = scope["method"]
        if "*" not in self._access.origins:
            self._check_origin(method, host, headers)
        path = scope["path"]
        needs_no_key = path in _OPEN_PATHS or path.startswith(PAGE_PATH)
        if method == "OPTIONS" or needs_no_key:
            return
        key = self._matching_key(headers)
        if self._access.keys and key is None:
            raise RequestError(
                "the key is missing or wrong",
                "Send it as Authorization: Bearer KEY, or as x-api-key.",
                code="invalid_api_key",
            )
        scope[CLIENT] = self._access.client_of(key)

    def _check_origin(self, method: str, host: str, headers: Headers) -> None:
        """Raise RequestError if the request comes from a page of another site."""
        origin = headers.get("origin")
        if origin is not None:
            is_own_page = origin.partition("://")[2] == host
            if not is_own_page and origin not in self._access.origins:
                raise RequestError(
                    f"pages of {origin!r:.80} may not use this server",
                    "Start it with --cors-origin ORIGIN.",
                    code="forbidden_origin",
                )
        elif method == "POST" and headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            raise RequestError(
                "pages of other sites may not use this server",
                "Start it with --cors-origin ORIGIN, and let the page send its Origin.",
                code="forbidden_origin",
            )

    def _matching_key(self, headers: Headers) -> str | None:
        """The server's API key that a request has; None if it has none of them."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        candidates = [headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            candidates.append(token.strip())
        matching = None
        for key in self._access.keys:
            for candidate in candidates:  # no early end: the time must not tell which one fits
                # Starlette decodes every header as Latin-1.
                if hmac.compare_digest(candidate.encode("latin-1"), key.encode()):
                    matching = key
        return matching


def _is_allowed_host(host: str, allowed: Sequence[str]) -> bool:
    """Whether a Host header names this server.

    An IP address is always allowed, since nobody can point an address to another machine.

    Args:
        host: the header: a name or an address, perhaps with a port.
        allowed: the names of the server besides localhost.
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return False
    name = parts[1] or parts[2] or ""
    names = ["localhost", *(known.lower() for known in allowed)]
    if name.lower() in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class BodyReader:
    """Receives the bodies of requests within limits of size, time and memory.

    A body may be compressed: `decompressed` has a limit for its size without compression.

    Args:
        num_bytes: the largest size of a body as it is sent.
        seconds: the time in which a body has to arrive.
    """

    def __init__(self, num_bytes: int, seconds: float) -> None:
        self.num_bytes = num_bytes
        self._seconds = seconds
        self._num_held = 0  # bytes of all bodies that are being received

    async def read(self, receive: Receive) -> bytes:
        """Receive the body of a request.

        A body that is too long is received to its end, but not kept: few clients read a
        response while they send.

        Args:
            receive: the request's, as in ASGI.

        Raises:
            RequestError: the body is too long or too slow, the client left, or other bodies
                take the memory.
        """
        chunks: list[bytes] = []
        num_read = 0
        has_more = True
        try:
            with anyio.move_on_after(self._seconds) as limit:
                while has_more:
                    event = await receive()
                    if event["type"] != "http.request":
                        raise RequestError("the request ended early")
                    chunk = event.get("body", b"")
                    num_read += len(chunk)
                    if num_read <= self.num_bytes:
                        if self._num_held + len(chunk) > _BODIES_AT_ONCE * self.num_bytes:
                            raise overloaded("too much is being sent at once")
                        self._num_held += len(chunk)
                        chunks.append(chunk)
                    else:
                        self._num_held -= sum(map(len, chunks))
                        chunks.clear()  # so that nothing is subtracted twice
                    has_more = event.get("more_body", False)
        finally:
            self._num_held -= sum(map(len, chunks))
        if num_read > self.num_bytes:
            message = f"the body has more than {self.num_bytes} bytes"
            raise RequestError(message, "Send less.", code="request_too_large")
        if limit.cancelled_caught:
            message = f"the body did not arrive within {self._seconds:.0f} s"
            raise RequestError(message, code="timeout")
        return b"".join(chunks)
