"""The server's Chat Completions, over loopback, with the demo pair in a child process."""

from __future__ import annotations

import json

import pytest

from localspec.chat.messages import PICTURE_NOTE

pytestmark = pytest.mark.process

STEADY = {"temperature": 0, "draft_tokens": 3}
LOOK = {"type": "function", "function": {"name": "look"}}
QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]


def chunks_of(server, path="/v1/chat/completions", **fields):
    """The JSON of a stream's events, and how it ended."""
    fields = {"messages": QUESTION, "stream": True, **STEADY, **fields}
    with server.client.stream("POST", path, json=fields) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_stream_adds_up_to_the_whole(server):
    whole = server.chat(max_tokens=50)
    chunks = chunks_of(server, max_tokens=50, stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    *said, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in said)
    assert text == whole["choices"][0]["message"]["content"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in said]
    assert reasons == [None] * (len(said) - 1) + ["length"]
    assert said[-1]["timings"]["predicted_n"] == 50
    assert len({chunk["id"] for chunk in chunks}) == 1
    without = chunks_of(server, max_tokens=5)
    assert all("usage" not in chunk for chunk in without)


def test_the_same_prompt_is_cached_the_second_time(server):
    server.chat("Name a colour.", max_tokens=4)
    again = server.chat("Name a colour.", max_tokens=4)
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["usage"]["prompt_tokens"] - 1
    assert again["timings"]["cache_n"] == cached
    assert again["timings"]["prompt_n"] == 1


def test_options_reach_the_engine(server):
    whole = server.chat(max_tokens=40)["choices"][0]["message"]["content"]
    stop = whole.split()[5]
    stopped = server.chat(stop=[stop], max_tokens=40)["choices"][0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["message"]["content"] == whole[: whole.index(stop)]
    seeded = [server.chat(temperature=1.5, seed=7, max_tokens=30) for _ in range(2)]
    texts = [each["choices"][0]["message"]["content"] for each in seeded]
    assert texts[0] == texts[1]
    other = server.chat(temperature=1.5, seed=8, max_tokens=30, top_k=0, min_p=0, top_p=1)
    assert other["choices"][0]["message"]["content"] != texts[0]
    banned = server.chat(max_tokens=1, logprobs=True)["choices"][0]["logprobs"]["content"][0]
    biased = server.chat(max_tokens=1, logprobs=True, logit_bias={str(banned["id"]): -100})
    assert biased["choices"][0]["logprobs"]["content"][0]["id"] != banned["id"]


def test_an_answer_can_be_drafted_for_or_not(server):
    plain = server.chat(max_tokens=60, speculative=False)
    assert plain["timings"]["draft_n"] == 0
    assert plain["timings"]["draft_off"] == "draft off"
    drafted = server.chat(max_tokens=60, draft_tokens=4, proposer="draft")
    assert drafted["timings"]["draft_n"] > 0
    assert drafted["choices"] == plain["choices"]


def test_each_step_says_what_it_tried_to_who_asks(server):
    chunks = chunks_of(server, max_tokens=40, explain=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    steps = [choice["step"] for choice in choices if "step" in choice]
    timings = chunks[-1]["timings"]
    assert sum(step["drafted"] for step in steps) == timings["draft_n"] > 0
    assert sum(step["accepted"] for step in steps) == timings["draft_n_accepted"] > 0
    assert {step["threads"] for step in steps} <= set(range(1, 257))
    assert sum("provenance" in choice for choice in choices) == timings["predicted_n"]
    assert not any("step" in chunk["choices"][0] for chunk in chunks_of(server, max_tokens=5))


def test_what_steps_cost_here_is_told_at_the_end(server):
    """With the automatic policy, once it has timed steps of several tokens."""
    chunks = chunks_of(server, max_tokens=120, draft_tokens=None, explain=True)
    ratios = chunks[-1]["explanation"]["outlook"]["step_ratios"]
    assert ratios["1"] == 1.0
    assert len(ratios) > 1
    assert all(ratio > 0 for ratio in ratios.values())


def test_a_prediction_is_counted(server):
    whole = server.chat(max_tokens=60, speculative=False)
    text = whole["choices"][0]["message"]["content"]
    options = {"proposer": "lookup", "draft_tokens": 4, "max_tokens": 60}
    found = server.chat(prediction={"type": "content", "content": text}, **options)
    assert found["choices"] == whole["choices"]
    details = found["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 30
    assert details["rejected_prediction_tokens"] < 10
    details = server.chat(**options)["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 0


def test_messages_as_clients_write_them(server):
    """Parts, null, developers, calls of tools and what came of them, answers begun."""
    messages = [
        {"role": "developer", "content": "You are terse."},
        {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "t", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "12:00"},
    ]
    told = server.chat(messages=messages, max_tokens=4)["usage"]["prompt_tokens"]
    silent = [*messages[:3], {**messages[3], "content": ""}]
    assert told > server.chat(messages=silent, max_tokens=4)["usage"]["prompt_tokens"]
    whole = server.chat(max_tokens=30)["choices"][0]["message"]["content"]
    cut = server.chat(max_tokens=15)["choices"][0]["message"]["content"]
    begun = [*QUESTION, {"role": "assistant", "content": cut}]
    rest = server.chat(messages=begun, max_tokens=15)["choices"][0]["message"]["content"]
    assert cut + rest == whole


def test_fields_that_nobody_knows_are_passed_over(server):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}, {"type": "x"}]
    found = server.chat(
        max_tokens=3,
        tools=tools,
        tool_choice="auto",
        parallel_tool_calls=True,
        store=False,
        metadata={"a": "b"},
        user="me",
        service_tier="auto",
        prompt_cache_key="k",
        reasoning_effort="low",
        cache_prompt=True,
        response_format={"type": "text"},
        max_completion_tokens=None,
        xtc_probability=0,
        mystery=[[1]],
    )
    assert found["choices"][0]["finish_reason"] == "length"
    assert "tool_calls" not in found["choices"][0]["message"]


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}


@pytest.mark.process
def test_a_picture_in_an_earlier_turn_becomes_a_note(server):
    """In the last message, to which the answer would be, it is refused."""
    seen = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]}
    later = [{"role": "assistant", "content": "A fox."}, {"role": "user", "content": "Sure?"}]
    told = {"role": "user", "content": f"What is this?\n{PICTURE_NOTE}"}
    found, expected = (
        server.ask("/apply-template", messages=[first, *later]).json()["prompt"]
        for first in (seen, told)
    )
    assert found == expected
    assert PICTURE_NOTE in found
    body = {"messages": [seen, *later], "max_tokens": 2}
    assert server.ask("/v1/chat/completions", **body).status_code == 200
    of_ollama = [{"role": "user", "content": "What is this?", "images": ["aGVsbG8="]}, *later]
    asked = {"messages": of_ollama, "options": {"num_predict": 2}, "stream": False}
    assert server.ask("/api/chat", **asked).status_code == 200
    last = server.ask("/v1/chat/completions", messages=[*later, seen], max_tokens=2)
    assert last.status_code == 400
    assert "message 2 has an image in it" in last.json()["error"]["message"]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["image", "file"])
