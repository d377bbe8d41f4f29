"""Sends a server what no client should: it has to refuse it, or to hang up, and to go on.

    python scripts/faults/wire_faults.py --minutes 5 --seed 0

A server of the demo pair runs in this process. Lost is a connection that the server neither
answers nor ends, a status 500, an error in its log, and another answer to the next right
question. The exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/support"))  # the runner of a server

if TYPE_CHECKING:
    from server_runner import Running

PATIENCE_S = 30.0
_CHAT = "/v1/chat/completions"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_MAY_FAIL_WITH = (501, 503, 505)


def _post(body: bytes, *more: str, length: object = None) -> bytes:
    said = len(body) if length is None else length
    lines = [f"POST {_CHAT} HTTP/1.1", "Host: localhost", f"Content-Length: {said}", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def _question(random: Random, tokens: int = 3) -> bytes:
    messages = [{"role": "user", "content": "Hi"}]
    fields = {"messages": messages, "max_tokens": tokens, "stream": random.random() < 0.5}
    return json.dumps(fields).encode()


def cut(random: Random) -> bytes:
    """A request that ends anywhere."""
    data = _post(_question(random))
    return data[: random.randrange(1, len(data))]


def whole(random: Random) -> bytes:
    """A right request, whose client may leave within the answer."""
    return _post(_question(random, random.choice((3, 300))))


def wrong_length(random: Random) -> bytes:
    """A body of another length than its header says."""
    body = _question(random)
    lengths = (
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
        "+5",
    )
    more = random.choice(((), ("Content-Length: 7",), ("Connection: close",)))
    return _post(body, *more, length=random.choice(lengths))


def odd_chunks(random: Random) -> bytes:
    """A body in chunks of wrong sizes, cut, or with a length beside them."""
    body = _question(random)
    sizes = (f"{len(body):x}", "0" * 30 + "5", "f" * 30, "-1", "zz", "", "5\x00")
    more = random.choice(("", "Content-Length: 3\r\n", "Transfer-Encoding: gzip\r\n"))
    begin = (
        f"POST {_CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n{more}\r\n"
    )
    data = f"{random.choice(sizes)}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    return begin.encode() + data[: random.choice((len(data), random.randrange(len(data))))]


def large_head(random: Random) -> bytes:
    """A head of up to megabytes: one header, thousands of headers, a path or a method."""
    large = "a" * random.choice((10_000, 200_000, 3_000_000))
    many = "\r\n".join(f"X{number}: y" for number in range(len(large) // 8))
    line, header = random.choice(
        (
            ("GET /health HTTP/1.1", f"X: {large}"),
            ("GET /health HTTP/1.1", many),
            (f"GET /{large} HTTP/1.1", "X: y"),
            (f"{large} / HTTP/1.1", "X: y"),
        )
    )
    return f"{line}\r\nHost: localhost\r\n{header}\r\n\r\n".encode()


def no_http(random: Random) -> bytes:
    """Noise, TLS, HTTP/2, control characters, another version."""
    return random.choice(
        (
            random.randbytes(random.randrange(1, 3000)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(500),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
            b"GET /health\r\n\r\n",
            b"\r\n" * random.randrange(1, 5000),
            b"GET /health HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n X: folded\r\nY\r\n\r\n",
            b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /%ff%00%2e%2e/..//?\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )
    )


def odd_headers(random: Random) -> bytes:
    """Headers with values that nobody sends."""
    name = random.choice(("Host", "Origin", "Authorization", "Content-Type", "Expect", "Range"))
    values = (
        "",
        "\xe9\xff",
        "[::1",
        "]:",
        "localhost:99999",
        "null",
        "Bearer \xff",
        "a" * 8000,
    )
    path = random.choice(("/v1/models", "/", "/metrics", "/props", _CHAT))
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"{name}: {random.choice(values)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


FAULTS: tuple[Callable[[Random], bytes], ...] = (
    cut, whole, wrong_length, odd_chunks, large_head, no_http, odd_headers,
)  # fmt: skip


def _sent(address: tuple[str, int], data: bytes, random: Random) -> str:
    """The server's mistake with the data, in words; empty if there was none.

    The client then says that no more comes, leaves, or resets the connection.
    """
    with socket.create_connection(address, PATIENCE_S) as connection:
        with contextlib.suppress(OSError):  # the server may have seen enough
            connection.sendall(data)
        found = b""
        end = random.choice(("half-closed", "left", "reset"))
        if end == "reset":
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        if end != "half-closed":
            time.sleep(random.choice((0, 0.02, 0.1)))
            return ""
        try:
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                found += chunk
        except TimeoutError:
            return f"neither answered nor hung up: {found[:80]!r}"
        except OSError:
            pass  # reset by the server
    bad = [int(one) for one in _STATUS.findall(found) if one >= b"500"]
    return "".join(f"status {one}" for one in bad if one not in _MAY_FAIL_WITH)


class _Errors(logging.Handler):
    """Collects the errors in the server's log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def run(server: Running, seconds: float, seed: int) -> list[str]:
    """Play the faults in turn for so many seconds; a line for each that was lost."""
    url = urlsplit(server.url)
    errors = _Errors()
    losses = list[str]()
    number = 0
    address = (url.hostname or "", url.port or 0)
    expected = server.chat(max_tokens=8)["choices"]
    logging.getLogger().addHandler(errors)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s or number < len(FAULTS):
        fault = FAULTS[number % len(FAULTS)]
        random = Random(f"{seed} {number}")
        wrong = _sent(address, fault(random), random)
        if server.chat(max_tokens=8)["choices"] != expected:
            wrong += "; the next answer was another one"
        wrong += "".join(f"; log: {message}" for message in errors.messages)
        errors.messages.clear()
        if wrong:
            losses.append(f"{fault.__name__} {number}: {wrong}")
        number += 1
    logging.getLogger().removeHandler(errors)
    print(f"{number} faults, {len(losses)} lost")
    return losses


def main() -> int:
    """Run, and name what was lost."""
    from server_runner import running_server

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with running_server(exact=True) as server:
        losses = run(server, asked.minutes * 60, asked.seed)
    print("\n".join(losses))
    return int(bool(losses))


if __name__ == "__main__":
    sys.exit(main())
