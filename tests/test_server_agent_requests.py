"""What coding agents were seen to send, cut down, and the order of events that they read."""

from __future__ import annotations

import itertools
import json

import pytest

from agent_model import ANSWER, write_agent_preset
from server_runner import running_server

pytestmark = pytest.mark.process

LONG = "You are a coding agent. Be precise, safe and helpful. " * 200  # several batches

CODEX = {
    "model": "agent",
    "stream": True,
    "input": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "developer",
            "content": [{"type": "input_text", "text": LONG}],
        },
        {
            "type": "message",
            "id": "msg_2",
            "role": "developer",
            "content": [
                {
                    "type": "input_text",
                    "text": "<skills_instructions>None.",
                },
                {"type": "input_text", "text": "<permissions instructions>Read only."},
            ],
        },
        {
            "type": "message",
            "id": "msg_3",
            "role": "user",
            "content": [{"type": "input_text", "text": "<environment_context>"}],
        },
        {
            "type": "message",
            "id": "msg_4",
            "role": "user",
            "content": [{"type": "input_text", "text": "Say hello."}],
        },
    ],
    "tools": [
        {
            "type": "function",
            "name": "exec_command",
            "description": "Runs a command.",
            "strict": False,
            "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
        },
        {"type": "namespace", "name": "agents", "description": "", "tools": []},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "thread",
    "client_metadata": {"session_id": "thread"},
}

CLAUDE_CODE = {
    "model": "agent",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>It is Monday.</system-reminder>"},
                {"type": "text", "text": "Say hello.", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "Available agent types: none."},
    ],
    "system": [
        {
            "type": "text",
            "text": "x-anthropic-billing-header: cc_version=2.1.1c0;",
        },
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [
        {"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object"}}
    ],
    "metadata": {"user_id": '{"session_id":"s"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}

OPENCODE = {
    "model": "agent",
    "max_tokens": 32000,
    "messages": [
        {"role": "system", "content": "You generate titles. " + LONG},
        {"role": "user", "content": "Generate a title for this conversation:\n"},
        {"role": "user", "content": '"Say hello."'},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "bash",
                "description": "Executes a command.",
                "parameters": {
                    "$schema": "https://json-schema.org/draft/2020-12/schema",
                    "type": "object",
                    "properties": {"timeout": {"type": "integer", "exclusiveMinimum": 0}},
                },
            },
        }
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, demo_target):
    config = tmp_path_factory.mktemp("config")
    write_agent_preset(config, demo_target, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(config))
        with running_server(presets=["agent"], context_length=16_384) as running:
            yield running


def events_of(server, path, body):
    """The data of each event; the connection is closed behind the last."""
    with server.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        lines = response.read().decode().split("\n")
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def order(kinds):
    """The kinds, each once where it stands several times in a row."""
    return [kind for kind, _ in itertools.groupby(kinds)]


def test_codex(server):
    events = [json.loads(data) for data in events_of(server, "/v1/responses", CODEX)]
    kinds = [event["type"] for event in events]
    assert order(kinds) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert kinds.count("response.in_progress") > 2  # while the prompt is read
    by_kind = dict(zip(kinds, events, strict=True))
    item = by_kind["response.output_item.done"]["item"]
    assert (item["type"], item["role"]) == ("message", "assistant")
    assert item["content"][0]["text"] == ANSWER
    said = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert "".join(said) == ANSWER
    usage = by_kind["response.completed"]["response"]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 2000
    answer = {"type": "message", "role": "assistant", "content": item["content"]}
    again = {"type": "message", "role": "user", "content": "And again."}
    more = {**CODEX, "input": [*CODEX["input"], answer, again]}
    second = json.loads(events_of(server, "/v1/responses", more)[-1])["response"]["usage"]
    assert second["input_tokens_details"]["cached_tokens"] >= usage["input_tokens"] - 16


def test_claude_code(server):
    assert server.client.head("/").status_code == 200  # before anything else
    path = "/v1/messages?beta=true"
    events = [json.loads(data) for data in events_of(server, path, CLAUDE_CODE)]
    assert order(event["type"] for event in events) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    said = [delta["text"] for delta in deltas]
    assert said.count("") > 2  # while the prompt is read: pings would not keep it waiting
    assert "".join(said) == ANSWER
    assert events[-2]["delta"]["stop_reason"] == "end_turn"
    # Another session: the header's numbers are others, and all behind it is cached.
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.f5e;"}]
    other = {**CLAUDE_CODE, "system": [*system, *CLAUDE_CODE["system"][1:]]}
    usage = json.loads(events_of(server, path, other)[-2])["usage"]
    assert usage["input_tokens"] == 1


def test_opencode(server):
    *events, done = events_of(server, "/v1/chat/completions", OPENCODE)
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    # How often it is told of the reading of its prompt depends on what was cached.
    told = [chunk for chunk in chunks[:-1] if "prompt_progress" not in chunk]
    assert order(list(chunk["choices"][0]["delta"]) for chunk in told)[-2:] == [["content"], []]
    said = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]]
    assert "".join(said) == ANSWER
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 14  # with the end