def test_what_a_tool_showed_last_becomes_a_note(server, kind):
    """In every protocol: nobody is there who could ask otherwise, and the session goes on."""
    blank = "aGVsbG8="
    url = f"data:image/png;base64,{blank}"
    own = {"image": {"type": "image_url", "image_url": {"url": url}}, "file": {"type": "file"}}
    of_responses = {
        "image": {"type": "input_image", "image_url": url},
        "file": {"type": "input_file", "file_data": "x"},
    }
    source = {"type": "base64", "media_type": "image/png", "data": blank}
    of_anthropic = {
        "image": {"type": "image", "source": source},
        "file": {"type": "document", "source": {"type": "base64", "data": "x"}},
    }
    asked = {"role": "user", "content": "Look."}
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c"}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    chat = [asked, called, {**result, "content": [own[kind]]}]
    prompt = server.ask("/apply-template", messages=chat).json()["prompt"]
    assert prompt.count(" was here, which this model cannot ") == 1
    items = [
        asked,
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [of_responses[kind]]},
    ]
    used = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    told = {"type": "tool_result", "tool_use_id": "c", "content": [of_anthropic[kind]]}
    blocks = [
        asked,
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [told]},
    ]
    shown = {"images": [blank]} if kind == "image" else {"content": [own[kind]]}
    of_ollama = [asked, called, {**result, **shown}]
    for path, fields in (
        ("/v1/chat/completions", {"messages": chat, "max_tokens": 2}),
        ("/v1/responses", {"input": items, "max_output_tokens": 2}),
        ("/v1/messages", {"messages": blocks, "max_tokens": 2}),
        ("/api/chat", {"messages": of_ollama, "options": {"num_predict": 2}}),
    ):
        answered = server.ask(path, **fields)
        assert answered.status_code == 200, answered.text
