"""The campaign's class of servers: it notices what is planted."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

if sys.platform == "win32":
    pytest.skip("kills of Unix", allow_module_level=True)

pytest.importorskip("psutil")

import server_kills
import wire_faults
from fault_classes import server as server_class
from request_bodies import changed, real_bodies

DOCUMENT = {
    "paths": {
        path: {"post": {"requestBody": {"content": {"application/json": {"example": {}}}}}}
        for path in ("/tokenize", "/v1/embeddings")
    }
}


class _Standin(BaseHTTPRequestHandler):
    """Refuses everything, and fails where `plant` is in what was asked."""

    protocol_version = "HTTP/1.1"
    plant = b"no such body"
    word = b'{"error": "no"}'
    status = 400

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._say(200, json.dumps(DOCUMENT).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._say(500 if self.plant in body else self.status, self.word)

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is what this is about."""


@pytest.fixture
def standin() -> Iterator[SimpleNamespace]:
    server = _Quiet(("127.0.0.1", 0), _Standin)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    server.server_close()
    thread.join()


def losses(rows) -> list[str]:
    return [loss for tried in rows for loss in tried.losses]


@pytest.mark.parametrize(
    ("plant", "word", "said"),
    [
        (b'"stream": false', b'{"error": "no"}', "status 500"),
        (b"no such body", b"no JSON", "no JSON"),
        (b"no such body", b'{"error": "the server failed; see its log"}', "in the midst"),
    ],
)
def test_a_server_that_fails_for_a_body_is_noticed(standin, monkeypatch, plant, word, said):
    monkeypatch.setattr(_Standin, "plant", plant)
    monkeypatch.setattr(_Standin, "word", word)
    assert any(said in each for each in losses(server_class.bodies(standin, 1.5, 0)))


def test_whatever_the_bystander_gets_instead_of_its_answer_is_noticed(standin, monkeypatch):
    right = b'{"choices": [{"message": {"content": "a fox"}}]}'
    monkeypatch.setattr(_Standin, "status", 200)
    monkeypatch.setattr(_Standin, "word", right)
    bystander = server_class.Bystander(standin)
    with server_class.client_of(standin) as client:
        for word in (right, b"no JSON", b'{"choices": []}', right.replace(b"fox", b"owl")):
            monkeypatch.setattr(_Standin, "word", word)
            bystander.look(client)
    assert bystander.count == 4
    for loss, sign in zip(bystander.losses, ("JSONDecode", "IndexError", "owl"), strict=True):
        assert sign in loss


def test_whatever_is_raised_in_an_asking_thread_is_a_loss(standin, monkeypatch):
    def planted(*_: object) -> str:
        raise LookupError("planted")

    monkeypatch.setattr(server_class, "refused_badly", planted)
    found = losses(server_class.bodies(standin, 0.5, 0))
    assert len(found) > 3  # the threads went on
    assert all("LookupError('planted')" in each for each in found)


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], wire_faults.Wire]]:
    """Where one connection is sent these bytes, once its request has come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(answer: bytes) -> None:
            connection, _ = listener.accept()
            with connection:
                received = b""
                while not received.endswith(b"0\r\n\r\n"):
                    received += connection.recv(65536)
                connection.sendall(answer)

        def at(answer: bytes) -> wire_faults.Wire:
            threading.Thread(target=serve, args=(answer,), daemon=True).start()
            return wire_faults.Wire(*listener.getsockname(), random.Random(0))

        yield at


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 500 No\r\n\r\n", "status 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "not whole"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{{", "JSONDecodeError"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "not whole"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"tokens": 1}', ""),
        (EVENTS, "do not end"),
        (EVENTS.replace(b"{}", b'{"tokens"}') + b"data: [DONE]\n\n", ""),
    ],
)
def test_an_answer_has_to_be_whole(answering, answer, said):
    found = wire_faults.tiny_chunks(answering(answer))
    assert said in found if said else not found


def test_only_what_was_alive_was_killed():
    killed: list[int] = []
    states = {"zombie": False, "running": True}
    for state, was_alive in states.items():
        process = SimpleNamespace(
            status=lambda state=state: state, kill=lambda: killed.append(1)
        )
        assert server_kills.kill(process) == was_alive
    assert len(killed) == 1
    assert not server_kills.kill(None)


class _Failing(server_kills.Kills):
    """Whose servers do not start, but for every third, which ends before it is killed."""

    def __init__(self, home: Path) -> None:
        self._home, self._seed, self._number = home, 0, 0

    def _killed(self, *_: object) -> tuple[bool, str]:
        self._number += 1
        if self._number % 3 == 0:
            return False, ""
        raise SystemExit("no memory\nis left")


@pytest.mark.process
def test_a_server_that_does_not_start_is_a_loss_and_no_kill(tmp_path):
    rows = list(_Failing(tmp_path).tries(0.0))
    assert [tried.count for tried in rows] == [0, 0, 0, 0]
    assert [len(tried.losses) for tried in rows] == [2, 1, 1, 1]
    assert all("no memory" in each for each in losses(rows))


def test_bodies_are_repeated_by_their_seed_and_are_of_many_kinds():
    real = real_bodies(DOCUMENT)
    made = [changed(real, random.Random(f"0/{number}")) for number in range(400)]
    assert made == [changed(real, random.Random(f"0/{number}")) for number in range(400)]
    assert len({each.path for each in made}) >= 10
    assert {"value", "drop", "graft", "repeat", "wrap", "field", "bytes"} <= {
        part for each in made for part in each.how.split("+")
    }
    for sign in (b"NaN", b"\xff\x80", b"[[[[[[", b"1e999", b"\\ud83d"):
        assert any(sign in each.body for each in made)


def test_a_server_that_does_not_answer_what_is_sent_at_once_is_noticed(standin, monkeypatch):
    monkeypatch.setattr(wire_faults, "PATIENCE_S", 0.3)
    monkeypatch.setattr(_Standin, "plant", b"tokens")
    found = losses(server_class.on_the_wire(standin, 0.0, 0))
    assert any(each.startswith("pipelined") for each in found)
    assert any(each.startswith("tiny_chunks") for each in found)


def test_tracebacks_in_a_log_are_noticed():
    assert not server_class.log_faults("POST '/v1/messages' 200\n")
    log = "x\nTraceback (most recent call last):\n  File y\nValueError: z\n"
    assert "ValueError: z" in server_class.log_faults(log * 2)[1]


@pytest.mark.slow
def test_nothing_is_lost():
    rows = list(server_class.tries(20.0, 0))
    assert not losses(rows)
    assert all(tried.count for tried in rows)
