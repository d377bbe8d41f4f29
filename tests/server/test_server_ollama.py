"""Ollama's protocol: lines of JSON, its fields and options, what is loaded, and its errors."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from gguf_maker import write_random_model
from localspec.server.app import Limits
from localspec.server.fields import Fields
from localspec.server.ollama import OllamaChat, OllamaGenerate
from localspec.server.refusal import RequestError
from server_runner import running_server

pytestmark = pytest.mark.process

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
# Greedy, in steps whose sizes no clock decides: they round alike.
STEADY = {"temperature": 0, "draft_num_predict": 3}


def whole(server, path="/api/chat", **fields):
    if path == "/api/chat":
        fields.setdefault("messages", QUESTION)
    fields = {"model": "demo", "stream": False, "options": STEADY, **fields}
    response = server.ask(path, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def refused(server, path, status=400, **fields):
    response = server.ask(path, **fields)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    return response.json()["error"]


def test_a_system_text_stands_before_the_question(server):
    options = {**STEADY, "num_predict": 12}
    asked = [{"role": "user", "content": "A story!"}]
    messages = [{"role": "system", "content": "Be terse."}, *asked]
    chat = whole(server, messages=messages, options=options)
    told = whole(
        server, "/api/generate", prompt="A story!", system="Be terse.", options=options
    )
    assert told["response"] == chat["message"]["content"]
    assert told["prompt_eval_count"] == chat["prompt_eval_count"]
    told = refused(server, "/api/generate", prompt="Go on.", context=[1, 2])
    assert told.startswith("context is")


def test_options(server):
    text = whole(server, options={**STEADY, "num_predict": 40})["message"]["content"]
    stop = text.split()[5]
    for num_predict in (-1, 0):  # as many as fit
        options = {**STEADY, "num_predict": num_predict, "stop": ["never", stop]}
        stopped = whole(server, options=options)
        assert stopped["message"]["content"] == text[: text.index(stop)]
    unknown = {"draft_num_predict": 0, "num_predict": 9, "num_gpu": 99, "mirostat": 0}
    told = whole(server, options=unknown)
    assert told["timings"]["draft_n"] == 0
    spent = told["load_duration"] + told["prompt_eval_duration"] + told["eval_duration"]
    assert 0 < spent <= told["total_duration"]
    looped = {**STEADY, "repeat_penalty": 1.5, "num_predict": 30}
    every = whole(server, options={**looped, "repeat_last_n": -1})["message"]  # the context's
    assert every == whole(server, options={**looped, "repeat_last_n": 999})["message"]


def test_a_context_that_is_longer_than_here_is_spoken_of(server):
    for path, asked in (("/api/chat", {}), ("/api/generate", {"prompt": "x"})):
        for num_ctx in (16, 2048):
            options = {"num_ctx": num_ctx, "num_predict": 2}
            assert "warning" not in whole(server, path, options=options, **asked)
        found = whole(server, path, options={"num_ctx": 9999, "num_predict": 2}, **asked)
        assert "the context holds 2048 tokens" in found["warning"]
        assert "--ctx 9999" in found["warning"]
    question = [{"role": "user", "content": "fox " * 4000}]
    told = refused(server, "/api/chat", messages=question)
    assert "the context holds 2048" in told


def test_results_are_paired_with_the_calls_that_they_came_of():
    def call(name, **arguments):
        return {"function": {"name": name, "arguments": arguments}}

    def result(text, **more):
        return {"role": "tool", "content": text, **more}

    calls = [call("look", at="fox"), call("now"), call("look", at="hen")]
    messages = [
        *QUESTION,
        {"role": "Assistant", "content": "", "thinking": "Hm.", "tool_calls": calls},
        result("noon", tool_name="now"),
        result("red", tool_name="look"),
        result("brown"),
        {"role": "assistant", "tool_calls": [{"id": "own", **call("look")}]},
        result("grey", tool_call_id="own"),
    ]
    (found,) = OllamaChat(Fields({"messages": messages})).question.inputs
    ids = [each["id"] for each in found[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert found[1]["reasoning_content"] == "Hm."
    assert found[1]["role"] == "assistant"
    told = [(each["content"], each["tool_call_id"]) for each in found if each["role"] == "tool"]
    assert told == [("red", ids[0]), ("noon", ids[1]), ("brown", ids[2]), ("grey", "own")]
    assert found[4]["name"] == "look"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(0, 0), (300, 300), (1.5, 1.5), (-1, float("inf")), ("-1m", float("inf")), ("10m", 600),
     ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), ("0", 0), ("24h", 86400), (None, None)],
)  # fmt: skip
def test_how_long_a_model_is_kept(given, seconds):
    assert OllamaGenerate(Fields({"keep_alive": given})).question.keep_s == seconds


@pytest.mark.parametrize("given", ["", "10", "m", "1m 2s", "5 m", True, [], "1m2", "x1s"])
def test_what_is_no_time(given):
    with pytest.raises(RequestError, match="keep_alive is"):
        OllamaChat(Fields({"keep_alive": given}))


def test_models_are_loaded_and_closed_as_they_are_asked_to_be():
    def loaded(server):
        return server.client.get("/api/ps").json()["models"]

    def minutes_left(server):
        (found,) = loaded(server)
        left = datetime.fromisoformat(found["expires_at"]) - datetime.now(timezone.utc)
        return left.total_seconds() / 60

    with running_server(limits=Limits(unload_s=1200)) as server:
        assert loaded(server) == []
        unloaded = whole(server, messages=[], keep_alive=0)
        assert unloaded["done_reason"] == "unload"
        assert loaded(server) == []
        for path, asked in (("/api/chat", {"messages": []}), ("/api/generate", {})):
            response = server.ask(path, model="demo", **asked)  # no stream, though by default
            assert response.headers["content-type"] == "application/json"
            found = response.json()
            assert (found["done"], found["done_reason"]) == (True, "load")
            assert found.get("response", found.get("message", {}).get("content")) == ""
        (one,) = loaded(server)
        assert one["name"] == one["model"] == "demo:latest"
        assert one["size"] > one["size_vram"] >= 0
        assert one["context_length"] == 2048
        assert one["details"]["format"] == "gguf"
        assert 19 < minutes_left(server) <= 20
        assert whole(server, keep_alive="50m", options={"num_predict": 1})
        assert 49 < minutes_left(server) <= 50
        server.chat(max_tokens=1)  # which says nothing of it
        assert 49 < minutes_left(server) <= 50
        whole(server, "/api/generate", keep_alive=-1)
        assert minutes_left(server) > 1e7
        last = whole(server, keep_alive=0, options={"num_predict": 2})
        assert last["message"]["content"]
        assert loaded(server) == []
        assert whole(server, "/api/generate", prompt="x", options={"num_predict": 1})[
            "response"
        ]
        assert 19 < minutes_left(server) <= 20
        told = whole(server, "/api/generate", prompt="", keep_alive=0)
        assert (told["done_reason"], loaded(server)) == ("unload", [])


def test_the_size_of_a_model_is_its_makers_where_the_file_names_one(tmp_path, demo_target):
    stated = {"general.size_label": "1.5M"}
    path = write_random_model(tmp_path / "twice.gguf", demo_target, extra=stated)
    with running_server(presets=("demo", str(path))) as server:
        sizes = {
            model["name"]: model["details"]["parameter_size"]
            for model in server.client.get("/api/tags").json()["models"]
        }
    assert sizes == {"demo:latest": "21.5M", "twice:latest": "1.5M"}


def test_errors_are_in_ollamas_shape_all_over(server):
    for method, path, status in (
        ("GET", "/api/chat", 405),
        ("POST", "/api/ps", 405),
        ("POST", "/api/nonsense", 404),
        ("GET", "/api/embedding", 404),
        ("POST", "/api/embed", 404),
        ("POST", "/api/embeddings", 404),
        ("POST", "/api/push", 501),
        ("POST", "/api/blobs/sha256:00", 501),
    ):
        response = server.client.request(method, path, content=b"{}")
        assert response.status_code == status, (method, path)
        assert response.json().keys() == {"error"}
        assert (status == 501) is ("not offered" in response.json()["error"])
    assert server.client.head("/api/blobs/sha256:00").status_code == 501
    for content in (b"", b"{", b"[]", b'{"messages": 3}'):
        response = server.client.post("/api/chat", content=content)
        assert response.status_code == 400
        assert response.json().keys() == {"error"}
    for path in ("/", "/api/version", "/api/tags"):
        assert server.client.head(path).status_code == 200
