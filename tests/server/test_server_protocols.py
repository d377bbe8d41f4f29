"""Behaviours that all protocols of the server share, as one table of protocols."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import jsonschema
import pytest

from call_families import FEW, SAID, write_calling_model
from gguf_maker import write_scripted_model
from server_runner import presets_of, running_server

pytestmark = pytest.mark.process

QUESTION = "Tell me a story about a fox."
STEADY = {"temperature": 0, "draft_tokens": 3}
OLLAMA = {"temperature": 0, "draft_num_predict": 3}
THOUGHT = ["[ask]", "<think>", "one", "two", "</think>", "three", "four"]


def openai_usage(told):
    return told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]


def ollama_usage(told):
    return told["prompt_eval_count"], told["eval_count"]


def finish_reason(told):
    return told["choices"][0]["finish_reason"]


def error_message(told):
    return told["error"]["message"]


class Protocol(NamedTuple):
    """How a question is asked, and where what belongs to an answer stands.

    asked: the body for a text, so many tokens and a stop string. said: text and thoughts in a
    whole answer, delta: in an event. usage: tokens of prompt and answer. reason: why an answer
    ended: at its length, by a stop string. error: the message of one, told: in a stream.
    """

    path: str
    asked: Callable[[str, int, list[str]], dict[str, Any]]
    said: Callable[[dict], tuple[str, str]]
    delta: Callable[[dict], tuple[str, str]]
    usage: Callable[[dict], tuple[int, int]] = openai_usage
    reason: Callable[[dict], str] = finish_reason
    reasons: tuple[str, str] = ("length", "stop")
    error: Callable[[dict], str] = error_message
    told: Callable[[dict], str] = error_message


def messages(text):
    return [{"role": "user", "content": text}]


def raw(text):
    """As the demo's template has it."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def of_ollama(num_tokens, stop):
    return {"options": {**OLLAMA, "num_predict": num_tokens, "stop": stop}}


def chosen(told, name):
    """A field of the first choice; of a stream's last event there may be none."""
    (choice, *_) = told.get("choices") or [{name: {}}]
    return choice[name]


def typed(items, kind, name):
    return "".join(each[name] for each in items if each["type"] == kind)


def parts(told, kind):
    """Texts of the items of that kind in Responses."""
    items = [each for each in told["output"] if each["type"] == kind]
    return "".join(part["text"] for item in items for part in item["content"])


def message_delta(event):
    delta = event.get("delta", {})
    return delta.get("text", ""), delta.get("thinking", "")


def response_delta(event):
    kind = event["type"].removeprefix("response.").removesuffix(".delta")
    told = event.get("delta", "")
    return tuple(told if kind == each else "" for each in ("output_text", "reasoning_text"))


def message_usage(told):
    found = told["usage"]
    return found["input_tokens"] + found["cache_read_input_tokens"], found["output_tokens"]


def chat_text(message):
    return message.get("content") or "", message.get("reasoning_content", "")


OLLAMA_ANSWER = {
    "usage": ollama_usage,
    "reason": lambda told: told["done_reason"],
    "error": lambda told: told["error"],
    "told": lambda event: event["error"],
}
PROTOCOLS = {
    "chat": Protocol(
        "/v1/chat/completions",
        lambda text, n, stop: {
            "messages": messages(text), "max_tokens": n, "stop": stop, **STEADY},
        lambda told: chat_text(told["choices"][0]["message"]),
        lambda event: chat_text(chosen(event, "delta")),
    ),
    "completions": Protocol(
        "/v1/completions",
        lambda text, n, stop: {"prompt": raw(text), "max_tokens": n, "stop": stop, **STEADY},
        lambda told: (told["choices"][0]["text"], ""),
        lambda event: (chosen(event, "text"), ""),
    ),
    "responses": Protocol(
        "/v1/responses",
        lambda text, n, stop: {"input": text, "max_output_tokens": n, "stop": stop, **STEADY},
        lambda told: (parts(told, "message"), parts(told, "reasoning")),
        response_delta,
        lambda told: (told["usage"]["input_tokens"], told["usage"]["output_tokens"]),
        lambda told: told["status"],
        ("incomplete", "completed"),
        told=lambda event: error_message(event["response"]),
    ),
    "messages": Protocol(
        "/v1/messages",
        lambda text, n, stop: {
            "messages": messages(text), "max_tokens": n, "stop_sequences": stop, **STEADY},
        lambda told: (
            typed(told["content"], "text", "text"),
            typed(told["content"], "thinking", "thinking"),
        ),
        message_delta,
        message_usage,
        lambda told: told["stop_reason"],
        ("max_tokens", "stop_sequence"),
    ),
    "ollama chat": Protocol(
        "/api/chat",
        lambda text, n, stop: {"messages": messages(text), **of_ollama(n, stop)},
        lambda told: (told["message"]["content"], told["message"].get("thinking", "")),
        lambda told: (told["message"]["content"], told["message"].get("thinking", "")),
        **OLLAMA_ANSWER,
    ),
    "ollama generate": Protocol(
        "/api/generate",
        lambda text, n, stop: {"prompt": text, **of_ollama(n, stop)},
        lambda told: (told["response"], told.get("thinking", "")),
        lambda told: (told["response"], told.get("thinking", "")),
        **OLLAMA_ANSWER,
    ),
    "llama-server": Protocol(
        "/completion",
        lambda text, n, stop: {"prompt": raw(text), "n_predict": n, "stop": stop, **STEADY},
        lambda told: (told["content"], ""),
        lambda told: (told["content"], ""),
        lambda told: (told["tokens_evaluated"], told["tokens_predicted"]),
        lambda told: told["stop_type"],
        ("limit", "word"),
    ),
}  # fmt: skip
THINKING = ("chat", "responses", "messages", "ollama chat", "ollama generate")


