"""Connections: too many, slow in sending or in taking, and those of a server that stops."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import inside
import server_runner
from localspec.server import app, running
from server_runner import running_server
from waiting import wait_until

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
LONG = {"messages": QUESTION, "stream": True, "ignore_eos": True, "max_tokens": 2000}


@pytest.fixture
def hasty(monkeypatch):
    """A server that does not wait long, for few."""
    monkeypatch.setattr(running, "MOST_ANSWERED", 4)
    monkeypatch.setattr(running, "SPARE_CONNECTIONS", 4)
    monkeypatch.setattr(running, "FIRST_BYTE_S", 0.5)
    monkeypatch.setattr(running, "STALLED_S", 0.2)
    monkeypatch.setattr(running, "UNUSED_S", 0.5)
    monkeypatch.setattr(running, "LOOK_TICKS", 1)
    with running_server() as server:
        yield server


def connected(server):
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((host, int(port)))
    return connection


def head_of(path, body, *more):
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def read_all(connection):
    """What comes until the server ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            found += chunk
    return found


def is_healthy(connection):
    """Whether the server answers the request that was sent; the answer is read to its end."""
    found = b""
    while not found.endswith(b'{"status":"ok"}') and (chunk := connection.recv(4096)):
        found += chunk
    return found.startswith(b"HTTP/1.1 200")


@pytest.fixture
def few(monkeypatch):
    """A server for eight connections, which ends none because of the time that passes."""
    monkeypatch.setattr(running, "MOST_ANSWERED", 4)
    monkeypatch.setattr(running, "SPARE_CONNECTIONS", 4)
    monkeypatch.setattr(running, "LOOK_TICKS", 36_000)
    with running_server() as server:
        yield server


BEGUN = b"GET /health HTTP/1.1\r\n"
HEALTH = BEGUN + b"Host: localhost\r\n\r\n"
PAGE_FILE = HEALTH.replace(b"/health", b"/page/vendor/temml.js")  # nobody needs a key for it


@pytest.fixture
def little_room(monkeypatch):
    """Lets systems keep little of what a client does not take."""

    def listen_with_little_room(host, port):
        listening = running.listen(host, port)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listening

    monkeypatch.setattr(server_runner, "listen", listen_with_little_room)


@pytest.fixture
def taken_up(hasty):
    """The hasty server, all of whose places are taken by requests whose bodies do not come."""
    hasty.client.close()
    with contextlib.ExitStack() as open_ones:
        for _ in range(4):
            connection = open_ones.enter_context(connected(hasty))
            connection.sendall(head_of(CHAT, b"{}", "Expect: 100-continue"))
            assert connection.recv(12) == b"HTTP/1.1 100"
        with httpx.Client(base_url=hasty.url, timeout=60) as hasty.client:
            yield hasty


def test_one_too_many_is_told_so_in_its_protocols_shape(taken_up):
    response = taken_up.ask("/v1/messages", messages=QUESTION, max_tokens=1)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "overloaded_error"
    assert "4 requests are being answered already" in response.json()["error"]["message"]
    assert int(response.headers["retry-after"]) > 0


def test_who_takes_nothing_makes_room_for_who_asks(little_room, hasty, monkeypatch):
    monkeypatch.setattr(running, "STALLED_S", 3600)
    with contextlib.ExitStack() as open_ones:
        for _ in range(4):
            connection = open_ones.enter_context(connected(hasty))
            connection.sendall(PAGE_FILE)
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert hasty.client.get("/health").status_code == 503
        monkeypatch.setattr(running, "UNUSED_S", 3600)
        monkeypatch.setattr(running, "STALLED_S", 0.2)
        while hasty.client.get("/health").status_code != 200:
            time.sleep(0.01)


@pytest.mark.parametrize("sent", [b"", BEGUN])
def test_connections_that_ask_nothing_keep_nobody_out(few, sent):
    """At once: each new one takes the place of the oldest."""
    with contextlib.ExitStack() as open_ones:
        made = []
        for _ in range(30):
            made.append(open_ones.enter_context(connected(few)))
            made[-1].sendall(sent)
        made[-1].sendall(HEALTH.removeprefix(sent))
        assert is_healthy(made[-1])
        assert all(read_all(each) == b"" for each in made[:22])


def test_silent_connections_make_room_before_those_that_were_of_use(few, monkeypatch):
    """What is idle between two requests comes next, and then who has begun to send a third."""
    monkeypatch.setattr(running, "_NEW_S", 0)
    with contextlib.ExitStack() as open_ones:

        def one_more(sent=b""):
            connection = open_ones.enter_context(connected(few))
            connection.sendall(sent)
            if sent == HEALTH:
                assert is_healthy(connection)
            return connection

        sending, idle, silent = one_more(BEGUN), one_more(HEALTH), one_more()
        answered = [one_more(HEALTH) for _ in range(6)]
        assert read_all(silent) == b""
        idle.sendall(HEALTH)
        assert is_healthy(idle)
        one_more(HEALTH)
        assert read_all(answered[0]) == b""
        sending.sendall(HEALTH.removeprefix(BEGUN))
        assert is_healthy(sending)


