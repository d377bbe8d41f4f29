"""Tools and forms of answers in the server's protocols, asked by the real SDKs."""

from __future__ import annotations

import json

import jsonschema
import pytest

from call_families import FAMILIES, FEW, SAID, write_calling_model
from gguf_maker import with_template
from server_runner import presets_of, running_server

pytestmark = pytest.mark.process

pytest.importorskip("llguidance", reason="llguidance is not installed")

FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": FEW}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "web_search"}]
TOOLS = [{"type": "function", **FUNCTION}, {"type": "web_search"}]
ANTHROPIC_TOOLS = [
    {"name": "get_weather", "description": "The weather.", "input_schema": FEW},
    {"type": "web_search_20250305", "name": "web_search"},
]
QUESTION = {"role": "user", "content": "How will it be in Rome?"}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
WRITE = {"name": "write", "description": "A file.", "parameters": TEXT}
# Behind the head, which the grammar writes.
TAGGED = ["<tool_call>", ">", "\none ", "two ", "<three> ", '"four"', "\n</parameter>\n"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, demo_target):
    """Of the demo with a template that has tools, and of models that call by themselves."""
    folder = tmp_path_factory.mktemp("tools")
    tooled = with_template(demo_target, folder / "demo.gguf", FAMILIES["Qwen"].template)
    caller = write_calling_model(folder / "caller.gguf", "Qwen", SAID)
    tagger = write_calling_model(folder / "tagger.gguf", "Qwen3-Coder", TAGGED)
    files = {"tooled": tooled, "caller": caller, "tagger": tagger}
    presets = presets_of(folder, **{name: (path, 2048) for name, path in files.items()})
    with presets, running_server(presets=[*files, "demo"]) as running:
        yield running


def answered(create, stream, final, streams, **asked):
    """A library's answer, whole or as it puts a stream together."""
    if not streams:
        return create(**asked)
    with stream(**asked) as events:
        for _ in events:
            pass
        return getattr(events, final)()