@pytest.fixture(params=PROTOCOLS)
def protocol(request):
    return PROTOCOLS[request.param]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Of the demo, a model that calls by itself, and one that thinks."""
    folder = tmp_path_factory.mktemp("models")
    caller = write_calling_model(folder / "caller.gguf", "Qwen", SAID)
    thinker = write_scripted_model(
        folder / "thinker.gguf",
        dict(itertools.pairwise(THOUGHT)),
        user_defined=("[ask]",),
        template="{% for m in messages %}{{ m.content }}{% endfor %}[ask]{# <think></think> #}",
    )
    with (
        presets_of(folder, caller=(caller, 2048), thinker=(thinker, 64)),
        running_server(presets=["demo", "caller", "thinker"]) as running,
    ):
        # A stream that waits for a model to be loaded has begun before its prompt is read.
        running.chat(model="demo", max_tokens=1)
        yield running


def whole(server, protocol, question=QUESTION, num_tokens=40, stop=(), **fields):
    fields = {"model": "demo", "stream": False, **fields}
    body = {**protocol.asked(question, num_tokens, [*stop]), **fields}
    response = server.ask(protocol.path, **body)
    assert response.status_code == 200, response.text
    return response.json()


def events(server, protocol, question=QUESTION, num_tokens=40, **fields):
    """The objects of a stream, of events or of lines."""
    fields = {"model": "demo", "stream": True, **fields}
    body = {**protocol.asked(question, num_tokens, []), **fields}
    with server.client.stream("POST", protocol.path, json=body) as response:
        assert response.status_code == 200, response.read()
        kind = "x-ndjson" if protocol.path.startswith("/api") else "event-stream"
        assert kind in response.headers["content-type"]
        assert response.headers["x-accel-buffering"] == "no"  # proxies would gather it
        lines = (line.removeprefix("data: ") for line in response.iter_lines())
        yield from (json.loads(line) for line in lines if line.startswith("{"))


def joined(protocol, told):
    """Text and thoughts of events."""
    return tuple("".join(each) for each in zip(*map(protocol.delta, told), strict=True))


def test_it_answers_what_the_engine_answers(server, engine, protocol):
    expected = engine.generate(messages(QUESTION), max_tokens=40, **STEADY).reply()
    told = whole(server, protocol)
    assert protocol.said(told) == (expected.text, "")
    stats = expected.stats
    assert protocol.usage(told) == (stats.prompt_tokens, stats.completion_tokens)
    assert protocol.reason(told) == protocol.reasons[0]
    assert told["timings"]["predicted_n"] == 40
    streamed = [*events(server, protocol)]
    assert joined(protocol, streamed) == (expected.text, "")


def test_a_stop_string_ends_an_answer(server, protocol):
    text, _ = protocol.said(whole(server, protocol))
    stop = text.split()[5]
    told = whole(server, protocol, stop=["never", stop])
    assert protocol.said(told)[0] == text[: text.index(stop)]
    assert protocol.reason(told) == protocol.reasons[1]


def test_a_seed_repeats_an_answer(server, protocol):
    found = []
    for seed in (7, 7, 8):
        drawn = {"seed": seed, "temperature": 1.5, "top_k": -1, "top_p": 1, "min_p": 0}
        more = {"options": {**drawn, "num_predict": 9}} if "api" in protocol.path else drawn
        found.append(protocol.said(whole(server, protocol, num_tokens=9, **more)))
    assert found[0] == found[1] != found[2]


def test_zeros_that_clients_send_are_no_errors(server, protocol):
    """The likeliest token alone, and what is off."""
    text, _ = protocol.said(whole(server, protocol, num_tokens=20))
    for hot in ({"temperature": 0}, {"temperature": 1.5, "top_k": 0, "min_p": 0}):
        zeros = {**hot, "top_p": 0, "repeat_penalty": 0, "typical_p": 0, "presence_penalty": 0}
        steady = {**zeros, "draft_num_predict": 3, "num_predict": 20}
        more = {"options": steady} if "api" in protocol.path else zeros
        assert protocol.said(whole(server, protocol, num_tokens=20, **more)) == (text, "")


@pytest.mark.parametrize("streams", [False, True])
def test_what_is_wrong_is_refused_in_the_shape_of_the_protocol(server, protocol, streams):
    ollama = "api" in protocol.path
    hot = {"options": {"temperature": "hot"}} if ollama else {"temperature": "hot"}
    shape = {"error"} | ({"type"} if protocol.path == "/v1/messages" else set())
    for fields, what in (
        (hot, 'temperature is "hot"'),
        ({"stream": "yes"}, 'stream is "yes"'),
        (protocol.asked("fox " * 4000, 2, []), "2048"),
        (protocol.asked(QUESTION, 0, []), "" if ollama else "tokens is 0"),
    ):
        if not what or (protocol.path == "/completion" and "is 0" in what):
            continue  # as many as fit; only read
        body = {**protocol.asked(QUESTION, 2, []), "stream": streams, **fields}
        response = server.ask(protocol.path, **body)
        assert response.status_code == 400, response.text
        assert response.json().keys() == shape
        assert what in protocol.error(response.json())


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of Unix")
@pytest.mark.parametrize("name", ["chat", "responses", "messages", "ollama chat"])
def test_an_answer_whose_process_is_lost_ends_in_an_error(server, name):
    protocol = PROTOCOLS[name]
    whole(server, protocol, num_tokens=1)
    asked = protocol.asked(QUESTION, 2000, [])
    endless = {**asked.get("options", {}), "ignore_eos": True}
    more = {"options": endless} if "options" in asked else {"ignore_eos": True}
    told = events(server, protocol, num_tokens=2000, **more)
    next(told)
    os.kill(server.models.all[0].engine.process_id, signal.SIGKILL)
    last = [*told][-1]
    assert "the process of the engine ended" in protocol.told(last)
    if name == "responses":
        assert last["response"]["error"]["code"] == "server_error"
    assert protocol.said(whole(server, protocol))[0]


@pytest.mark.parametrize("name", THINKING)
def test_thoughts_are_told_apart_from_what_is_said(server, name):
    protocol = PROTOCOLS[name]
    asked = {"model": "thinker", "question": "x"}
    assert protocol.said(whole(server, protocol, **asked)) == ("threefour", "onetwo")
    assert joined(protocol, [*events(server, protocol, **asked)]) == ("threefour", "onetwo")
    assert "thinking" in server.ask("/api/show", model="thinker").json()["capabilities"]


def calls_in(name, told):
    """Name and arguments of each call in a whole answer."""
    if name == "chat":
        return [
            (each["function"]["name"], json.loads(each["function"]["arguments"]))
            for each in told["choices"][0]["message"]["tool_calls"]
        ]
    if name == "responses":
        items = [each for each in told["output"] if each["type"] == "function_call"]
        return [(each["name"], json.loads(each["arguments"])) for each in items]
    if name == "messages":
        blocks = [each for each in told["content"] if each["type"] == "tool_use"]
        return [(each["name"], each["input"]) for each in blocks]
    calls = [each["function"] for each in told["message"]["tool_calls"]]
    return [(each["name"], each["arguments"]) for each in calls]


def asked_of_the_caller(name):
    """A question that the model answers with a call of a tool."""
    function = {"name": "get_weather", "parameters": FEW}
    tool = {
        "responses": {"type": "function", **function},
        "messages": {"name": "get_weather", "input_schema": FEW},
    }.get(name, {"type": "function", "function": function})
    return {"model": "caller", "tools": [tool], "num_tokens": 200}


@pytest.mark.parametrize("name", ["chat", "responses", "messages", "ollama chat"])
def test_calls_of_tools_come_beside_the_text(server, name):
    protocol = PROTOCOLS[name]
    asked = asked_of_the_caller(name)
    told = whole(server, protocol, **asked)
    ((called, arguments),) = calls_in(name, told)
    assert called == "get_weather"
    jsonschema.validate(arguments, FEW)
    assert protocol.said(told)[0] == "Let me see."
    assert joined(protocol, [*events(server, protocol, **asked)])[0] == "Let me see."


@pytest.mark.parametrize("asked", [{"model": "thinker"}, {"model": "caller"}])
def test_strict_readers_of_responses_read_thoughts_and_calls(server, asked):
    """Whole, and in the events of a stream, by the types of OpenAI's library."""
    types = pytest.importorskip("openai.types.responses", reason="openai is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    protocol = PROTOCOLS["responses"]
    if asked["model"] == "caller":
        asked = asked_of_the_caller("responses")
    told = whole(server, protocol, **asked)
    pydantic.TypeAdapter(types.Response).validate_python(told, strict=True)
    kinds = {item["type"] for item in told["output"]}
    assert kinds == {"message", "function_call" if "tools" in asked else "reasoning"}
    reader = pydantic.TypeAdapter(types.ResponseStreamEvent)
    for event in events(server, protocol, **asked):
        reader.validate_python(event, strict=True)


ITEM, PART = "response.output_item", "response.content_part"
ORDER = {
    "chat": ["content", "tool_calls", "finish_reason"],
    "responses": [
        "response.created", "response.in_progress",
        f"{ITEM}.added", f"{PART}.added", "response.output_text.delta",
        "response.output_text.done", f"{PART}.done", f"{ITEM}.done",
        f"{ITEM}.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", f"{ITEM}.done", "response.completed",
    ],
    "messages": [
        "message_start",
        "content_block_start", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ],
}  # fmt: skip


def kind_of(event):
    """An event's type; in Chat Completions, which has none, what its choice holds."""
    if "type" in event:
        return event["type"]
    (choice,) = event["choices"]
    return "finish_reason" if choice["finish_reason"] else [*choice["delta"]][-1]


@pytest.mark.parametrize("name", ORDER)
def test_the_events_of_a_call_come_in_the_order_of_its_protocol(server, name):
    told = [*events(server, PROTOCOLS[name], **asked_of_the_caller(name))]
    assert [kind for kind, _ in itertools.groupby(map(kind_of, told))] == ORDER[name]
    if name == "chat":
        first, *rest = [
            call
            for event in told
            for call in event["choices"][0]["delta"].get("tool_calls", ())
        ]
        assert first.keys() == {"index", "id", "type", "function"}
        assert all(each.keys() == {"index", "function"} for each in rest)
        assert all(each["function"].keys() == {"arguments"} for each in rest)
        json.loads("".join(each["function"]["arguments"] for each in (first, *rest)))


def form(schema, **more):
    """The schema, in the field that each protocol has for it."""
    given = {"type": "json_schema", "name": "x", "schema": schema, **more}
    chat = {"response_format": {"type": "json_schema", "json_schema": given}}
    return {
        "chat": chat,
        "completions": {"json_schema": schema},
        "responses": {"text": {"format": given}},
        "messages": {"output_config": {"format": given}},
        "ollama chat": {"format": schema},
        "ollama generate": {"format": schema},
        "llama-server": {"json_schema": schema},
    }


@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_answer_keeps_to_a_schema(server, name):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    protocol = PROTOCOLS[name]
    text, _ = protocol.said(whole(server, protocol, num_tokens=100, **form(FEW)[name]))
    jsonschema.validate(json.loads(text), FEW)
    odd = {"type": "string", "format": "path", "maxLength": 3}
    body = {**protocol.asked(QUESTION, 9, []), **form(odd)[name]}
    body |= {"model": "demo", "stream": False}
    passed_over = server.ask(protocol.path, **body)
    assert passed_over.headers["x-localspec-not-kept"] == "format path"
    assert passed_over.json()["not_kept"] == ["format path"]
    streamed = server.ask(protocol.path, **{**body, "stream": True})
    assert '"not_kept":["format path"]' in streamed.text


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_a_strict_schema_that_cannot_be_kept_to_is_refused(server, name):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    odd = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    for streams in (False, True):
        fields = {**form(odd, strict=True)[name], "stream": streams}
        body = {**PROTOCOLS[name].asked(QUESTION, 9, []), **fields}
        response = server.ask(PROTOCOLS[name].path, **body)
        assert response.status_code == 400
        assert "not" in response.json()["error"]["message"]


def logprobs_in(name, told):
    """Each token's log-probability and the best ones, in a whole answer."""
    if name == "chat":
        return told["choices"][0]["logprobs"]["content"]
    if name == "responses":
        return told["output"][0]["content"][0]["logprobs"]
    return told["logprobs"]


@pytest.mark.parametrize("name", ["chat", "responses", "ollama chat", "ollama generate"])
def test_log_probabilities_are_told_where_they_are_asked_for(server, name):
    protocol = PROTOCOLS[name]
    asked = {"logprobs": True, "top_logprobs": 3, "num_tokens": 5}
    if name == "responses":
        asked |= {"include": ["message.output_text.logprobs"]}
        del asked["logprobs"]
    told = whole(server, protocol, **asked)
    listed = logprobs_in(name, told)
    assert len(listed) == 5
    assert "".join(each["token"] for each in listed) == protocol.said(told)[0]
    assert all(each["logprob"] <= 0 and len(each["top_logprobs"]) == 3 for each in listed)
    assert all(each["top_logprobs"][0]["token"] == each["token"] for each in listed)
    streamed = json.dumps([*events(server, protocol, **asked)])
    assert all(json.dumps(each) in streamed for each in listed)
    body = {**protocol.asked(QUESTION, 2, []), **asked, "top_logprobs": 21}
    body.pop("num_tokens")
    assert server.ask(protocol.path, **body).status_code == 400


IMAGE = [{"role": "user", "content": [{"type": "image_url"}]}]
# As Vercel's AI SDK sends what the model said, unless its option store is false.
REFERRING = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "item_reference", "id": "msg_1"},
    {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
]
NAMELESS = {"name": ["f"], "input_schema": FEW}
INNER = {"type": "namespace", "name": "n", "tools": [{"type": "function", **NAMELESS}]}


