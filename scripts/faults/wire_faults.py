"""What a client can do wrong below HTTP, on a socket of its own: a function for each fault.

Each gets a `Wire`, and plays its fault once with what a seed draws. It returns what the server
did wrong, or "". What has to hold is the first line of its docstring.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import socket
import struct
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple, cast

PATIENCE_S = 30.0  # for the server to answer, or to hang up
_PAUSE_S = 0.01  # for the server to read one part before the next
_CHAT = "/v1/chat/completions"
_RESET = struct.pack("ii", 1, 0)
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Wire(NamedTuple):
    """Where the server is, and what is drawn."""

    host: str
    port: int
    chance: random.Random

    def connect(self, taken: int | None = None) -> socket.socket:
        """A connection. taken: bytes that the system takes from the server for it."""
        made = socket.socket()
        if taken is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, taken)
        made.settimeout(PATIENCE_S)
        try:
            made.connect((self.host, self.port))
        except BaseException:
            made.close()
            raise
        return made

    def question(self, *, stream: bool, tokens: int = 3) -> bytes:
        """A whole and right request."""
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens}
        if tokens > 100:
            asked["ignore_eos"] = True
        return head(_CHAT, body := json.dumps({**asked, "stream": stream}).encode()) + body


def head(path: str, body: bytes, *more: str, length: object = None) -> bytes:
    """The head of a POST. length: that is said instead of the body's."""
    said = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {said}", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


def _until_end(connection: socket.socket) -> tuple[bytes, bool]:
    """What comes until the server hangs up; whether it did."""
    found = b""
    try:
        while chunk := connection.recv(65536):
            found += chunk
    except TimeoutError:
        return found, False
    except OSError:
        pass  # it was reset, which is an end
    return found, True


def _wrong(
    found: bytes,
    *,
    ended: bool,
    statuses: str = "[234]..|503",
    may_hang_up: bool = False,
) -> str:
    """What is wrong with what came; what is answered with 200 alone has to be whole.

    may_hang_up: before the answer, or in the midst of it.
    """
    if not ended:
        return (
            f"the server neither answered nor hung up within {PATIENCE_S:.0f} s: {found[:80]!r}"
        )
    bad = [one for one in _STATUS.findall(found) if not re.fullmatch(statuses, one.decode())]
    if bad:
        return f"status {bad[0].decode()}: {found[:200]!r}"
    return _not_whole(found) if statuses == "200" and not may_hang_up else ""


def _not_whole(found: bytes) -> str:
    """What the last answer lacks, whose length, whose JSON or whose events have to end."""
    if not found:
        return "the server hung up without an answer"
    last = io.BytesIO(found[max(0, found.rfind(b"HTTP/1.1 ")) :])
    response = HTTPResponse(cast(Any, _Received(last)))
    try:
        response.begin()
        body = response.read()
        if "event-stream" not in response.headers.get("content-type", ""):
            json.loads(body)
        elif not body.rstrip().endswith(b"data: [DONE]"):
            return f"the events do not end: {body[-200:]!r}"
    except (HTTPException, ValueError) as error:
        return f"the answer is not whole ({error!r}): {found[-200:]!r}"
    return ""


class _Received(NamedTuple):
    """What was received, for `HTTPResponse`, which reads sockets."""

    data: io.BytesIO

    def makefile(self, _mode: str) -> io.BytesIO:
        """The data."""
        return self.data


def _sent(wire: Wire, *parts: bytes, statuses: str = "4..", may_hang_up: bool = False) -> str:
    """Send it, then say that no more comes; what is wrong with the response."""
    with wire.connect() as connection:
        with contextlib.suppress(OSError):  # it may have seen enough
            for part in parts:
                connection.sendall(part)
                time.sleep(_PAUSE_S * (part is not parts[-1]))
            connection.shutdown(socket.SHUT_WR)
        found, ended = _until_end(connection)
    return _wrong(found, ended=ended, statuses=statuses, may_hang_up=may_hang_up)


def cut_anywhere(wire: Wire) -> str:
    """A request is cut anywhere, and the connection closed, half-closed or reset"""
    data = wire.question(stream=wire.chance.random() < 0.5)
    data = data[: wire.chance.randrange(len(data))]
    how = wire.chance.randrange(3)
    if how == 0:
        return _sent(wire, data)
    connection = wire.connect()
    with connection:
        connection.sendall(data)
        if how == 1:
            _reset(connection)
    return ""


def half_closed(wire: Wire) -> str:
    """A whole request, behind which the client says that it sends no more"""
    question = wire.question(stream=wire.chance.random() < 0.5)
    # To uvicorn a client that sends no more is one that has left.
    return _sent(wire, question, statuses="200", may_hang_up=True)


def wrong_length(wire: Wire) -> str:
    """A body that is shorter or longer than is said, or whose length is none"""
    body = b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":2}'
    length = wire.chance.choice(
        (
            len(body) + 1,
            len(body) - 1,
            0,
            -1,
            10**18,
            10**30,
            "x",
            "1, 2",
            "0x10",
            "",
            "1 1",
            "+5",
        )
    )
    more = wire.chance.choice(((), ("Content-Length: 7",), ("Connection: close",)))
    return _sent(wire, head(_CHAT, body, *more, length=length) + body)


