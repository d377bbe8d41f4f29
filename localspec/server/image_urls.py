"""Fetches pictures that a request names by address, where the server was told to.

An address in a request is anybody's. It may lead to a machine that only this one can reach, so
every name is resolved here, each of its addresses has to be public, and the connection goes to
the one that was checked; redirects are checked alike. Bytes and time are bounded.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from localspec.pictures.picture import MAX_PICTURE_BYTES
from localspec.server.refusal import RequestError

FETCH_S = 15.0  # for all pictures of a request together
MOST_FETCHED = 8  # pictures of a request
_MOST_REDIRECTS = 3
_MOST_DEPTH = 12  # of lists and objects in a request
_CHUNK = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
# Addresses of IPv4 within IPv6, by translators; those of one site; Azure's own of each machine.
_CLOSED = [
    ipaddress.ip_network(net)
    for net in ("64:ff9b::/96", "64:ff9b:1::/48", "fec0::/10", "168.63.129.16/32")
]


def with_fetched_images(values: dict[str, Any]) -> None:
    """Put the data of pictures in place of their addresses, throughout a request.

    What cannot be fetched stays as it is, but for the last message's, for which RequestError is
    raised: earlier ones become notes. The last message's come first, then the newest.
    """
    ends_s = time.monotonic() + FETCH_S
    needed = {id(holder) for holder, _ in _web_images(_last_of(values))}
    places = list(_web_images(values))[::-1]
    places.sort(key=lambda place: id(place[0]) not in needed)
    for number, (holder, key) in enumerate(places):
        try:
            if number >= MOST_FETCHED:
                raise OSError(f"a request may name {MOST_FETCHED} images by address")
            data = fetched(holder[key], ends_s)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if id(holder) in needed:
                raise RequestError(
                    f"the image at {holder[key]!r:.80} cannot be fetched: {error}",
                    "Send its data.",
                ) from error
            continue
        holder[key] = f"data:;base64,{base64.b64encode(data).decode()}"


def fetched(url: str, ends_s: float) -> bytes:
    """The bytes at an address of http or https. ends_s: when to give up, in monotonic time.

    Raises OSError, ValueError or HTTPException.
    """
    for _ in range(_MOST_REDIRECTS + 1):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it leads to no address of http or https")
        with _connection(parts, ends_s) as connection:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Accept": "image/*"})
            response = connection.getresponse()
            location = response.getheader("Location")
            if response.status not in _REDIRECTS or not location:
                return _body(response, ends_s)
        url = urljoin(url, location)
    raise OSError("it leads on and on")


def _body(response: http.client.HTTPResponse, ends_s: float) -> bytes:
    if response.status != 200:
        raise OSError(f"the answer is {response.status}")
    data = bytearray()
    while chunk := response.read1(_CHUNK):
        data += chunk
        if len(data) > MAX_PICTURE_BYTES:
            raise OSError(f"it has more than {MAX_PICTURE_BYTES} bytes")
    _left_s(ends_s)  # or it may have been cut
    return bytes(data)


@contextlib.contextmanager
def _connection(parts: SplitResult, ends_s: float) -> Iterator[http.client.HTTPConnection]:
    """A connection to an address of the host that was checked; its line is cut at the end."""
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    line = socket.create_connection((public_address(host, port), port), _left_s(ends_s))
    if is_tls:
        line = ssl.create_default_context().wrap_socket(
            line, server_hostname=host, do_handshake_on_connect=False
        )
    # A limit for single reads would let a server send a byte now and then for hours.
    watch = threading.Timer(_left_s(ends_s), _cut, [line])
    watch.daemon = True
    watch.start()
    connection = http.client.HTTPConnection(host, port)
    try:
        if isinstance(line, ssl.SSLSocket):
            line.do_handshake()
        connection.sock = line
        yield connection
    finally:
        watch.cancel()
        connection.close()
        line.close()


def _cut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def public_address(host: str, port: int) -> str:
    """The first of a host's addresses. Raises OSError if any of them is not public."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]) for each in found]
    for address in addresses:
        if not is_public(address):
            raise OSError(f"{host} is at {address}, which is not a public address")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address is of the whole internet, and of one machine in it."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inside = found.ipv4_mapped or found.sixtofour
        if inside is not None:
            return is_public(str(inside))
        if found.teredo is not None:
            return False
    if any(found in net for net in _CLOSED):
        return False
    return found.is_global and not (found.is_multicast or found.is_reserved)


def _left_s(ends_s: float) -> float:
    left = ends_s - time.monotonic()
    if left <= 0:
        raise OSError(f"it took more than {FETCH_S:.0f} s")
    return left


def _web_images(value: Any, depth: int = 0) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects that hold an address of a picture, and the key of it."""
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, list):
        for each in value:
            yield from _web_images(each, depth + 1)
    elif isinstance(value, dict):
        if "image" in str(value.get("type")):
            yield from _addresses(value)
        for key in ("messages", "input", "content", "output"):
            yield from _web_images(value.get(key), depth + 1)


def _addresses(part: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for holder, key in (
        (part, "image_url"),
        (part.get("image_url"), "url"),
        (part.get("source"), "url"),
    ):
        if not isinstance(holder, dict):
            continue
        url = holder.get(key)
        if isinstance(url, str) and url.lower().startswith(("http://", "https://")):
            yield holder, key


def _last_of(values: dict[str, Any]) -> Any:
    for key in ("messages", "input"):
        if isinstance(values.get(key), list) and values[key]:
            return values[key][-1]
    return None
