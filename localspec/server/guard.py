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

CLIENT = "localspec.client"  # in the scope of a request: `AccessRules.client_of`
_OPEN_PATHS = ("/health", "/v1/health")  # these need no key
PAGE_PATH = "/page/"  # the page needs no key: it asks for the key itself
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::\d*)?")  # a name, or a bracketed address
_FROM_HERE = ("same-origin", "none")  # a browser's words for a request that no other site makes
_BODIES_AT_ONCE = 8  # bodies of the largest size; all connections together could send more


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Rules for the clients that may use the server."""

    keys: Sequence[str]
    """If there are any keys, a client needs one of them."""

    hosts: Sequence[str]
    """Names of the server besides localhost."""

    origins: Sequence[str]
    """The origins of the web pages that may ask; "*" is all."""

    @property
    def is_of_one(self) -> bool:
        """Whether all clients are one user's: they have one key, or need none."""
        return len(set(self.keys)) < 2

    def client_of(self, key: str | None) -> str:
        """The digest of a client's key; "" where all clients are one user's."""
        if key is None or self.is_of_one:
            return ""
        return hashlib.sha256(key.encode()).hexdigest()


class Guard:
    """Hands requests that `access` allows to `app`, and refuses the others.

    A page on the web can make a browser on this machine send requests. The Host header exposes
    a page whose own name was made to mean this machine (DNS rebinding). The Origin header
    exposes any other page; for a POST without it, Sec-Fetch-Site does. A GET without Origin is
    let through: a link on any page may lead here, but the page cannot read the response.
    """

    def __init__(self, app: ASGIApp, access: AccessRules) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope, Headers(scope=scope))
            except RequestError as error:
                await refusal_response(scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if not _is_allowed_host(host, self._access.hosts):
            raise RequestError(
                f"the host {host!r:.80} is not one of this server's",
                "Use localhost or an address, or start it with --allowed-host NAME.",
                code="forbidden_host",
            )
        origin = headers.get("origin")
        is_own_page = origin is not None and origin.partition("://")[2] == host
        known = self._access.origins
        if origin is not None and not (is_own_page or origin in known or "*" in known):
            raise RequestError(
                f"pages of {origin!r:.80} may not use this server",
                "Start it with --cors-origin ORIGIN.",
                code="forbidden_origin",
            )
        site = headers.get("sec-fetch-site", "none")
        is_post = scope["method"] == "POST"
        if is_post and origin is None and site not in _FROM_HERE and "*" not in known:
            raise RequestError(
                "pages of other sites may not use this server",
                "Start it with --cors-origin ORIGIN, and let the page send its Origin.",
                code="forbidden_origin",
            )
        path = scope["path"]
        is_open = path in _OPEN_PATHS or path == "/" or path.startswith(PAGE_PATH)
        if scope["method"] == "OPTIONS" or is_open:
            return
        key = self._key_in(headers)
        if self._access.keys and key is None:
            raise RequestError(
                "the key is missing or wrong",
                "Send it as Authorization: Bearer KEY, or as x-api-key.",
                code="invalid_api_key",
            )
        scope[CLIENT] = self._access.client_of(key)

    def _key_in(self, headers: Headers) -> str | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        candidates = [headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            candidates.append(token.strip())
        matching = None
        for key in self._access.keys:
            for candidate in candidates:  # all of them, so that the time reveals nothing
                # Starlette decodes every header as Latin-1.
                if hmac.compare_digest(candidate.encode("latin-1"), key.encode()):
                    matching = key
        return matching


def _is_allowed_host(host: str, allowed: Sequence[str]) -> bool:
    """Whether the host is the server. An address always is: it cannot be rebound."""
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
    """Reads the bodies of requests.

    A body may be compressed: `compressed.decompressed` bounds it once more.

    Args:
        num_bytes: the largest size of a body.
        seconds: the time in which a body has to arrive.
    """

    def __init__(self, num_bytes: int, seconds: float) -> None:
        self.num_bytes = num_bytes
        self._seconds = seconds
        self._num_held = 0  # bytes of bodies that are not complete yet

    async def read(self, receive: Receive) -> bytes:
        """A body.

        A body that is too long is read to its end, but not kept: few clients read a response
        while they send.

        Raises:
            RequestError: it is too long or too slow, or other bodies take the memory.
        """
        chunks: list[bytes] = []
        num_read = 0
        more = True
        try:
            with anyio.move_on_after(self._seconds) as limit:
                while more:
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
                        chunks.clear()
                    more = event.get("more_body", False)
        finally:
            self._num_held -= sum(map(len, chunks))
        if num_read > self.num_bytes:
            message = f"the body has more than {self.num_bytes} bytes"
            raise RequestError(message, "Send less.", code="request_too_large")
        if limit.cancelled_caught:
            message = f"the body did not arrive within {self._seconds:.0f} s"
            raise RequestError(message, code="timeout")
        return b"".join(chunks)