@pytest.mark.parametrize("streams", [False, True])
def test_openai_chat_until_an_answer_comes(openai_client, streams):
    chat = openai_client.chat.completions
    ask = {"model": "tooled", "tools": CHAT_TOOLS[:1], "temperature": 0, "stop": ".",
           "parallel_tool_calls": False, "extra_body": {"draft_tokens": 3}}  # fmt: skip
    library = chat.create, chat.stream, "get_final_completion", streams
    messages = [QUESTION]
    (choice,) = answered(*library, **ask, messages=messages, tool_choice="required").choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), FEW)
    messages.append(choice.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    (choice,) = answered(*library, **ask, messages=messages, tool_choice="none").choices
    assert choice.message.content
    assert not choice.message.tool_calls
    named = {"type": "function", "function": {"name": "get_weather"}}
    (choice,) = answered(*library, **ask, messages=messages, tool_choice=named).choices
    assert choice.message.tool_calls[0].function.name == "get_weather"


@pytest.mark.parametrize("streams", [False, True])
def test_openai_responses_until_an_answer_comes(openai_client, streams):
    responses = openai_client.responses
    ask = {"model": "tooled", "tools": TOOLS, "temperature": 0, "max_output_tokens": 100,
           "parallel_tool_calls": False, "extra_body": {"draft_tokens": 3}}  # fmt: skip
    library = responses.create, responses.stream, "get_final_response", streams
    response = answered(*library, **ask, input=[QUESTION], tool_choice="required")
    assert response.status == "completed"
    (call,) = response.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    jsonschema.validate(json.loads(call.arguments), FEW)
    called = {"type": "function_call", "call_id": call.call_id, "name": call.name}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    given = [QUESTION, {**called, "arguments": call.arguments}, result]
    response = answered(*library, **ask, input=given, tool_choice="none")
    assert response.output_text
    assert [item.type for item in response.output] == ["message"]


@pytest.mark.parametrize("streams", [False, True])
def test_anthropic_until_an_answer_comes(anthropic_client, streams):
    messages = anthropic_client.messages
    ask = {"model": "tooled", "tools": ANTHROPIC_TOOLS, "max_tokens": 100,
           "extra_body": {"draft_tokens": 3, "temperature": 0}}  # fmt: skip
    library = messages.create, messages.stream, "get_final_message", streams
    choice = {"type": "any", "disable_parallel_tool_use": True}
    message = answered(*library, **ask, messages=[QUESTION], tool_choice=choice)
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert (block.type, block.name) == ("tool_use", "get_weather")
    jsonschema.validate(block.input, FEW)
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
    said = {"role": "assistant", "content": message.content}
    given = [QUESTION, said, {"role": "user", "content": [result]}]
    message = answered(*library, **ask, messages=given, tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]
    named = {"type": "tool", "name": "get_weather"}
    message = answered(*library, **ask, messages=given, tool_choice=named)
    assert message.content[0].type == "tool_use"


def test_ollama_has_no_reason_of_its_own_for_calls(server):
    ask = {"model": "caller", "messages": [QUESTION], "tools": CHAT_TOOLS[:1]}
    told = server.ask("/api/chat", **ask, stream=False).json()
    assert told["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert told["done_reason"] == "stop"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_in_tags_comes_while_it_is_written(server, choice):
    """In every protocol that has parts of calls: the name, then JSON."""
    ask = {"model": "tagger", "temperature": 0, "tool_choice": choice}
    messages = {**ask, "messages": [QUESTION]}
    chunks = server.stream("/v1/chat/completions", **messages, tools=[{"function": WRITE}])
    calls = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert calls[0]["function"] == {"name": "write", "arguments": ""}
    chat = [call["function"]["arguments"] for call in calls[1:]]
    tools = [{"type": "function", **WRITE}]
    events = server.stream("/v1/responses", **ask, input=[QUESTION], tools=tools)
    kind = "response.function_call_arguments.delta"
    response = [event["delta"] for event in events if event["type"] == kind]
    asked = {**messages, "tool_choice": {"type": "any" if choice == "required" else choice}}
    tool = {**WRITE, "input_schema": TEXT}
    events = server.stream("/v1/messages", **asked, tools=[tool])
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    blocks = [delta["partial_json"] for delta in deltas if delta["partial_json"]]
    for parts in (chat, response, blocks):
        assert json.loads("".join(parts)) == {"text": 'one two <three> "four"'}
        assert len(parts) > 5


def test_the_prompt_has_tools_calls_and_results(server):
    """In every protocol the same, as the model's template renders them."""
    arguments = {"city": "Rome", "days": 3}
    function = {"name": "get_weather", "arguments": json.dumps(arguments)}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        QUESTION,
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "And now?"},
    ]
    chat = {"model": "tooled", "messages": messages, "tools": CHAT_TOOLS}
    prompt = server.ask("/apply-template", **chat).json()["prompt"]
    assert FAMILIES["Qwen"].call in prompt
    assert '"web_search"' not in prompt
    assert '"name": "get_weather"' in prompt
    assert "<|im_start|>tool\nsunny<|im_end|>" in prompt
    num_tokens = len(server.ask("/tokenize", model="tooled", content=prompt).json()["tokens"])
    said = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "get_weather", "input": arguments},
    ]
    asked = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
        {"type": "text", "text": "And now?"},
    ]
    blocks = [
        QUESTION,
        {"role": "assistant", "content": said},
        {"role": "user", "content": asked},
    ]
    fields = {"model": "tooled", "messages": blocks, "tools": ANTHROPIC_TOOLS}
    counted = server.ask("/v1/messages/count_tokens", **fields).json()
    assert counted == {"input_tokens": num_tokens}
    items = [
        QUESTION,
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", **function},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "something_new"},
        {"role": "user", "content": "And now?"},
    ]
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    asked = {"model": "tooled", "tools": TOOLS, "max_output_tokens": 1}
    for given in (items, [items[0], thought, *items[1:]]):  # the template leaves thoughts out
        response = server.ask("/v1/responses", input=given, **asked).json()
        assert response["usage"]["input_tokens"] == num_tokens
    plain = server.ask("/apply-template", **{**chat, "model": "demo"}).json()["prompt"]
    assert "<tool_response>\nsunny\n</tool_response>" in plain  # it has no tools


@pytest.mark.parametrize("name", ["tooled", "demo"])
def test_a_template_without_tools_gets_them_in_words(server, name):
    """Its call is a call, and the header and Ollama's facts say so."""
    asked = {"model": name, "messages": [QUESTION], "tools": CHAT_TOOLS[:1]}
    response = server.ask("/v1/chat/completions", tool_choice="required", **asked)
    (call,) = response.json()["choices"][0]["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), FEW)
    is_in_words = name == "demo"
    assert response.headers.get("x-localspec-tools") == ("in words" if is_in_words else None)
    shown = server.ask("/api/show", model=name).json()
    assert "tools" in shown["capabilities"]
    known = "in words" if is_in_words else "in the template"
    assert shown["model_info"]["localspec.tools"] == known
    prompt = server.ask("/apply-template", **asked).json()["prompt"]
    assert "get_weather" in prompt
