"""The server's Responses: the order of events that coding agents read."""

from __future__ import annotations

import itertools
import logging

import pytest

pytestmark = pytest.mark.process

PATH = "/v1/responses"
STEADY = {"temperature": 0, "draft_tokens": 3, "max_output_tokens": 20}
INPUT = "Tell me a story about a fox."


def respond(server, **fields):
    response = server.ask(PATH, **{"input": INPUT, **STEADY, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def events_of(server, **fields):
    events = server.events(PATH, **{"input": INPUT, **STEADY, **fields})
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    return events


def test_the_order_of_events(server):
    whole = respond(server)
    events = events_of(server)
    kinds = [kind for kind, _ in itertools.groupby(event["type"] for event in events)]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    done = events[-2]["item"]
    assert done["type"] == "message"
    assert done["content"][0]["text"] == text
    assert whole["output"][0]["content"] == done["content"]
    response = events[-1]["response"]
    assert response["output"] == [done]
    assert response["id"] == events[0]["response"]["id"]
    usage = response["usage"]
    assert usage["output_tokens"] == 20
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] - 1
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert done["status"] == whole["output"][0]["status"] == "incomplete"
    brief = {"text": {"format": {"type": "json_schema", "schema": {"const": 1}}}}
    *_, item, last = events_of(server, max_output_tokens=200, **brief)
    assert (last["type"], last["response"]["status"]) == ("response.completed", "completed")
    assert item["item"]["status"] == "completed"


def test_an_empty_input_loads_the_model(server):
    for given in ("", []):
        found = respond(server, input=given, max_output_tokens=1)
        assert found["output"] == []
        assert found["status"] == "completed"
    events = events_of(server, input="")
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert server.models.all[0].engine is not None


def test_what_an_agent_sends(server, caplog):
    """Items of all kinds, also such as are not known yet; tools that are no functions."""
    parts = [{"type": "input_text", "text": "Be terse."}]
    items = [
        {"type": "message", "role": "developer", "content": parts},
        {"role": "user", "content": "What time is it?"},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "1", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "12:00"},
        {"type": "custom_tool_call", "call_id": "2", "name": "shell", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": parts},
        {"type": "local_shell_call", "call_id": "3", "action": {"type": "exec"}},
        {"type": "local_shell_call_output", "call_id": "3", "output": {"content": "b"}},
        {"type": "something_new"},
    ]  # fmt: skip
    caplog.set_level(logging.INFO)
    found = respond(
        server,
        input=items,
        instructions="You are an agent.",
        tools=[{"type": "function", "name": "clock"}, {"type": "web_search"}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
        store=False,
        include=["reasoning.encrypted_content"],
        service_tier="auto",
        prompt_cache_key="thread",
        text={"verbosity": "low"},
        client_metadata={},
    )
    assert "something_new" not in caplog.text  # a line for each would have no end
    fewer = respond(server, input=items[:5], instructions="You are an agent.")
    assert found["usage"]["input_tokens"] > fewer["usage"]["input_tokens"]
    without = respond(server, input=items[:5])
    assert fewer["usage"]["input_tokens"] > without["usage"]["input_tokens"]
