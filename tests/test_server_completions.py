"""The server's Completions, and what llama-server and Ollama have beside OpenAI's protocols."""

from __future__ import annotations

import json
import re

import pytest

import localspec
from localspec.presets.presets import find_preset
from localspec.server import ollama
from localspec.server.served_models import ServedModel, ServedModels
from localspec.vocabulary import with_bos
from server_runner import running_server

pytestmark = pytest.mark.process

STEADY = {"temperature": 0, "draft_tokens": 3, "max_tokens": 20}
PROMPT = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"


def complete(server, **fields):
    response = server.ask("/v1/completions", **{"prompt": PROMPT, **STEADY, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_raw_prompt_is_gone_on_with(server, engine):
    found = complete(server)
    plain = engine.generate_raw(PROMPT, **STEADY).reply()
    assert found["object"] == "text_completion"
    assert found["choices"] == [
        {"index": 0, "text": plain.text, "logprobs": None, "finish_reason": "length"}
    ]
    assert found["usage"]["prompt_tokens"] == plain.stats.prompt_tokens
    by_ids = complete(
        server, prompt=with_bos(engine.tokenize(PROMPT, special=True), engine.vocabulary)
    )
    assert by_ids["choices"] == found["choices"]
    several = complete(server, prompt=[PROMPT, "Hello"], n=2)
    assert [each["index"] for each in several["choices"]] == [0, 1, 2, 3]
    assert several["choices"][0]["text"] == several["choices"][1]["text"] == plain.text
    assert several["choices"][2]["text"] != plain.text


def test_tokens(server, engine):
    text = "The fox <|im_end|> ran."
    found = server.ask("/tokenize", content=text).json()["tokens"]
    assert found == engine.tokenize(text, special=True)
    plain = server.ask("/tokenize", content=text, parse_special=False, add_special=True)
    assert plain.json()["tokens"] == with_bos(engine.tokenize(text), engine.vocabulary)
    pieces = server.ask("/tokenize", content=text, with_pieces=True).json()["tokens"]
    assert [each["id"] for each in pieces] == found
    assert "".join(each["piece"] for each in pieces) == text
    assert server.ask("/detokenize", tokens=found).json() == {"content": text}
    assert server.ask("/tokenize").json() == {"tokens": []}
    for path, fields in (
        ("/tokenize", {"content": 3}),
        ("/tokenize", {"content": "a " * 3000, "with_pieces": True}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": ["x"]}),
        ("/detokenize", {"tokens": [99_999_999]}),
    ):
        assert server.ask(path, **fields).status_code == 400


def test_a_prompt_as_the_template_makes_it(server):
    messages = [{"role": "user", "content": "Hello <|im_end|>"}]
    found = server.ask("/apply-template", messages=messages).json()["prompt"]
    assert found.startswith("<|im_start|>user\nHello <|im_end|><|im_end|>\n")
    assert found.endswith("<|im_start|>assistant\n")
    assert server.ask("/apply-template", messages=[]).status_code == 400


def test_an_ollama_is_found(server):
    assert server.client.get("/api/version").json()["version"].count(".") == 2
    (tag,) = server.client.get("/api/tags").json()["models"]
    assert tag["name"] == tag["model"] == "demo:latest"  # Open WebUI looks for the tag
    assert tag["size"] > 10**5
    assert re.fullmatch("[0-9a-f]{64}", tag["digest"])
    assert re.fullmatch(r"\d+\.\dM", tag["details"]["parameter_size"])
    shown = server.ask("/api/show", model="demo").json()
    architecture = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{architecture}.context_length"] == 2048
    assert shown["model_info"]["general.basename"] == "demo"  # the name that editors show
    assert "completion" in shown["capabilities"]
    for found in (tag, tag["details"], shown, shown["details"], shown["model_info"]):
        assert None not in found.values()
    assert server.client.head("/").status_code == server.client.get("/").status_code == 200
    assert server.ask("/api/show", name="demo").json() == shown
    missing = server.ask("/api/nonsense", model="demo")
    assert missing.status_code == 404
    assert isinstance(missing.json()["error"], str)


def test_an_ollama_tells_the_sha256_that_a_preset_pins(hub):
    """And of a file of one's own something that changes when it does; neither reads it all."""
    localspec.download("qwen2-7b")
    pinned = ServedModel(find_preset("qwen2-7b"), None)
    own = ServedModel(find_preset("demo"), None)
    models = ServedModels([pinned, own], takes_any_name=True)
    digests = [tag["digest"] for tag in ollama.tags(models)["models"]]
    assert digests[0] == find_preset("qwen2-7b").target.files[0].sha256
    own.created += 1
    assert ollama.tags(models)["models"][1]["digest"] not in digests


def test_names_of_models():
    with running_server(takes_any_name=False) as strict:
        assert strict.chat(model="demo", max_tokens=1)["model"] == "demo"
        assert strict.chat(max_tokens=1)["model"] == "demo"
        for name in ("demo", "demo:latest"):  # as Ollama's clients name it
            assert strict.chat(model=name, max_tokens=1)["model"] == "demo"
            assert strict.client.get(f"/v1/models/{name}").json()["id"] == "demo"
        assert strict.client.get("/v1/models/demo:7b").status_code == 404
        response = strict.ask("/v1/completions", prompt="x", model="gpt-9")
        assert response.status_code == 404
        error = response.json()["error"]
        assert error["code"] == "model_not_found"
        assert "Choose one of: demo" in error["message"]
        assert strict.ask("/tokenize", content="x", model="gpt-9").status_code == 404


def test_each_token_says_where_it_begins(server):
    """In characters from the start of the prompt on, as in OpenAI's reference."""
    found = complete(server, prompt=["Once, é", PROMPT], logprobs=0, n=2)
    for choice in found["choices"]:
        before = len(PROMPT if choice["index"] > 1 else "Once, é")
        listed = choice["logprobs"]
        assert listed["text_offset"][0] == before
        whole = "".join(listed["tokens"])
        for token, at in zip(listed["tokens"], listed["text_offset"], strict=True):
            assert whole[at - before :].startswith(token)
    body = {"prompt": "Once, é", **STEADY, "logprobs": 0, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    parts = [
        json.loads(line.removeprefix("data: "))["choices"][0]["logprobs"] for line in lines
    ]
    offsets = [at for part in parts if part for at in part["text_offset"]]
    assert offsets == found["choices"][0]["logprobs"]["text_offset"]


def test_a_prompt_of_texts_and_ids(server, engine):
    """As llama-server takes one; it begins as a text does where a text is first."""
    ids = engine.tokenize(" Once upon")

    def read(*prompt):
        asked = {"prompt": list(prompt), "n_predict": 5, "temperature": 0, "draft_tokens": 3}
        response = server.ask("/completion", **asked)
        assert response.status_code == 200, response.text
        found = response.json()
        return found["content"], found["tokens_evaluated"]

    text = engine.tokenize("<|im_end|>", special=True)
    assert read(*ids, "<|im_end|>") == read(*ids, *text)
    begun = with_bos(engine.tokenize("Hi"), engine.vocabulary)
    assert read("Hi", *ids) == read(*begun, *ids)
    for wrong in ([1, "a", 2.5], [1, "a", [2]], [2**40, "a"], [True, "a"]):
        assert server.ask("/completion", prompt=wrong, n_predict=1).status_code == 400
