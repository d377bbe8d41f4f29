"""A constraint begins behind the thoughts of a model: real files whose models think first."""

from __future__ import annotations

import pytest

import localspec
from gguf_maker import write_scripted_model
from localspec.errors import ConstraintError
from thinking_models import MODELS, template, write_models

pytest.importorskip("llguidance", reason="llguidance is not installed")

CHOICES = [["Hello.", "Bye."], ["Bye.", "Good night."]]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("thinkers"))


def ask(engine, model, draft_tokens, **options):
    chat = engine.chat(template=model.template)
    options = {"temperature": 0, "max_tokens": 60, "draft_tokens": draft_tokens, **options}
    return chat.send("hi", **options).reply()


@pytest.mark.parametrize("name", MODELS)
def test_thoughts_are_free_and_what_follows_them_fits(files, name):
    """What the model would say, if it fits; else something that does."""
    with localspec.load(target=files[name]) as engine:
        for draft_tokens in (0, 3):
            reply = ask(engine, MODELS[name], draft_tokens, choices=CHOICES[0])
            assert (reply.thoughts, reply.text) == ("Hm.", "Hello.")
            reply = ask(engine, MODELS[name], draft_tokens, choices=CHOICES[1])
            assert reply.thoughts == "Hm."
            assert reply.text in CHOICES[1]
            assert reply.finish_reason == "stop"
        free = ask(engine, MODELS[name], 0, choices=CHOICES[1], trigger="never said")
        assert (free.thoughts, free.text) == ("Hm.", "Hello.")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """It thinks where it may, and leaves a blank line behind its thoughts."""
    script = {
        "t": "<think>", "<think>": "Hm.", "Hm.": "</think>", "</think>": "\n\n", "\n\n": "No.",
    }  # fmt: skip
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    write_scripted_model(path, script, user_defined=("<think>", "</think>"))
    with localspec.load(target=path) as engine:
        yield engine


@pytest.mark.parametrize(
    ("begin", "thoughts"),
    [
        ("assistant", "Hm."),
        ("assistant<think>", "Hm."),
        ("assistant<think>\n\n</think>\n\n", ""),
    ],
    ids=["it may think", "it thinks already", "it has been told not to"],
)
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_the_prompt_may_have_opened_or_closed_the_thoughts(
    thinker, begin, thoughts, draft_tokens
):
    source = template(
        "user: X t", "assistant</think>X t", begin + " t"[: 2 * (begin[-1] == "t")]
    )
    for options in ({"choices": ["No.", "Yes."]}, {"choices": ["Yes.", "Yes!"]}):
        chat = thinker.chat(template=source)
        reply = chat.send(
            "hi", temperature=0, max_tokens=60, draft_tokens=draft_tokens, **options
        ).reply()
        assert reply.thoughts == thoughts
        assert reply.text in options["choices"]
        assert reply.finish_reason == "stop"
    assert reply.text.startswith("Yes")


def test_a_thought_does_not_end_the_answer(tmp_path):
    """A model that would end in the middle of it goes on, up to its tokens."""
    path = write_scripted_model(
        tmp_path / "a.gguf",
        {"t": "<think>", "<think>": "Hm."},
        user_defined=("<think>", "</think>"),
    )
    with localspec.load(target=path) as engine:
        chat = engine.chat(template=template("user: X t", "X</think>", "assistant t"))
        assert chat.send("hi", temperature=0, max_tokens=9).reply().finish_reason == "stop"
        reply = chat.send("hi", temperature=0, max_tokens=9, choices=["Yes."]).reply()
        assert (reply.finish_reason, len(reply.token_ids)) == ("length", 9)


def test_an_answer_that_goes_on_keeps_to_what_it_was_asked_with(thinker):
    source = template("user: X t", "assistant</think>X t", "assistant t")
    chat = thinker.chat(template=source)
    asked = {"temperature": 0, "draft_tokens": 3, "choices": ["Yes, of course.", "Yes, today."]}
    cut = chat.send("hi", max_tokens=6, **asked).reply()
    assert cut.finish_reason == "length"
    with pytest.raises(ConstraintError, match="does not fit"):
        list(chat.continue_answer(choices=["Never."]))
    list(chat.continue_answer(**asked))
    assert chat.messages[-1]["content"] in asked["choices"]
