"""Server.

A server of the demo pair, exact, in a process of its own, gets requests that are changed, what
is no HTTP, and more connections than it takes, while somebody else's questions have to get the
same answers as ever; others are killed.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import httpx
from request_bodies import Request, changed, real_bodies
from server_kills import Kills, answer_of, client_of, end_all
from soak_server import Server
from wire_faults import FAULTS, Wire

from fault_classes.tried import Tried

_SHARES = {"bodies": 0.45, "wire": 0.2, "crowd": 0.05, "kills": 0.3}  # of the time
_NUM_ASKING = 3  # at once
_MOST_CONNECTIONS = 10_000
_OWN_FILES = 500  # that this process has open besides
_DRIPPING = 40  # connections whose heads come byte by byte
_GROWTH_BYTES = 150e6
_QUESTION = "Tell me a story about a fox."
_GROUPS = {"/v1/messages": "Anthropic's", "/api/": "Ollama's", "/v1/": "OpenAI's"}


class Bystander(threading.Thread):
    """Asks one question again and again; every answer has to be the first one."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.count, self.losses = 0, list[str]()
        self._server, self._is_over = server, threading.Event()
        with client_of(server) as client:
            self.expected = answer_of(client, _QUESTION)

    def run(self) -> None:
        with client_of(self._server) as client:
            while not self._is_over.wait(0.2):
                self.look(client)

    def look(self, client: httpx.Client) -> None:
        """Ask once."""
        self.count += 1
        try:
            said = answer_of(client, _QUESTION)
            if said != self.expected:
                self.losses.append(f"the bystander was told {said!r}")
        except Exception as error:
            self.losses.append(f"the bystander got {error!r}")

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def __enter__(self) -> Bystander:
        self.start()
        return self


class Dripping:
    """Connections that send a head byte by byte, as slow as they may."""

    def __init__(self, server: Server) -> None:
        address = urlsplit(server.url)
        self._to = address.hostname or "", address.port or 0
        self._open: list[socket.socket] = []

    def drip(self) -> None:
        """One more byte on each of them; those that the server ended are opened again."""
        self._open = [each for each in self._open if _takes(each)]
        for _ in range(_DRIPPING - len(self._open)):  # once: the server may be gone
            with contextlib.suppress(OSError):
                self._open.append(socket.create_connection(self._to, 30))
                self._open[-1].sendall(b"GET / HTTP/1.1\r\nX: ")

    def __enter__(self) -> Dripping:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for each in self._open:
            each.close()


def _takes(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"a")
    except OSError:
        connection.close()
        return False
    return True


def refused_badly(request: Request, response: httpx.Response) -> str:
    """What is wrong with a response, whatever was asked; or ""."""
    text = response.content.decode("utf-8", "replace")
    if not 200 <= response.status_code < 500:
        return f"status {response.status_code}: {text[:200]}"
    if "see its log" in text:
        return f"the server failed in the midst: {text[-200:]}"
    kind = response.headers.get("content-type", "")
    try:
        if "event-stream" in kind or "ndjson" in kind:
            for line in text.splitlines():
                line = line.removeprefix("data: ")
                if line.startswith("{"):
                    json.loads(line)
        else:
            json.loads(text)
    except ValueError:
        return f"{request.path} answered what is no JSON: {text[:200]!r}"
    return ""


def bodies(
    server: Server, seconds: float, seed: int, settled: Callable[[], None] = lambda: None
) -> Iterator[Tried]:
    """Rows of requests with changed bodies, one for each family of protocols.

    settled: called after a quarter of the time, once memory is as it will be.
    """
    counts: Counter[str] = Counter()
    losses: dict[str, list[str]] = {}
    with client_of(server) as client:
        real = real_bodies(client.get("/openapi.json").json())
    until_s = time.monotonic() + seconds

    def ask(first: int) -> None:
        number = first
        with client_of(server) as client:
            while time.monotonic() < until_s:
                group, where = _group(""), f"body {number} of seed {seed}"
                try:
                    request = changed(real, random.Random(f"{seed}/{number}"))
                    group = _group(request.path)
                    where = f"{where} ({request.how}) to {request.path}"
                    fault = _asked(client, request)
                except Exception as error:
                    fault = repr(error)
                counts[group] += 1
                if fault:
                    losses.setdefault(group, []).append(f"{where}: {fault}")
                number += _NUM_ASKING

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(_NUM_ASKING)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 4)
    settled()
    for thread in threads:
        thread.join()
    holds = "An answer or a refusal of status 4xx in JSON; none fails, none hangs"
    for group in sorted(counts):
        what = f"Bodies of real clients of {group} API, changed in structure and in bytes"
        yield Tried(what, holds, counts[group], losses.get(group, []))