def odd_chunks(wire: Wire) -> str:
    """A body in chunks: cut, with wrong sizes, or with a length beside them"""
    body = b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":2}'
    size = wire.chance.choice(
        (
            f"{len(body):x}",
            "0" * 30 + "5",
            "f" * 30,
            "-1",
            "zz",
            "",
            f"{len(body):x};a=b",
            "5\x00",
        )
    )
    path = wire.chance.choice(
        (_CHAT, "/nowhere", "/health")
    )  # which is told before the body ends
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"]
    if wire.chance.random() < 0.3:
        lines.append(wire.chance.choice(("Content-Length: 3", "Transfer-Encoding: gzip")))
    begin = "\r\n".join([*lines, "", ""]).encode("latin-1")
    data = f"{size}\r\n".encode("latin-1") + body + b"\r\n0\r\n\r\n"
    if wire.chance.random() < 0.5:
        data = data[: wire.chance.randrange(len(data))]
    return _sent(wire, begin, data, statuses="200|4..|501")


def tiny_chunks(wire: Wire) -> str:
    """A body in chunks of one byte each is read as any other"""
    body = b'{"content": "%s"}' % (b"x" * wire.chance.randrange(2000))
    lines = ["POST /tokenize HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"]
    lines += ["Connection: close", "", ""]
    data = "\r\n".join(lines).encode()
    data += b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with wire.connect() as connection:
        connection.sendall(data)
        found, ended = _until_end(connection)
    return _wrong(found, ended=ended, statuses="200") or ("" if b'"tokens"' in found else "cut")


def pipelined(wire: Wire) -> str:
    """Up to sixty requests at once on a connection are answered in their order"""
    texts = [f"{wire.chance.randrange(10**6)}" for _ in range(wire.chance.randrange(2, 60))]
    bodies = [json.dumps({"tokens": [number]}).encode() for number in range(len(texts))]
    data = b"".join(head("/detokenize", each) + each for each in bodies)
    data += b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with wire.connect() as connection:
        connection.sendall(data)
        found, ended = _until_end(connection)
    count = len(_STATUS.findall(found))
    if ended and count == len(texts) + 1:
        return _wrong(found, ended=ended, statuses="200")
    return f"{count} answers to {len(texts) + 1} requests at once"


def large_head(wire: Wire) -> str:
    """Heads of megabytes: one header, thousands, a path, a method"""
    size = wire.chance.choice((10_000, 60_000, 200_000, 3_000_000))
    chance, large = wire.chance.randrange(4), "a" * size
    line, header = "GET /health HTTP/1.1", "X: y"
    if chance == 0:
        header = f"X: {large}"
    elif chance == 1:
        header = "\r\n".join(f"X{number}: y" for number in range(size // 8))
    elif chance == 2:
        line = f"GET /{large} HTTP/1.1"
    else:
        line = f"{large} / HTTP/1.1"
    return _sent(
        wire, f"{line}\r\nHost: localhost\r\n{header}\r\n\r\n".encode(), statuses="200|4.."
    )


def no_http(wire: Wire) -> str:
    """What is no HTTP: noise, TLS, HTTP/2, control characters in a head, another version"""
    data = wire.chance.choice(
        (
            wire.chance.randbytes(wire.chance.randrange(1, 3000)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + wire.chance.randbytes(500),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
            b"GET /health\r\n\r\n",
            b"\r\n" * wire.chance.randrange(1, 5000),
            b"GET /health HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
            b"GET /\x1b[2J HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n X: folded\r\nY\r\n\r\n",
            b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: a\r\n\r\n",
            b"GET /%ff%00%2e%2e/..//?\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )
    )
    return _sent(wire, data, statuses="200|4..|501|505")


def odd_headers(wire: Wire) -> str:
    """Headers with values that nobody sends"""
    name = wire.chance.choice(
        ("Host", "Origin", "Authorization", "X-Api-Key", "Content-Type", "Content-Encoding",
         "Accept-Encoding", "If-None-Match", "Expect", "Connection", "Range", "Cookie")
    )  # fmt: skip
    value = wire.chance.choice(
        ("", "é\xff", "[", "[::1", "]:", "localhost:99999", "null", "*", "Bearer",
         "Bearer \xff", "100-continue", "gzip, gzip, gzip", "a" * 8000, "://", "http://[",
         "keep-alive, close")
    )  # fmt: skip
    path = wire.chance.choice(("/v1/models", "/page/main.js", "/", "/metrics", "/props", _CHAT))
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"{name}: {value}"]
    data = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return _sent(wire, data, statuses="2..|304|4..")


def left_in_the_midst(wire: Wire) -> str:
    """An answer is asked for, and the client leaves or resets at any moment of it"""
    with wire.connect() as connection:
        connection.sendall(wire.question(stream=wire.chance.random() < 0.8, tokens=2000))
        connection.settimeout(wire.chance.choice((0.001, 0.02, 0.1)))
        with contextlib.suppress(OSError):
            for _ in range(wire.chance.randrange(8)):
                connection.recv(200)
        if wire.chance.random() < 0.5:
            _reset(connection)
    return ""


def not_taken(wire: Wire) -> str:
    """Answers are asked for and not read, and then the client leaves"""
    with wire.connect(taken=4096) as connection:
        for _ in range(wire.chance.randrange(1, 6)):
            with contextlib.suppress(OSError):
                connection.sendall(wire.question(stream=True, tokens=200))
    return ""


FAULTS: tuple[Callable[[Wire], str], ...] = (
    cut_anywhere, half_closed, wrong_length, odd_chunks, tiny_chunks, pipelined, large_head,
    no_http, odd_headers, left_in_the_midst, not_taken,
)  # fmt: skip
