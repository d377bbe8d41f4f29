"""Who may ask the server, what it reads of a request, and what it says of anything else."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import socket
import sys
import tracemalloc
import zlib

import pytest
from starlette.routing import Route

from examples import num_examples
from localspec.server.app import Limits
from localspec.server.compressed import decompressed
from localspec.server.fields import Fields, read_fields
from localspec.server.guard import BodyReader
from localspec.server.refusal import RequestError
from server_runner import running_server

CHAT = "/v1/chat/completions"
ORIGIN = "https://page.example"
LIMITS = Limits(body_bytes=20_000)


@pytest.fixture(scope="module")
def server():
    with running_server(hosts=["box.example"], limits=LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def locked():
    keys = ["first-key", "second-key", "schlüssel"]
    with running_server(keys=keys, origins=[ORIGIN]) as running:
        yield running


def post(server, body, **headers):
    return server.client.post(CHAT, content=body, headers=headers)


@pytest.mark.process
def test_health_and_models_load_nothing():
    with running_server() as server:
        for path in ("/health", "/v1/health"):
            assert server.client.get(path).json() == {"status": "ok"}
        listed = server.client.get("/v1/models").json()
        assert listed == server.client.get("/models").json()
        (model,) = listed["data"]
        assert (listed["object"], model["object"], model["id"]) == ("list", "model", "demo")
        assert model["created"] > 10**9
        assert model["meta"]["n_ctx_train"] == model["max_model_len"] == 2048
        assert server.client.get("/v1/models/demo").json() == model
        assert server.client.get("/v1/models/other").status_code == 404
        assert server.models.all[0].engine is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "not JSON"),
        (b'{"messages": NaN}', "NaN is not JSON"),
        (b'{"temperature": -Infinity}', "-Infinity"),
        (b'{"temperature": 1e999, "messages": [{"role": "user"}]}', "temperature is 1.79"),
        (b'{"seed": 1%s, "messages": []}' % (b"0" * 400), "seed is 1000"),
        (b"[]", "the body is []"),
        (b'{"messages": "\xff"}', "not UTF-8"),
        (b"[" * 15_000, "not JSON"),
        (b"\\ud83d" + b"\\" * 3, "not JSON"),
        (b'{"a":' * 3_000 + b"1" + b"}" * 3_000, "not JSON"),
    ],
)
def test_what_is_no_request_is_a_400(server, body, what):
    response = post(server, body)
    assert response.status_code == 400
    assert what in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\uD83D\uDE00\uDE00", "\U0001f600\ufffd"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\ud83d\n\ude00", "\ufffd\n\ufffd"),
        (r"\\ud83d", r"\ud83d"),
        (r"\\\ud83d\\\\ud83d", "\\\ufffd\\\\ud83d"),
        (r"\u00e9\u0064", "éd"),
        ("\\\\" * 1_000_000 + "ud83d", "\\" * 1_000_000 + "ud83d"),
    ],
)
def test_which_halves_are_replaced(written, read):
    assert read_fields(f'{{"a": "{written}"}}'.encode()).text("a") == read


@pytest.mark.parametrize(
    "values",
    [
        ",".join(f'"{number:x}":1' for number in range(4_000_001)),
        '"a":[' + ",".join(["{}"] * 2_000_001) + "]",
        '"a":[' + ",".join(["[[]]"] * 1_400_000) + "]",
    ],
    ids=["fields", "objects", "lists"],
)
def test_a_body_of_too_many_values_is_refused_before_it_is_read(monkeypatch, values):
    monkeypatch.setattr(
        "localspec.server.fields.json_value", lambda _: pytest.fail("it is read")
    )
    with pytest.raises(RequestError, match="more than 4000000 values") as caught:
        read_fields(f"{{{values}}}".encode())
    assert caught.value.status == 413


def test_a_body_of_too_many_names_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(
        "localspec.server.fields.json_value", lambda _: pytest.fail("it is read")
    )
    names = ",".join(f'"{number}" :0' for number in range(500_001))
    with pytest.raises(RequestError, match="more than 500000 names") as caught:
        read_fields(f'{{"a": {{{names}}}}}'.encode())
    assert caught.value.status == 413


def test_signs_in_a_text_are_no_values():
    text = 'a,"b":,\\",[{' * 1_000_000
    assert read_fields(json.dumps({"a": text}).encode()).text("a") == text


def test_as_many_names_are_logged_as_a_log_holds(caplog):
    caplog.set_level(logging.INFO)
    many = Fields({f"x{number}": 1 for number in range(5000)})
    many.log_unread("/route", set())
    assert len(caplog.records) == 1000


@pytest.mark.process
def test_a_body_that_is_too_large_is_refused(server):
    response = post(server, b" " * 20_001)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


@pytest.mark.process
def test_a_body_that_does_not_come_is_refused():
    with running_server(limits=Limits(body_s=0.5)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{"
            connection.sendall(head.encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")


ASKED = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}
BODY = json.dumps(ASKED).encode()


def bare_deflate(data):
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.process
@pytest.mark.parametrize(
    ("coding", "compress"),
    [
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
        ("identity", bytes),
    ],
)
def test_a_compressed_body_is_read(server, coding, compress):
    headers = {"content-encoding": coding}
    for path in (CHAT, "/v1/messages", "/api/chat"):
        response = server.client.post(path, content=compress(BODY), headers=headers)
        assert response.status_code == 200, response.text
    for broken in (compress(BODY)[:-9], BODY + b"x", compress(BODY) + b"{"):
        response = server.client.post(CHAT, content=broken, headers=headers)
        assert response.status_code == 400, broken


@pytest.mark.process
def test_a_compression_that_is_not_known_is_named_with_those_that_are(server):
    for coding in ("br", "compress", "gzip, gzip", "x" * 5000):
        headers = {"content-encoding": coding}
        for path, message in (
            (CHAT, lambda told: told["error"]["message"]),
            ("/v1/messages", lambda told: told["error"]["message"]),
            ("/api/chat", lambda told: told["error"]),
        ):
            response = server.client.post(path, content=b"{}", headers=headers)
            assert response.status_code == 415
            assert f"compressed with '{coding:.79}" in message(response.json())
            assert "one of: deflate, gzip" in message(response.json())
            assert response.headers["accept-encoding"].startswith("deflate, gzip")


@pytest.mark.process
def test_a_body_that_becomes_too_large_is_not_decompressed(server):
    """What is sent has fewer bytes than the limit, and 15 million behind them."""
    piece = b" " * 1_000_000
    compressor = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    bomb = b"".join(compressor.compress(piece) for _ in range(15))
    assert len(bomb) < LIMITS.body_bytes
    response = post(server, bomb, **{"content-encoding": "gzip"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert "without its compression" in response.json()["error"]["message"]


def test_a_bomb_takes_little_memory():
    """A thousand times as much as it has, if it were decompressed."""
    bomb = zlib.compress(b" " * 200_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="more than 1000000 bytes"):
            decompressed(bomb, "deflate", 1_000_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000_000


def test_zstd_is_read_where_python_or_a_package_does():
    zstd = pytest.importorskip(
        "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    )
    assert decompressed(zstd.compress(BODY), "zstd", len(BODY)) == BODY
    bomb = zstd.compress(b" " * 10_000_000)
    with pytest.raises(RequestError, match="without its compression"):
        decompressed(bomb, "zstd", 1_000_000)
    large_window = {zstd.CompressionParameter.window_log: 27}
    made = zstd.ZstdCompressor(options=large_window)
    needy = made.compress(random.Random(1).randbytes(100)) + made.flush()
    for broken in (bomb[:-1], bomb + b"x", BODY, needy):
        with pytest.raises(RequestError, match="not in zstd"):
            decompressed(broken, "zstd", 20_000_000)


def test_too_many_bodies_at_once():
    """Each of which would be none too long."""

    def chunk(size, *, more_body):
        return {"type": "http.request", "body": b"x" * size, "more_body": more_body}

    async def use():
        reader = BodyReader(1000, 60)
        queues = [asyncio.Queue() for _ in range(9)]
        reading = [asyncio.create_task(reader.read(queue.get)) for queue in queues]
        for queue in queues[:8]:
            queue.put_nowait(chunk(1000, more_body=True))
        await asyncio.sleep(0.01)
        queues[8].put_nowait(chunk(1, more_body=False))
        with pytest.raises(RequestError, match="too much is being sent") as caught:
            await reading[8]
        assert caught.value.status == 503
        for queue in queues[:8]:
            queue.put_nowait(chunk(0, more_body=False))
        assert await asyncio.gather(*reading[:8]) == [b"x" * 1000] * 8
        for size, status in ((1000, None), (1001, 413), (8000, 413), (1, None)):
            queues[0].put_nowait(chunk(size, more_body=True))
            queues[0].put_nowait(chunk(0, more_body=False))
            if status is None:
                assert await reader.read(queues[0].get) == b"x" * size
            else:
                with pytest.raises(RequestError) as caught:
                    await reader.read(queues[0].get)
                assert caught.value.status == status

    asyncio.run(use())


@pytest.mark.process
def test_routes_that_are_not_there(server):
    missing = server.ask("/v1/images/generations", prompt="x")
    assert missing.status_code == 404
    assert "no such route" in missing.json()["error"]["message"]
    wrong = server.client.get(CHAT)
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert server.client.get("/v1/../etc/passwd").status_code == 404


@pytest.mark.process
def test_a_name_that_was_made_to_mean_this_machine_is_refused(server):
    for host in ("localhost", "127.0.0.1:1", "[::1]:80", "box.example:9"):
        assert server.client.get("/health", headers={"host": host}).status_code == 200, host
    for host in (
        "evil.example", "localhost.evil.example", "", "1.2.3.4.example", "[::1]evil.example",
        "[::1].evil.example:80", "[::1]:80.evil.example", "[localhost", "localhost:80@evil",
    ):  # fmt: skip
        response = server.client.get("/health", headers={"host": host})
        assert response.status_code == 403, host
        assert response.json()["error"]["code"] == "forbidden_host"


@pytest.mark.process
def test_pages_of_other_sites_may_not_ask(server):
    for origin in ("https://evil.example", "null"):
        response = post(server, b"{}", origin=origin)
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
    assert server.client.options(CHAT, headers={"origin": ORIGIN}).status_code == 403
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 400)):
        headers = {"sec-fetch-site": site, "content-type": "text/plain"}
        assert post(server, b"{}", **headers).status_code == status, site
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert server.client.get("/", headers=followed).status_code == 200
    assert post(server, b"{}", origin=server.url).status_code == 400


@pytest.mark.process
def test_pages_that_are_named_may_ask(locked):
    asked = {"origin": ORIGIN, "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization"
    preflight = locked.client.options(CHAT, headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    response = post(locked, b"{}", origin=ORIGIN, authorization="Bearer first-key")
    assert response.status_code == 400
    assert response.headers["access-control-allow-origin"] == ORIGIN
    other = locked.client.options(CHAT, headers={**asked, "origin": "https://a.b"})
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.process
def test_a_key_is_needed_where_one_is_set(locked, server):
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic first-key"},
        {"x-api-key": "first-ke"},
        {"x-api-key": ""},
        {"authorization": b"Bearer \xe9"},
    ):
        response = locked.client.get("/v1/models", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"

    for headers in (
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"x-api-key": "second-key"},
        {"x-api-key": "schlüssel".encode()},
    ):
        assert locked.client.get("/v1/models", headers=headers).status_code == 200
    for path in ("/health", "/v1/health"):
        assert locked.client.get(path).status_code == 200
    any_key = {"authorization": "Bearer whatever"}
    assert server.client.get("/v1/models", headers=any_key).status_code == 200


SECRET = "My secret project is called Bluebird and its launch code is 4711, please keep it."
GUESSES = (SECRET, "My secret project is called Bluefish and so", "Your secret project")


@pytest.mark.process
@pytest.mark.parametrize("parallel", [1, 3])
def test_what_is_cached_tells_no_key_what_another_asked(parallel):
    """One key, and a server without keys, find what they asked before."""

    def cached(running, key, prompt):
        headers = {"authorization": f"Bearer {key}"}
        body = {"prompt": prompt, "max_tokens": 2, "temperature": 0}
        response = running.client.post("/v1/completions", json=body, headers=headers)
        usage = response.json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 1

    with running_server(keys="abcd", parallel=parallel) as running:
        assert cached(running, "a", SECRET)[0] == 0
        for key, guess in zip("bcd", GUESSES, strict=True):
            assert cached(running, key, guess)[0] == 0
        for key in "ab":  # each of which asked it
            found, most = cached(running, key, SECRET)
            assert found == most > 20
    for keys in ([], ["a"]):
        with running_server(keys=keys, parallel=parallel) as running:
            assert cached(running, "a", SECRET)[0] == 0
            assert cached(running, "a", GUESSES[1])[0] > 3


@pytest.mark.process
def test_neither_keys_nor_texts_are_in_the_log(server, locked, caplog):
    """Also where a request fails, or is refused, or its client hangs up."""
    caplog.set_level(logging.INFO)
    mark = "8d1f52"
    question = [{"role": "user", "content": mark}]
    for path, fields in (
        (CHAT, {"messages": question, "max_tokens": 1, "user": mark}),
        (CHAT, {"messages": question, "temperature": mark}),
        (CHAT, {"messages": question, "model": mark, "max_tokens": 1}),
        (CHAT, {"messages": [{"role": "user", "content": mark * 2000}]}),
        ("/v1/messages", {"messages": question, "system": {mark: 1}}),
        ("/v1/responses", {"input": [{"type": mark}], "max_output_tokens": 1}),
        ("/v1/completions", {"prompt": mark, "max_tokens": 1, "suffix": mark}),
        ("/tokenize", {"content": mark}),
        (f"/v1/{mark}", {}),
    ):
        server.ask(path, **fields)
    post(server, b'{"%s": ' % mark.encode(), authorization=f"Bearer {mark}")
    post(locked, b"{}", authorization=f"Bearer {mark}")
    body = {"messages": question, "stream": True, "ignore_eos": True}
    with server.client.stream("POST", CHAT, json=body) as response:
        next(response.iter_lines())
    assert server.chat(max_tokens=1)["choices"]
    server.ask("/tokenize", content="x", **{f"My name is {mark}": 1, "y" * 100 + mark: 1})
    records = [record for record in caplog.records if record.name != "httpx"]
    assert any("ignores the field 'user'" in record.getMessage() for record in records)
    assert not any(mark in logging.Formatter().format(record) for record in records)


SAMPLES = [
    None, True, 0, -1, 1.5, 1e308, -(10**30), "", "x", "\ud800", [], [None], [[]], {}, {"a": 1},
    [{"role": "user"}], {"type": "json_schema"}, "auto", 10**400,
]  # fmt: skip
NAMES = [
    "messages", "model", "stream", "stop", "seed", "n", "logprobs", "top_logprobs",
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "logit_bias",
    "tools", "tool_choice", "response_format", "stream_options", "prediction", "modalities",
    "chat_template_kwargs", "reasoning_effort", "dry_sequence_breakers", "proposer",
    "draft_tokens", "speculative", "input", "prompt", "content", "tokens", "name", "system",
    "instructions", "thinking", "stop_sequences", "max_output_tokens", "text", "echo", "suffix",
    "query", "documents", "top_n", "images", "context", "options", "format", "think",
    "keep_alive", "raw", "input_prefix", "input_suffix", "input_extra", "grammar",
    "n_predict", "dimensions",
]  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(
    "num_requests", [300, pytest.param(num_examples(20_000), marks=pytest.mark.slow)]
)
def test_whatever_is_sent_is_a_4xx_or_an_answer(server, num_requests):
    """Fields of any kind, on all routes; and bytes of a good request changed."""
    source = random.Random(1)
    routes = [each for each in server.server.routes() if isinstance(each, Route)]
    paths = sorted(each.path for each in routes if "POST" in (each.methods or ()))
    good = json.dumps(
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0}
    ).encode()
    for number in range(num_requests):
        if number % 2:
            fields = {"max_tokens": 1, "max_output_tokens": 1}
            for name in source.sample(NAMES, 3):
                fields[name] = source.choice(SAMPLES)
            body = json.dumps(fields).encode()
        else:
            changed = bytearray(good)
            for _ in range(source.randint(1, 3)):
                changed[source.randrange(len(changed))] = source.randrange(256)
            body = bytes(changed)
        path = source.choice(paths)
        response = server.client.post(path, content=body)
        assert response.status_code < 500, (path, body, response.text)
        assert response.status_code == 200 or response.json(), (path, body)
    assert server.chat(max_tokens=2)["choices"]
