"""Models of several families think, speak, and are asked again: what comes out and goes in.

Each model says the same tokens after the same, which libllama decodes; the templates render
turns as the families' own do.
"""

from __future__ import annotations

import json

import pytest

import localspec
from command_line import run
from thinking_models import MODELS, write_models

GREEDY = localspec.SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("families"))


def spelled(engine, tokens) -> str:
    spellings = engine.vocabulary.spellings()
    return b"".join(spellings[token] for token in tokens).decode()


def check_turn(chat) -> None:
    with chat.send("hi", sampling=GREEDY, max_tokens=50) as stream:
        pieces = list(stream)
    thoughts = "".join(piece.text for piece in pieces if piece.is_thought)
    said = "".join(piece.text for piece in pieces if not piece.is_thought)
    assert (thoughts, said) == ("Hm.", "Hello.")
    assert (stream.reply().thoughts, stream.reply().text) == ("Hm.", "Hello.")
    assert stream.reply().finish_reason == "stop"
    tokens = tuple(token for piece in pieces for token in piece.token_ids)
    assert tokens == stream.reply().token_ids
    answer = {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."}
    assert chat.messages[-1] == answer


@pytest.mark.parametrize("name", MODELS)
def test_thoughts_are_told_from_the_answer_and_left_out_of_the_next_prompt(files, name):
    with localspec.load(target=files[name]) as engine:
        chat = engine.chat(template=MODELS[name].template)
        check_turn(chat)
        prompt = spelled(engine, chat.prompt_tokens("and"))
        assert prompt == "<s>" + MODELS[name].rendered


def test_the_vocabulary_tells_where_a_template_names_no_marks(files):
    plain = "{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}"
    with localspec.load(target=files["Mistral"]) as engine:
        check_turn(engine.chat(template=plain))


def test_a_stop_string_is_not_found_in_a_mark_or_across(files):
    """And what it held back belongs to what stood before the mark."""
    with localspec.load(target=files["Mistral"]) as engine:
        chat = engine.chat(template=MODELS["Mistral"].template)
        reply = chat.send(
            "hi", sampling=GREEDY, max_tokens=50, stop=["[", ".Hello", ".["]
        ).reply()
        assert (reply.thoughts, reply.text) == ("Hm.", "Hello.")
        reply = chat.send("hi", sampling=GREEDY, max_tokens=50, stop="llo").reply()
        assert (reply.thoughts, reply.text, reply.finish_reason) == ("Hm.", "He", "stop")


def test_an_answer_of_thoughts_alone_does_not_trap_the_chat(files):
    """The template refuses a turn in which nothing was said."""
    with localspec.load(target=files["Mistral"]) as engine:
        chat = engine.chat(template=MODELS["Mistral"].template)
        reply = chat.send("hi", sampling=GREEDY, max_tokens=2).reply()
        assert (reply.thoughts, reply.text, reply.finish_reason) == ("Hm.", "", "length")
        assert chat.messages[0]["content"] == "hi"
        assert chat.send("and", sampling=GREEDY, max_tokens=50).reply().text == "Hello."


def test_the_command_writes_thoughts_elsewhere(files, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(MODELS["Mistral"].template)
    command = [
        "generate", "hi", "--target", str(files["Mistral"]), "--chat-template", str(file),
        "--temperature", "0", "--max-tokens", "50",
    ]  # fmt: skip
    done = run(*command)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "Hello.\n", "Hm.\n")
    done = run(*command, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["thoughts"]) == ("Hello.", "Hm.")