def _group(path: str) -> str:
    return next(
        (name for start, name in _GROUPS.items() if path.startswith(start)), "llama.cpp's"
    )


def _asked(client: httpx.Client, request: Request) -> str:
    headers = {"content-type": "application/json"}
    return refused_badly(
        request, client.post(request.path, content=request.body, headers=headers)
    )


def on_the_wire(server: Server, seconds: float, seed: int) -> Iterator[Tried]:
    """A row for each fault below HTTP, played in turns."""
    counts = dict.fromkeys(FAULTS, 0)
    losses: dict[object, list[str]] = {fault: [] for fault in FAULTS}
    address, number = urlsplit(server.url), 0
    until_s = time.monotonic() + seconds
    with Dripping(server) as dripping, client_of(server) as client:
        while time.monotonic() < until_s or number < len(FAULTS):
            fault, chance = FAULTS[number % len(FAULTS)], random.Random(f"{seed}/{number}")
            try:
                wrong = fault(Wire(address.hostname or "", address.port or 0, chance))
                client.get("/health").raise_for_status()
            except Exception as error:
                wrong = repr(error)
            if wrong:
                name = f"{fault.__name__} {number} of seed {seed}"
                losses[fault].append(f"{name}: {wrong}")
            counts[fault] += 1
            number += 1
            dripping.drip()
    holds = f"Refused, answered or hung up on, beside {_DRIPPING} heads that drip"
    for fault in FAULTS:
        yield Tried((fault.__doc__ or "").strip(), holds, counts[fault], losses[fault])


def crowd(server: Server, seconds: float) -> Iterator[Tried]:
    """A row of as many connections as this process may open, while somebody asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = _MOST_CONNECTIONS
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard - _OWN_FILES)
    address, losses, opened = urlsplit(server.url), list[str](), 0
    until_s = time.monotonic() + max(seconds, 2.0)
    to = address.hostname or "", address.port or 0
    with contextlib.ExitStack() as connections, client_of(server) as client:
        while opened < most:
            try:
                connections.enter_context(socket.create_connection(to, 60))
            except OSError as error:
                losses.append(f"connection {opened}: {error!r}")
                break
            opened += 1
        while True:  # those that ask nothing make room
            with contextlib.suppress(httpx.TransportError):
                if client.post("/tokenize", json={"content": "Hi"}).status_code == 200:
                    break
            if time.monotonic() > until_s + 60:
                losses.append(f"nobody was answered beside {opened} connections")
                break
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    what = f"{opened} connections at once that ask nothing, {most} being what may be open here"
    yield Tried(what, "Those that ask are answered within a minute", opened, losses)


def log_faults(said: str) -> list[str]:
    """What a log must not have."""
    parts = said.split("Traceback (most recent call last)")[1:]
    return [f"the log has a traceback: …{part[:1500].strip()[-200:]}" for part in parts]


def _note_sizes(server: Server, sizes: list[tuple[int, int]]) -> None:
    sizes.append(server.sizes())


def tries(seconds: float, seed: int) -> Iterator[Tried]:
    """All of it."""
    share = {name: seconds * part for name, part in _SHARES.items()}
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as whatever_happens:
        folder = Path(home)
        whatever_happens.callback(end_all, folder)
        server = Server("demo", folder, "--ctx", "512", parallel=2, exact=True)
        with Bystander(server) as bystander:
            sizes: list[tuple[int, int]] = []
            settled = partial(_note_sizes, server, sizes)
            yield from bodies(server, share["bodies"], seed, settled)
            yield from on_the_wire(server, share["wire"], seed)
            settled()
        yield from crowd(server, share["crowd"])
        with client_of(server) as client:
            bystander.look(client)
        yield Tried(
            "Somebody else's questions meanwhile", "The same answer as ever, whole",
            bystander.count, bystander.losses,
        )  # fmt: skip
        grown = [
            f"{name} grew by {(now - then) / 1e6:.0f} MB"
            for name, then, now in zip(("the server", "its models"), *sizes, strict=True)
            if now - then > _GROWTH_BYTES
        ]
        end = server.end(signal.SIGINT)
        faults = [*grown, *log_faults(server.said().decode()), *([end] if end else [])]
        holds = "No traceback, no memory that stays taken, and it stops when it is told to"
        yield Tried("The server's log, memory and end, after all this", holds, 1, faults)
        yield from Kills(folder, seed).tries(share["kills"])
