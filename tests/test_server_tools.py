"""Tools and forms of answers in the server's protocols, asked by the real SDKs."""

from __future__ import annotations

import itertools
import json

import pytest
from call_families import FAMILIES, write_calling_model

from gguf_maker import with_template
from server_runner import running_server

pytestmark = pytest.mark.process

pytest.importorskip("llguidance", reason="llguidance is not installed")

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "web_search"}]
TOOLS = [{"type": "function", **FUNCTION}, {"type": "web_search"}]
ANTHROPIC_TOOLS = [
    {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA},
    {"type": "web_search_20250305", "name": "web_search"},
]
QUESTION = {"role": "user", "content": "How will it be in Rome?"}
STEADY = {"temperature": 0, "draft_tokens": 3}
SAID = ["Let me see. ", "<tool_call>", '\n{"name": "get_weather", "arg', "uments",
        '": {"city": "Rome", "days": 3}}\n', "</tool_call>"]  # fmt: skip

NOW = {"name": "now", "description": "The time."}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
WRITE = {"name": "write", "description": "A file.", "parameters": TEXT}
# Behind the head, which the grammar writes.
TAGGED = ["<tool_call>", ">", "\none ", "two ", "<three> ", '"four"', "\n</parameter>\n"]
EQUAL = ["<tool_call>", '\n{"name": "now", "arguments": {}}\n', "</tool_call>", "<0x0A>"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, demo_target, demo_draft):
    """Of the demo with a template that has tools, and of one that calls by itself."""
    folder = tmp_path_factory.mktemp("tools")
    target = with_template(demo_target, folder / "demo.gguf", FAMILIES["Qwen"].template)
    caller = write_calling_model(folder / "caller.gguf", "Qwen", SAID)
    looping = write_calling_model(folder / "looping.gguf", "Qwen", EQUAL)
    eager = with_template(
        demo_target,
        folder / "eager.gguf",
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if reasoning_effort == 'high' %} Think hard, and think again.{% endif %}"
        "{% if style %} {{ style }}{% endif %}",
    )
    tagger = write_calling_model(folder / "tagger.gguf", "Qwen3-Coder", TAGGED)
    presets = folder / "localspec" / "models.toml"
    presets.parent.mkdir()
    presets.write_text(
        f'[tooled]\ndescription = "tooled"\ncontext_length = 2048\ntarget.path = "{target}"\n'
        f'draft.path = "{demo_draft}"\n'
        f'[caller]\ndescription = "caller"\ncontext_length = 2048\ntarget.path = "{caller}"\n'
        f'[eager]\ndescription = "eager"\ncontext_length = 2048\ntarget.path = "{eager}"\n'
        f'[looping]\ndescription = "equal"\ncontext_length = 2048\ntarget.path = "{looping}"\n'
        f'[tagger]\ndescription = "tags"\ncontext_length = 2048\ntarget.path = "{tagger}"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        with running_server(
            presets=["tooled", "caller", "looping", "eager", "tagger", "demo"]
        ) as running:
            yield running


def is_right(arguments):
    return (
        arguments.keys() == {"city", "days"}
        and arguments["city"] in ("Rome", "Oslo")
        and 1 <= arguments["days"] <= 9
    )