def test_a_connection_that_sends_nothing_has_an_end(hasty, monkeypatch):
    """Long before one that has begun to."""
    monkeypatch.setattr(running, "UNUSED_S", 3600)
    with connected(hasty) as silent, connected(hasty) as slow:
        slow.sendall(BEGUN)
        assert read_all(silent) == b""
        slow.sendall(HEALTH.removeprefix(BEGUN))
        assert is_healthy(slow)


def test_far_too_many_connections_are_hung_up_on_at_once(taken_up, monkeypatch):
    """If all others are in use. Those of a second would take every file descriptor."""
    monkeypatch.setattr(running, "SPARE_CONNECTIONS", 0)
    monkeypatch.setattr(running, "LOOK_TICKS", 36_000)
    with contextlib.ExitStack() as open_ones:
        made = [open_ones.enter_context(connected(taken_up)) for _ in range(30)]
        assert all(read_all(each) == b"" for each in made)


def test_a_head_of_megabytes_is_refused_before_its_end(server):
    with connected(server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nX: " + b"a" * 10_000_000)
        assert read_all(connection)[:12] in (b"HTTP/1.1 400", b"")
    assert server.client.get("/health").status_code == 200


def test_a_head_that_comes_byte_by_byte_has_an_end(hasty):
    head = head_of(CHAT, b"{}")

    def drip(connection):
        for byte in itertools.cycle(head[:-4]):
            connection.sendall(bytes([byte]))
            time.sleep(0.02)

    with connected(hasty) as connection, pytest.raises(ConnectionError):
        drip(connection)
    assert hasty.client.get("/health").status_code == 200


def test_who_does_not_take_an_answer_is_hung_up_on(little_room, hasty, monkeypatch):
    """Its system tells the server for ever that there is no room."""
    hung_up = inside.hang_ups(monkeypatch)
    text = "The fox ran. " * 50_000
    tokens = hasty.ask("/tokenize", content=text).json()["tokens"]
    body = json.dumps({"tokens": tokens}).encode()
    with connected(hasty) as connection:
        connection.sendall(head_of("/detokenize", body) + body)
        begun = connection.recv(4096)
        assert begun.startswith(b"HTTP/1.1 200")
        wait_until(lambda: connection.getsockname() in hung_up)
        assert len(begun) + len(read_all(connection)) < len(text)


def test_who_takes_nothing_of_a_file_is_hung_up_on(little_room, hasty):
    def use(connection):
        connection.sendall(PAGE_FILE)
        while True:
            time.sleep(0.1)
            connection.sendall(b"\r\n")

    with connected(hasty) as connection, pytest.raises(ConnectionError):
        use(connection)


def test_who_takes_nothing_of_a_stream_keeps_no_model(little_room, hasty):
    body = json.dumps(LONG).encode()
    with connected(hasty) as connection:
        connection.sendall(head_of(CHAT, body) + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert hasty.chat(max_tokens=1)["choices"]
        assert b"[DONE]" not in read_all(connection)


def test_a_body_that_is_too_long_is_read_before_that_is_said():
    """Few clients look for an answer while they send."""
    limits, body = app.Limits(body_bytes=1000), b" " * 20_000_000
    with running_server(limits=limits) as server, connected(server) as connection:
        connection.sendall(head_of(CHAT, body, "Connection: close") + body)
        assert b"request_too_large" in read_all(connection)


def test_clients_of_a_server_that_stops_are_told_so(monkeypatch):
    """The one that is answered, too, a little later."""
    monkeypatch.setattr(app, "LAST_ANSWER_S", 0.2)
    with contextlib.ExitStack() as stop, contextlib.ExitStack() as open_ones:
        server = stop.enter_context(running_server(limits=app.Limits(patience_s=0.05)))
        server.chat(max_tokens=1)
        found = []
        with ThreadPoolExecutor() as readers:
            for path, fields in (
                (CHAT, LONG),
                (CHAT, {**LONG, "stream": False}),
                ("/v1/messages", {**LONG, "stream": False}),
                ("/v1/messages", LONG),
                ("/v1/responses", {"input": "Hello", "stream": True}),
            ):
                body = json.dumps(fields).encode()
                connection = open_ones.enter_context(connected(server))
                connection.sendall(head_of(path, body) + body)
                if b'"stream": true' in body:
                    assert connection.recv(1)  # it is answered, or waits
                found.append(readers.submit(read_all, connection))
            stop.close()
        first, whole, message, begun, response = [each.result() for each in found]
    for streamed, last in (
        (first, b'"error":{"message":"the server is stopping'),
        (begun, b"event: error"),
        (response, b"event: response.failed"),
    ):
        assert last in streamed
        assert streamed.endswith(b"0\r\n\r\n")  # whole, as far as HTTP knows
    for refused in (whole, message):
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"the server is stopping" in refused
    assert json.loads(message.rpartition(b"\r\n\r\n")[2])["type"] == "error"
