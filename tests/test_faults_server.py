"""The campaign's class of servers: it notices what is planted."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

if sys.platform == "win32":
    pytest.skip("kills of Unix", allow_module_level=True)

pytest.importorskip("psutil")

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

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._say(200, json.dumps(DOCUMENT).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._say(500 if self.plant in body else 400, self.word)

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
