"""Real clients against the server: their own checks of what it sends count."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server_runner import running_server

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
PAGE = Path(__file__).parent.parent / "docs" / "server.md"


@pytest.fixture(scope="module")
def server():
    with running_server() as running:
        yield running


@pytest.fixture
def openai_client(server):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(server):
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


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
        said = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == said


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


def blocks(language):
    text = PAGE.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def at(server, text):
    """The text, with the address of this server."""
    return text.replace("http://127.0.0.1:8617", server.url)


@pytest.mark.skipif(sys.platform == "win32", reason="the page is for a shell of Unix")
def test_the_calls_of_curl_on_the_page(server):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    calls = [block for block in blocks("sh") if block.startswith("curl")]
    assert len(calls) >= 3
    for call in calls:
        done = subprocess.run(
            at(server, call).replace("curl ", "curl --noproxy '*' -sS --fail "),
            shell=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, (call, done.stderr)
        assert done.stdout


def test_the_python_on_the_page(server):
    found = blocks("python")
    assert found
    for number, block in enumerate(found):
        for name in re.findall(r"^(?:import|from) (\w+)", block, re.M):
            pytest.importorskip(name, reason=f"{name} is not installed")
        done = subprocess.run(
            [sys.executable, "-c", at(server, block)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, (number, done.stderr)
        assert done.stdout.strip()


def test_the_settings_on_the_page_can_be_read(server):
    for block in blocks("json"):
        json.loads(block)
    tomllib = pytest.importorskip("tomllib", reason="tomllib is not installed")
    for block in blocks("toml"):
        tomllib.loads(block)