@pytest.mark.parametrize("streams", [False, True])
def test_openai_chat_until_an_answer_comes(openai_client, streams):
    ask = {"model": "tooled", "tools": CHAT_TOOLS[:1], "temperature": 0, "stop": ".",
           "parallel_tool_calls": False, "extra_body": {"draft_tokens": 3}}  # fmt: skip

    def answered(**more):
        if not streams:
            return openai_client.chat.completions.create(**ask, **more)
        with openai_client.chat.completions.stream(**ask, **more) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion()

    messages = [QUESTION]
    (choice,) = answered(messages=messages, tool_choice="required").choices
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert is_right(json.loads(call.function.arguments))
    messages.append(choice.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    (choice,) = answered(messages=messages, tool_choice="none").choices
    assert choice.message.content
    assert not choice.message.tool_calls
    named = {"type": "function", "function": {"name": "get_weather"}}
    (choice,) = answered(messages=messages, tool_choice=named).choices
    assert choice.message.tool_calls[0].function.name == "get_weather"


@pytest.mark.parametrize("streams", [False, True])
def test_openai_responses_until_an_answer_comes(openai_client, streams):
    ask = {"model": "tooled", "tools": TOOLS, "temperature": 0, "max_output_tokens": 100,
           "parallel_tool_calls": False, "extra_body": {"draft_tokens": 3}}  # fmt: skip

    def answered(**more):
        if not streams:
            return openai_client.responses.create(**ask, **more)
        with openai_client.responses.stream(**ask, **more) as stream:
            for _ in stream:
                pass
            return stream.get_final_response()

    given = [QUESTION]
    response = answered(input=given, tool_choice="required")
    assert response.status == "completed"
    (call,) = response.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert is_right(json.loads(call.arguments))
    given += [
        {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
        },
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    response = answered(input=given, tool_choice="none")
    assert response.output_text
    assert [item.type for item in response.output] == ["message"]


@pytest.mark.parametrize("streams", [False, True])
def test_anthropic_until_an_answer_comes(anthropic_client, streams):
    ask = {"model": "tooled", "tools": ANTHROPIC_TOOLS, "max_tokens": 100,
           "extra_body": {"draft_tokens": 3, "temperature": 0}}  # fmt: skip

    def answered(**more):
        if not streams:
            return anthropic_client.messages.create(**ask, **more)
        with anthropic_client.messages.stream(**ask, **more) as stream:
            for _ in stream:
                pass
            return stream.get_final_message()

    messages = [QUESTION]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    message = answered(messages=messages, tool_choice=choice)
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert (block.type, block.name) == ("tool_use", "get_weather")
    assert is_right(block.input)
    messages.append({"role": "assistant", "content": message.content})
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
    messages.append({"role": "user", "content": [result]})
    message = answered(messages=messages, tool_choice={"type": "none"})
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert [block.type for block in message.content] == ["text"]
    named = answered(messages=messages, tool_choice={"type": "tool", "name": "get_weather"})
    assert named.content[0].type == "tool_use"


def events_of(server, path, **fields):
    with server.client.stream("POST", path, json={"stream": True, **fields}) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_call_that_has_to_be_made_is_the_only_one_unless_more_are_asked_for(server):
    """In every protocol, by a model that would call without end."""
    chat = {"model": "looping", "messages": [QUESTION], "tools": [{"function": NOW}]}
    chat = {**chat, "tool_choice": "required", "max_tokens": 300, "temperature": 0}
    asked = {"model": "looping", "input": [QUESTION], "tools": [{"type": "function", **NOW}]}
    asked = {**asked, "tool_choice": "required", "max_output_tokens": 300, "temperature": 0}
    blocks = {**chat, "tools": [{**NOW, "input_schema": {"type": "object"}}]}
    for more, choice in (({}, {}), ({"parallel_tool_calls": True},
                                    {"disable_parallel_tool_use": False})):  # fmt: skip
        kind = {"type": "any", **choice}
        message = server.ask("/v1/chat/completions", **chat, **more).json()["choices"][0]
        response = server.ask("/v1/responses", **asked, **more).json()
        block = server.ask("/v1/messages", **{**blocks, "tool_choice": kind}).json()
        assert response["parallel_tool_calls"] is bool(more)
        calls = (message["message"]["tool_calls"], response["output"], block["content"])
        assert [len(each) > 1 for each in calls] == [bool(more)] * 3


def test_the_deltas_of_a_call_in_chat_completions(server):
    ask = {"model": "caller", "messages": [QUESTION], "tools": CHAT_TOOLS, "temperature": 0}
    chunks = events_of(server, "/v1/chat/completions", **ask)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    said = "".join(delta.get("content") or "" for delta in deltas)
    assert said == "Let me see."
    first, *more = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (first["index"], first["type"]) == (0, "function")
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert len(more) > 3
    assert all(call.keys() == {"index", "function"} for call in more)
    arguments = "".join(call["function"]["arguments"] for call in more)
    assert is_right(json.loads(arguments))
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    whole = server.ask("/v1/chat/completions", **ask).json()["choices"][0]
    assert whole["message"]["content"] == "Let me see."
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    sampled = server.ask("/v1/chat/completions", **ask, n=2).json()["choices"]
    assert [choice["finish_reason"] for choice in sampled] == ["tool_calls"] * 2


def test_the_events_of_a_call_in_responses(server):
    ask = {"model": "caller", "input": [QUESTION], "tools": TOOLS, "temperature": 0}
    events = events_of(server, "/v1/responses", **ask)
    kinds = [kind for kind, _ in itertools.groupby(event["type"] for event in events)]
    assert kinds[2:] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    (added,) = [e for e in events if e["type"] == kinds[2] and e["output_index"] == 1]
    assert added["item"]["arguments"] == ""
    assert added["item"]["name"] == "get_weather"
    (done,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(e["delta"] for e in deltas) == done["arguments"]
    assert {e["item_id"] for e in deltas} == {done["item_id"]} == {added["item"]["id"]}
    output = events[-1]["response"]["output"]
    assert output[1] == events[-2]["item"]
    assert output[1]["arguments"] == done["arguments"]
    whole = server.ask("/v1/responses", **ask).json()["output"]
    assert [item["type"] for item in whole] == ["message", "function_call"]
    assert whole[1]["arguments"] == done["arguments"]


def test_the_events_of_a_call_in_messages(server):
    ask = {"model": "caller", "messages": [QUESTION], "tools": ANTHROPIC_TOOLS,
           "temperature": 0, "max_tokens": 200}  # fmt: skip
    events = events_of(server, "/v1/messages", **ask)
    starts = [e for e in events if e["type"] == "content_block_start"]
    assert [(e["index"], e["content_block"]["type"]) for e in starts] == [
        (0, "text"),
        (1, "tool_use"),
    ]
    assert starts[1]["content_block"]["name"] == "get_weather"
    assert starts[1]["content_block"]["input"] == {}
    deltas = [e["delta"] for e in events if e.get("index") == 1 and "delta" in e]
    assert {delta["type"] for delta in deltas} == {"input_json_delta"}
    assert is_right(json.loads("".join(delta["partial_json"] for delta in deltas)))
    (stopped,) = [e for e in events if e["type"] == "message_delta"]
    assert stopped["delta"]["stop_reason"] == "tool_use"
    whole = server.ask("/v1/messages", **ask).json()
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_in_tags_comes_while_it_is_written(server, choice):
    """In every protocol that has parts of calls: the name, then JSON."""
    ask = {"model": "tagger", "temperature": 0, "tool_choice": choice}
    messages = {**ask, "messages": [QUESTION]}
    chunks = events_of(server, "/v1/chat/completions", **messages, tools=[{"function": WRITE}])
    calls = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert calls[0]["function"] == {"name": "write", "arguments": ""}
    chat = [call["function"]["arguments"] for call in calls[1:]]
    events = events_of(
        server, "/v1/responses", **ask, input=[QUESTION], tools=[{"type": "function", **WRITE}]
    )
    kind = "response.function_call_arguments.delta"
    response = [event["delta"] for event in events if event["type"] == kind]
    asked = {**messages, "tool_choice": {"type": "any" if choice == "required" else choice}}
    tool = {**WRITE, "input_schema": TEXT}
    events = events_of(server, "/v1/messages", **asked, tools=[tool])
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
    fields = {"model": "tooled", "messages": messages, "tools": CHAT_TOOLS}
    prompt = server.ask("/apply-template", **fields).json()["prompt"]
    assert FAMILIES["Qwen"].call in prompt
    assert '"web_search"' not in prompt
    assert '"name": "get_weather"' in prompt
    assert "<|im_start|>tool\nsunny<|im_end|>" in prompt
    num_tokens = len(server.ask("/tokenize", model="tooled", content=prompt).json()["tokens"])
    blocks = [
        QUESTION,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": arguments},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    counted = server.ask(
        "/v1/messages/count_tokens", model="tooled", messages=blocks, tools=ANTHROPIC_TOOLS
    ).json()
    assert counted == {"input_tokens": num_tokens}
    items = [
        QUESTION,
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", **function},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"role": "user", "content": "And now?"},
    ]
    response = server.ask(
        "/v1/responses", model="tooled", input=items, tools=TOOLS, max_output_tokens=1
    ).json()
    assert response["usage"]["input_tokens"] == num_tokens
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    response = server.ask(
        "/v1/responses",
        model="tooled",
        input=[items[0], thought, *items[1:]],
        tools=TOOLS,
        max_output_tokens=1,
    ).json()
    assert response["usage"]["input_tokens"] == num_tokens  # this template leaves it out
    plain = server.ask("/apply-template", **{**fields, "model": "demo"}).json()["prompt"]
    assert "<tool_response>\nsunny\n</tool_response>" in plain  # it has no tools


def test_what_a_request_says_of_thinking_is_in_the_prompt(server):
    """In every protocol; and no variable becomes a control token."""
    ask = {"model": "eager", "messages": [QUESTION], "max_tokens": 1}

    def prompt(**more):
        return server.ask("/apply-template", **ask, **more).json()["prompt"]

    said = prompt(reasoning_effort="high")
    assert said.endswith("Think hard, and think again.")
    assert prompt(reasoning_effort="low") == prompt()
    assert prompt(chat_template_kwargs={"style": "Rhyme."}).endswith("Rhyme.")
    num_tokens = len(server.ask("/tokenize", model="eager", content=said).json()["tokens"])
    counted = server.ask("/v1/messages/count_tokens", **ask, output_config={"effort": "high"})
    assert counted.json()["input_tokens"] == num_tokens
    chat = server.ask("/v1/chat/completions", **ask, reasoning_effort="high").json()
    assert chat["usage"]["prompt_tokens"] == num_tokens
    asked = {"model": "eager", "input": [QUESTION], "reasoning": {"effort": "high"}}
    response = server.ask("/v1/responses", **asked, max_output_tokens=1).json()
    assert response["usage"]["input_tokens"] == num_tokens
    ollama = {"model": "eager", "messages": [QUESTION], "think": "high", "stream": False}
    found = server.ask("/api/chat", **ollama, options={"num_predict": 1}).json()
    assert found["prompt_eval_count"] == num_tokens
    control = {"chat_template_kwargs": {"style": "<|im_end|>"}}
    whole = server.ask("/v1/chat/completions", **ask, **control).json()
    bare = server.ask("/v1/chat/completions", **ask).json()
    assert whole["usage"]["prompt_tokens"] > bare["usage"]["prompt_tokens"] + 3


def test_without_the_library_calls_are_free(server, monkeypatch):
    monkeypatch.setattr("localspec.chat.kept_calls.is_installed", lambda: False)
    ask = {"model": "caller", "messages": [QUESTION], "tools": CHAT_TOOLS, "temperature": 0}
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in events_of(server, "/v1/chat/completions", **ask)
    ]
    (call,) = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome", "days": 3}
    refused = server.ask("/v1/chat/completions", **ask, tool_choice="required")
    assert refused.status_code == 400
    assert "localspec[grammar]" in refused.json()["error"]["message"]
