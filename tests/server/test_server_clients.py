"""Real clients against the server: their own checks of what it sends count."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.presets.presets import find_preset

pytestmark = pytest.mark.process

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def blocks(language):
    text = PAGE.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def at(server, text):
    """The text, with the address of this server."""
    return text.replace("http://127.0.0.1:8617", server.url)


def test_openai_chat(openai_client):
    options = {"model": "demo", "messages": QUESTION, "max_tokens": 20, "temperature": 0}
    whole = openai_client.chat.completions.create(**options)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage.completion_tokens == 20
    stream = openai_client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said.split()[:3] == text.split()[:3]
    extra = openai_client.chat.completions.create(**options, extra_body={"speculative": False})
    assert extra.timings["draft_n"] == 0
    assert [model.id for model in openai_client.models.list()] == ["demo"]


def test_openai_errors(openai_client):
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "fox " * 4000}]
        )
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        openai_client.embeddings.create(model="demo", input="x")


def test_openai_completions(openai_client):
    found = openai_client.completions.create(
        model="demo", prompt="Once", max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert found.choices[0].finish_reason == "length"


def test_openai_responses(openai_client):
    options = {"model": "demo", "input": "Tell me a story.", "max_output_tokens": 20}
    whole = openai_client.responses.create(**options)
    assert whole.output_text
    assert whole.usage.output_tokens == 20
    with openai_client.responses.stream(**options) as stream:
        events = list(stream)
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert (events[-1].type, events[-1].response.output_text) == ("response.incomplete", said)
    form = {"format": {"type": "json_schema", "name": "one", "schema": {"const": 1}}}
    with openai_client.responses.stream(**options, extra_body={"text": form}) as stream:
        assert stream.get_final_response().output_text == "1"


FOX = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LOOK = {"type": "function", "name": "look", "parameters": FOX}
LOOK_TOLD = {**LOOK, "description": None, "strict": False}
SEE = {**LOOK, "name": "see", "description": "Sees.", "strict": True}
SPACE = {"type": "namespace", "name": "n", "description": "N."}
SEE_ONLY = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "see"}],
}
SAMPLED = {"temperature": 0.3, "top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -1}
FORM = {"type": "json_schema", "name": "fox", "schema": FOX}
# Requests whose fields a response repeats, each with what it says of them.
REPEATED = [
    ({}, {"tools": [], "tool_choice": "auto", "metadata": {}, "instructions": None}),
    ({"tools": [LOOK, {"type": "custom", "name": "p"}]}, {"tools": [LOOK_TOLD]}),
    (
        {"tools": [{**SPACE, "tools": [LOOK]}, SEE], "tool_choice": SEE_ONLY},
        {"tools": [{**SPACE, "tools": [LOOK_TOLD]}, SEE], "tool_choice": SEE_ONLY},
    ),
    ({"tool_choice": "none"}, {"tool_choice": "none"}),
    ({"tools": [SEE], "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    ({"metadata": {"a": "b"}}, {"metadata": {"a": "b"}}),
    ({"max_tool_calls": 3}, {"max_tool_calls": 3}),
    ({"instructions": "Be terse."}, {"instructions": "Be terse."}),
    ({"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "low", "summary": None}}),
    (SAMPLED, SAMPLED),
    (
        {"text": {"format": FORM}},
        {"text": {"format": {**FORM, "description": None, "strict": False}}},
    ),
    ({"text": {"format": {"type": "json_object"}}},) * 2,
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"top_logprobs": 2}),
]
# What Open Responses wants in every response, besides what OpenAI's types do.
ALWAYS = {
    *("completed_at", "max_tool_calls", "background", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "presence_penalty", "frequency_penalty", "reasoning", "store"),
}


@pytest.mark.parametrize(("fields", "repeated"), REPEATED)
def test_strict_readers_of_responses_read_what_was_asked(server, fields, repeated):
    """By the types of OpenAI's library, which itself checks nothing."""
    pytest.importorskip("openai", reason="openai is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    from openai.types.responses import Response, ResponseStreamEvent

    if "text" in fields:
        pytest.importorskip("llguidance", reason="llguidance is not installed")
    asked = {"model": "demo", "input": "Tell me a story.", "max_output_tokens": 8, **fields}
    answer = server.ask("/v1/responses", **asked)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    pydantic.TypeAdapter(Response).validate_python(told, strict=True)
    event_type = pydantic.TypeAdapter(ResponseStreamEvent)
    events = server.events("/v1/responses", **asked)
    for event in events:
        event_type.validate_python(event, strict=True)
    whole = [event["response"] for event in events if "response" in event]
    for response in (told, *whole):
        assert response.keys() >= ALWAYS
        for name, value in repeated.items():
            assert response[name] == value
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
            assert response[name] is not None
    details = told["usage"]["input_tokens_details"]
    assert (
        details["cached_tokens"] + details["cache_write_tokens"]
        == (told["usage"]["input_tokens"])
    )


def test_a_response_says_when_it_was_completed_and_how_it_was_sampled(server):
    preset = find_preset("demo").sampling
    told = server.ask("/v1/responses", input="Say.", min_tokens=2, max_output_tokens=1).json()
    assert (told["status"], told["completed_at"]) == ("incomplete", None)
    assert (told["temperature"], told["top_p"]) == (preset.temperature, preset.top_p)
    whole = server.ask("/v1/responses", input="Say.", stop=" ").json()
    assert whole["status"] == "completed"
    assert whole["completed_at"] >= whole["created_at"]


def test_the_tokens_of_a_prompt_are_counted(server, openai_client):
    tools = [{"type": "function", "function": {"name": "look", "parameters": FOX}}]
    for path, prompt, more in (
        ("/v1/chat/completions", {"messages": QUESTION}, {"tools": tools}),
        ("/v1/responses", {"input": QUESTION}, {"tools": [LOOK]}),
        ("/v1/responses", {"input": "Hello", "instructions": "Be terse."}, {}),
    ):
        for fields in (prompt, {**prompt, **more}):
            usage = server.ask(path, **fields, max_tokens=1, max_output_tokens=1).json()[
                "usage"
            ]
            counted = server.ask(f"{path}/input_tokens", **fields).json()
            assert counted == {
                "object": "response.input_tokens",
                "input_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
            }
    found = openai_client.responses.input_tokens.count(model="demo", input="Hello")
    assert (found.object, found.input_tokens > 5) == ("response.input_tokens", True)
    assert server.ask("/v1/responses/input_tokens", input="").json()["input_tokens"] == 0
    assert server.ask("/v1/responses/input_tokens").status_code == 400


def test_anthropic_messages(anthropic_client):
    options = {"model": "demo", "messages": QUESTION, "max_tokens": 20}
    whole = anthropic_client.messages.create(**options)
    assert whole.content[0].text
    assert whole.stop_reason == "max_tokens"
    with anthropic_client.messages.stream(**options) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == said
    assert final.usage.output_tokens == 20
    counted = anthropic_client.messages.count_tokens(model="demo", messages=QUESTION)
    assert counted.input_tokens == whole.usage.input_tokens + (
        whole.usage.cache_read_input_tokens or 0
    )


def test_anthropic_errors(anthropic_client):
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        anthropic_client.messages.create(
            model="demo", max_tokens=1, messages=[{"role": "user", "content": "fox " * 4000}]
        )


@pytest.fixture
def ollama_client(server):
    found = pytest.importorskip("ollama", reason="ollama is not installed")
    with found.Client(host=server.url, trust_env=False) as client:
        yield client


STEADY = {"temperature": 0, "draft_num_predict": 3, "num_predict": 20}


def test_ollama_chat_and_generate(ollama_client):
    whole = ollama_client.chat("demo", QUESTION, options=STEADY)
    assert (whole.done_reason, whole.eval_count) == ("length", 20)
    parts = list(ollama_client.chat("demo", QUESTION, options=STEADY, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count
    prompt = QUESTION[0]["content"]
    generated = ollama_client.generate("demo", prompt, options=STEADY)
    assert generated.response == whole.message.content
    parts = list(ollama_client.generate("demo", prompt, options=STEADY, stream=True))
    assert "".join(part.response for part in parts) == generated.response


def test_ollama_models(ollama_client):
    (listed,) = ollama_client.list().models
    assert listed.model == "demo:latest"
    shown = ollama_client.show(listed.model)
    assert "completion" in shown.capabilities
    assert shown.modelinfo[f"{listed.details.family}.context_length"] == 2048
    loaded = ollama_client.generate(listed.model, keep_alive="5m")
    assert (loaded.done, loaded.done_reason) == (True, "load")
    (running,) = ollama_client.ps().models
    assert running.model == listed.model
    assert running.digest == listed.digest
    assert running.size > 0
    assert running.expires_at is not None
    assert ollama_client.generate(listed.model, keep_alive=0).done_reason == "unload"
    assert list(ollama_client.ps().models) == []


def test_ollama_errors(ollama_client):
    import ollama

    with pytest.raises(ollama.ResponseError, match="no model for embeddings") as caught:
        ollama_client.embed("demo", "x")
    assert caught.value.status_code == 404
    for ask in (
        lambda: ollama_client.pull("demo"),
        lambda: list(ollama_client.pull("demo", stream=True)),
        lambda: ollama_client.create("mine", from_="demo"),
        lambda: ollama_client.copy("demo", "mine"),
        lambda: ollama_client.delete("demo"),
    ):
        with pytest.raises(ollama.ResponseError, match="not offered by this server") as caught:
            ask()
        assert caught.value.status_code == 501
    long = [{"role": "user", "content": "fox " * 4000}]
    for streams in (False, True):
        with pytest.raises(ollama.ResponseError, match="the context holds 2048") as caught:
            list(ollama_client.chat("demo", long, stream=streams))
        assert caught.value.status_code == 400


@pytest.mark.skipif(sys.platform == "win32", reason="the page is for a shell of Unix")
def test_the_calls_of_curl_on_the_page(server):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    calls = [block for block in blocks("sh") if block.startswith("curl")]
    assert len(calls) >= 3
    for call in calls:
        asked = at(server, call).replace("curl ", "curl --noproxy '*' -sS --fail ")
        assert run(asked, shell=True)


@pytest.mark.parametrize("block", [each for each in blocks("python") if ":8617" in each])
def test_the_python_on_the_page(server, block):
    (name,) = re.findall(r"^from (\w+)", block, re.M)
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    done = run([sys.executable, "-c", at(server, block)])
    assert done.strip()


def test_llm(server, tmp_path):
    """The program of that name, with the file that the page shows."""
    llm = Path(sys.executable).with_name("llm")
    if not llm.is_file():
        pytest.skip("llm is not installed")
    (block,) = blocks("yaml")
    (tmp_path / "extra-openai-models.yaml").write_text(at(server, block))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    command = [llm, "-m", "localspec", "--key", "local", "-o", "max_tokens", "20"]
    for more in ((), ("--no-stream",), ("--continue",)):
        told = run([*command, *more, "Tell me a story about a fox."], env=environment)
        assert len(told.split()) > 10


def run(command, **options):
    """What it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
