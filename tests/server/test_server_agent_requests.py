"""What coding agents were seen to send, cut down, and the order of events that they read."""

from __future__ import annotations

import itertools

import pytest

from agent_model import ANSWER, write_agent_preset
from server_runner import running_server

pytestmark = pytest.mark.process

LONG = "You are a coding agent. Be precise, safe and helpful. " * 200  # several batches
TOOL = {"name": "exec", "description": "Runs.", "parameters": {"type": "object"}}


def text(kind, *texts):
    return [{"type": kind, "text": each} for each in texts]


CODEX = {
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": text("input_text", LONG, "Skills."),
        },
        {"type": "message", "role": "user", "content": text("input_text", "Say hello.")},
    ],
    "tools": [
        {"type": "function", "strict": False, **TOOL},
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
BILLING = "x-anthropic-billing-header: cc_version=2.1.1c0;"
CLAUDE_CODE = {
    "messages": [
        {"role": "user", "content": text("text", "<system-reminder>", "Say hello.")},
        {"role": "system", "content": "Available agent types: none."},
    ],
    "system": text("text", BILLING, "You are an agent.", LONG),
    "tools": [{"name": "Read", "description": "", "input_schema": {"type": "object"}}],
    "metadata": {"user_id": '{"session_id":"s"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, demo_target):
    config = tmp_path_factory.mktemp("config")
    write_agent_preset(config, demo_target, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(config))
        with running_server(presets=["agent"], context_length=16_384) as running:
            yield running


def order(kinds):
    """The kinds, each once where it stands several times in a row."""
    return [kind for kind, _ in itertools.groupby(kinds)]


def test_codex(server):
    events = server.stream("/v1/responses", model="agent", **CODEX)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert order(kinds) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    assert kinds.count("in_progress") > 2  # while the prompt is read
    item, usage = events[-2]["item"], events[-1]["response"]["usage"]
    assert item["content"][0]["text"] == ANSWER
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 2000
    answer = {"type": "message", "role": "assistant", "content": item["content"]}
    again = {"type": "message", "role": "user", "content": "And again."}
    more = {**CODEX, "model": "agent", "input": [*CODEX["input"], answer, again]}
    second = server.stream("/v1/responses", **more)[-1]["response"]["usage"]
    assert second["input_tokens_details"]["cached_tokens"] >= usage["input_tokens"] - 16


def test_claude_code(server):
    assert server.client.head("/").status_code == 200  # before anything else
    path = "/v1/messages?beta=true"
    events = server.stream(path, model="agent", **CLAUDE_CODE)
    assert order(event["type"] for event in events) == [
        *("message_start", "content_block_start", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    said = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
    assert said.count("") > 2  # while the prompt is read: pings would not keep it waiting
    assert "".join(said) == ANSWER
    # Another session: the header's numbers are others, and all behind it is cached.
    system = text("text", BILLING.replace("1c0", "f5e"), "You are an agent.", LONG)
    other = server.stream(path, **{**CLAUDE_CODE, "model": "agent", "system": system})
    assert other[-2]["usage"]["input_tokens"] == 1
