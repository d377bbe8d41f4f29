"""What a protocol has of its own, asked over loopback of the demo pair in a child process."""

from __future__ import annotations

import pytest

from gguf_maker import with_template, write_spm_model
from localspec.chat.template import BUILT_IN
from localspec.presets.presets import find_preset
from localspec.server import ollama
from localspec.server.served_models import ServedModel, ServedModels
from localspec.vocabulary import with_bos
from server_runner import presets_of, running_server

pytestmark = pytest.mark.process

STEADY = {"temperature": 0, "draft_tokens": 3}
QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]


def chunks_of(server, **fields):
    fields = {"messages": QUESTION, **STEADY, **fields}
    return server.stream("/v1/chat/completions", **fields)


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


PROMPT = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"


def complete(server, **fields):
    fields = {"prompt": PROMPT, **STEADY, "max_tokens": 20, **fields}
    response = server.ask("/v1/completions", **fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_raw_prompt_is_gone_on_with(server, engine):
    found = complete(server)
    plain = engine.generate_raw(PROMPT, **STEADY, max_tokens=20).reply()
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
    # Of a token that is a part of a character, the bytes.
    pieces = server.ask("/tokenize", content="a 🦊", with_pieces=True).json()["tokens"]
    parts = [each["piece"] for each in pieces]
    assert any(isinstance(part, list) for part in parts)
    spelled = [part.encode() if isinstance(part, str) else bytes(part) for part in parts]
    assert b"".join(spelled).decode() == "a 🦊"
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


def test_a_template_s_own_text_is_given_whatever_the_vocabulary(tmp_path):
    """SentencePiece puts a bos and a space before texts: the template has written neither."""
    bare = write_spm_model(tmp_path / "bare.gguf", control=("<|im_start|>", "<|im_end|>"))
    templates = {"plain": BUILT_IN["chatml"], "begun": "{{ bos_token }}" + BUILT_IN["chatml"]}
    files = {
        name: with_template(bare, tmp_path / f"{name}.gguf", template)
        for name, template in templates.items()
    }
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    asked = [*messages, {"role": "user", "content": "Why?"}]
    turn = "<|im_start|>{}\n{}<|im_end|>\n"
    texts = [turn.format(each["role"], each["content"]) for each in asked]
    presets = presets_of(tmp_path, **{name: (path, 512) for name, path in files.items()})
    with presets, running_server(presets=list(files)) as server:
        for name in files:

            def prompt_of(messages, name=name, **fields):
                fields = {"model": name, "messages": messages, **fields}
                response = server.ask("/apply-template", **fields)
                assert response.status_code == 200, response.text
                return response.json()["prompt"]

            prompt = prompt_of(asked)
            assert prompt == "".join(texts) + "<|im_start|>assistant\n"
            assert prompt_of(asked, add_generation_prompt=False) == "".join(texts)
            assert prompt_of(messages, add_generation_prompt=False) == "".join(texts[:2])
            assert prompt_of(messages) == "".join(texts[:2]).removesuffix("<|im_end|>\n")
            fields = {"model": name, "content": prompt, "add_special": True}
            tokens = server.ask("/tokenize", **fields).json()["tokens"]
            fields = {"model": name, "messages": asked}
            counted = server.ask("/v1/messages/count_tokens", **fields).json()
            assert counted == {"input_tokens": len(tokens)}
        response = server.ask("/apply-template", messages=asked, add_generation_prompt="no")
        assert response.status_code == 400


def test_an_ollama_tells_a_digest_that_changes_with_the_file():
    model = ServedModel(find_preset("demo"), None)
    models = ServedModels([model], takes_any_name=True)
    digests = {ollama.tags(models)["models"][0]["digest"] for _ in range(2)}
    model.created += 1
    digests.add(ollama.tags(models)["models"][0]["digest"])
    assert [len(each) for each in digests] == [64, 64]


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
    body = {"prompt": "Once, é", **STEADY, "max_tokens": 20, "logprobs": 0}
    chunks = server.stream("/v1/completions", **body)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    offsets = [at for part in parts if part for at in part["text_offset"]]
    assert offsets == found["choices"][0]["logprobs"]["text_offset"]


def test_a_message_begins_with_the_usage_that_it_ends_with(server):
    """Read, cached in part, and in several batches."""
    server.chat(max_tokens=1)  # while a model is loaded, the usage is not known yet
    for text in ("Tell me of a hen.", "Tell me of a hen.", "Tell me of a hill.", "fox " * 1200):
        asked = {"messages": [{"role": "user", "content": text}], "max_tokens": 20}
        events = server.events("/v1/messages", **asked)
        first, last = events[0]["message"]["usage"], events[-2]["usage"]
        for name in ("input_tokens", "cache_read_input_tokens"):
            assert first[name] == last[name]
    assert first["input_tokens"] > 1000


CALLED = {"id": "1", "name": "look", "input": {}}


def text_block(text):
    return {"type": "text", "text": text}


def called_and_answered(content, said=(), asked=(), **result):
    """Messages in which a tool was called behind `said`; `asked` stands behind its result."""
    result = {"type": "tool_result", "tool_use_id": "1", "content": content, **result}
    return [
        *QUESTION,
        {"role": "assistant", "content": [*said, {"type": "tool_use", **CALLED}]},
        {"role": "user", "content": [result, *asked]},
    ]


def counted(server, messages, **fields):
    """The tokens of the prompt."""
    response = server.ask("/v1/messages/count_tokens", messages=messages, **fields)
    assert response.status_code == 200, response.text
    return response.json()["input_tokens"]


def test_blocks(server):
    """Of all kinds that clients send back, and a system text of several."""
    said = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        text_block("I look."),
    ]
    asked = [{**text_block("Go on."), "cache_control": {"type": "ephemeral"}}]
    messages = called_and_answered([text_block("red")], said, asked)
    fields = {
        "system": [text_block("One."), text_block("Two.")],
        "tools": [{"name": "look", "description": "", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
    }
    body = {"messages": messages, **fields, **STEADY, "max_tokens": 1}
    usage = server.ask("/v1/messages", **body).json()["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted(server, messages, **fields) == read
    messages[1]["content"].insert(0, text_block(""))
    assert counted(server, messages, **fields) == read
    assert counted(server, messages, **{**fields, "system": "One."}) < read


def test_blocks_of_anthropics_own_servers(server):
    """In a history that another server began: what they called is left out, texts are read."""
    text, title = text_block("It is red."), text_block("Foxes")
    found = {"type": "search_result", "source": "x", "title": "Foxes", "content": [text]}

    def read(said, asked, result):
        return counted(server, called_and_answered(result, said, asked))

    theirs = [
        {"type": "server_tool_use", **CALLED},
        {"type": "web_search_tool_result", "tool_use_id": "2", "content": [{"url": "x"}]},
        {"type": "mcp_tool_use", "server_name": "x", **CALLED},
        {"type": "mcp_tool_result", "tool_use_id": "2", "content": [text]},
        {"type": "refusal", "refusal": "No."},
    ]
    no, plain = text_block("No."), [title, text]
    reference = {"type": "tool_reference", "tool_name": "look"}
    whole = read(theirs, [found], [found, reference])
    assert whole == read([no], plain, [*plain, text_block("look")])
    assert whole > read([no], plain, plain)
    written = {"type": "text", "media_type": "text/plain", "data": text["text"]}
    for source in (written, {"type": "content", "content": [text]}):
        document = {"type": "document", "title": "Foxes", "source": source}
        assert read([], [document], [document]) == read([], plain, plain)


def test_a_model_hears_that_a_tool_failed(server):
    def read(content, **more):
        return counted(server, called_and_answered(content, **more))

    text = [text_block("It rains.")]
    for content in ("It rains.", text, None):
        assert read(content, is_error=True) > read(content, is_error=False)
        assert read(content, is_error=False) == read(content)
    assert read("It rains.", is_error=True) == read(text, is_error=True)


def test_an_empty_input_loads_the_model(server):
    for given in ("", []):
        found = server.ask("/v1/responses", input=given, max_output_tokens=1).json()
        assert (found["output"], found["status"]) == ([], "completed")
    kinds = [event["type"] for event in server.events("/v1/responses", input="")]
    assert kinds == [f"response.{kind}" for kind in ("created", "in_progress", "completed")]
    assert server.models.all[0].engine is not None