@pytest.mark.parametrize(
    ("name", "fields", "what"),
    [
        ("chat", {"messages": []}, "no messages"),
        ("chat", {"messages": IMAGE}, "an image in it"),
        ("chat", {"logit_bias": {"99999999": 1}}, "99999999"),
        ("chat", {"xtc_probability": 0.5}, "XTC"),
        ("chat", {"proposer": "head"}, "this engine has no proposer 'head'. It has "),
        ("chat", {"tool_choice": "required"}, "the tools are none"),
        ("chat", {"modalities": ["text", "audio"]}, "audio"),
        ("chat", {"tools": [{"type": "function", "function": NAMELESS}]}, 'name is ["f"]'),
        ("completions", {"prompt": [99_999_999]}, "99999999"),
        ("completions", {"echo": True, "suffix": "x"}, "echo is true"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"background": True}, "background"),
        ("responses", {"input": REFERRING}, "Responses are not stored: send the item itself"),
        ("responses", {"tools": [{"type": "function", **NAMELESS}]}, 'name is ["f"]'),
        ("responses", {"tools": [{**INNER, "name": {}}]}, "name is {}"),
        ("responses", {"tools": [INNER]}, 'name is ["f"]'),
        ("messages", {"tool_choice": {"type": "tool"}}, "tool_choice is"),
        ("messages", {"tools": [NAMELESS]}, 'name is ["f"]'),
        ("messages", {"tools": [{"type": "web_search_1", "name": 1}]}, "name is 1"),
        ("ollama chat", {"options": {"mirostat": 1}}, "no draft can be verified"),
        ("ollama chat", {"tools": [{"function": NAMELESS}]}, 'name is ["f"]'),
        ("ollama chat", {"think": "loud"}, "one of low, medium, high, max"),
        ("ollama generate", {"images": ["aGVsbG8="]}, "has an image in it"),
        ("ollama generate", {"template": "{{ .Prompt }}"}, "template"),
        ("ollama generate", {"raw": True, "system": "Be terse."}, "raw is true"),
        ("llama-server", {"prompt": [1, "a", 2.5]}, "prompt"),
    ],
)
def test_what_a_protocol_refuses(server, name, fields, what):
    protocol = PROTOCOLS[name]
    body = {"model": "demo", **protocol.asked(QUESTION, 2, []), **fields}
    response = server.ask(protocol.path, **body)
    assert response.status_code == 400, response.text
    message = protocol.error(response.json())
    assert what in message
    assert "=" not in message  # it speaks of fields, not of Python
