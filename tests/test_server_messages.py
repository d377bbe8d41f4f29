"""The server's Messages, as Anthropic's clients read them."""

from __future__ import annotations

import itertools

import pytest

pytestmark = pytest.mark.process

PATH = "/v1/messages"
STEADY = {"temperature": 0, "draft_tokens": 3, "max_tokens": 20}
QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]


def message(server, **fields):
    response = server.ask(PATH, **{"messages": QUESTION, **STEADY, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def events_of(server, **fields):
    fields = {"messages": QUESTION, **STEADY, **fields}
    return server.events(f"{PATH}?beta=true", **fields)


def test_a_message(server):
    found = message(server)
    assert found["type"] == "message"
    assert found["role"] == "assistant"
    assert found["stop_reason"] == "max_tokens"
    (block,) = found["content"]
    assert block["type"] == "text"
    assert block["text"] == server.chat(max_tokens=20)["choices"][0]["message"]["content"]
    usage = message(server)["usage"]
    assert usage["output_tokens"] == 20
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] == 1


def test_the_order_of_events(server):
    whole = message(server)
    events = events_of(server)
    kinds = [kind for kind, _ in itertools.groupby(event["type"] for event in events)]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    begun = events[0]["message"]["usage"]
    assert begun["input_tokens"] + begun["cache_read_input_tokens"] > 1
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"text_delta"}
    assert "".join(delta["text"] for delta in deltas) == whole["content"][0]["text"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 20


def test_a_message_begins_with_the_usage_that_it_ends_with(server):
    """Read, cached in part, and in several batches."""
    for text in ("Tell me of a hen.", "Tell me of a hen.", "Tell me of a hill.", "fox " * 1200):
        events = events_of(server, messages=[{"role": "user", "content": text}])
        first, last = events[0]["message"]["usage"], events[-2]["usage"]
        for name in ("input_tokens", "cache_read_input_tokens"):
            assert first[name] == last[name]
    assert first["input_tokens"] > 1000


def test_blocks(server):
    """Of all kinds that clients send back, and a system text of several."""
    parts = [{"type": "text", "text": "red"}]
    messages = [
        *QUESTION,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "fox"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": parts},
                {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]  # fmt: skip
    fields = {
        "messages": messages,
        "system": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
        "tools": [{"name": "look", "description": "", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
        "metadata": {"user_id": "me"},
        "thinking": {"type": "disabled"},
        "context_management": {},
        "output_config": {"effort": "low"},
    }
    counted = server.ask(f"{PATH}/count_tokens", **fields).json()
    usage = message(server, **fields)["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted == {"input_tokens": read}
    messages[1]["content"].insert(0, {"type": "text", "text": ""})
    assert server.ask(f"{PATH}/count_tokens", **fields).json() == counted
    fewer = server.ask(f"{PATH}/count_tokens", **{**fields, "system": "One."}).json()
    assert fewer["input_tokens"] < read


def test_blocks_of_anthropics_own_servers(server):
    """In a history that another server began: what they called is left out, texts are read."""
    text = {"type": "text", "text": "It is red."}
    called = {"id": "1", "name": "look", "input": {}}
    found = {"type": "search_result", "source": "x", "title": "Foxes", "content": [text]}

    def counted(said, asked, result):
        messages = [
            *QUESTION,
            {"role": "assistant", "content": [*said, {"type": "tool_use", **called}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": result},
                    *asked,
                ],
            },
        ]
        response = server.ask(f"{PATH}/count_tokens", messages=messages)
        assert response.status_code == 200, response.text
        return response.json()["input_tokens"]

    theirs = [
        {"type": "server_tool_use", **called},
        {"type": "web_search_tool_result", "tool_use_id": "2", "content": [{"url": "x"}]},
        {"type": "mcp_tool_use", "server_name": "x", **called},
        {"type": "mcp_tool_result", "tool_use_id": "2", "content": [text]},
        {"type": "refusal", "refusal": "No."},
    ]
    title, no = ({"type": "text", "text": each} for each in ("Foxes", "No."))
    named = {"type": "text", "text": "look"}
    reference = {"type": "tool_reference", "tool_name": "look"}
    whole = counted(theirs, [found], [found, reference])
    assert whole == counted([no], [title, text], [title, text, named])
    assert whole > counted([no], [title, text], [title, text])
    written = {"type": "text", "media_type": "text/plain", "data": text["text"]}
    for source in (written, {"type": "content", "content": [text]}):
        document = {"type": "document", "title": "Foxes", "source": source}
        assert counted([], [document], [document]) == counted([], [title, text], [title, text])


def test_a_model_hears_that_a_tool_failed(server):
    called = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    text = {"type": "text", "text": "It rains."}

    def counted(content, **more):
        result = {"type": "tool_result", "tool_use_id": "1", "content": content, **more}
        asked = [
            *QUESTION,
            {"role": "assistant", "content": [called]},
            {"role": "user", "content": [result]},
        ]
        return server.ask(f"{PATH}/count_tokens", messages=asked).json()["input_tokens"]

    for content in ("It rains.", [text], None):
        assert counted(content, is_error=True) > counted(content, is_error=False)
        assert counted(content, is_error=False) == counted(content)
    assert counted("It rains.", is_error=True) == counted([text], is_error=True)


def test_a_header_that_changes_with_each_request_leaves_the_caches_of_use(server):
    for number in ("a1b2c", "d3e4f"):
        header = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number};"
        system = [{"type": "text", "text": header}, {"type": "text", "text": "Be terse."}]
        usage = message(server, system=system)["usage"]
    assert usage["input_tokens"] == 1
    quoted = [{"type": "text", "text": f"Explain this.\n{header}"}]
    assert message(server, system=quoted)["usage"]["input_tokens"] > 1


def test_max_tokens_may_be_left_out(server):
    """As in the other protocols here, and in llama-server."""
    found = server.ask("/v1/messages", messages=QUESTION, stop_sequences=["e"])
    assert found.status_code == 200
    assert found.json()["stop_reason"] == "stop_sequence"
