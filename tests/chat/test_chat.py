"""Conversations: what reaches the model, what is kept, what is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

import inside
import localspec
from gguf_maker import write_random_model
from localspec.errors import ContextError, EngineError, OptionError, TemplateError
from localspec.streaming.answer_options import AnswerOptions

GREEDY = localspec.SamplingParams(temperature=0)


def test_every_turn_has_its_own_random_numbers(engine):
    """The same prompt with the same seed is answered again; a whole conversation repeats."""
    conversations = []
    for _ in range(2):
        chat = engine.chat()
        texts = []
        for _ in range(3):
            texts.append(chat.send("Tell me a story.", seed=5, max_tokens=40).reply().text)
            chat.clear()
        conversations.append(texts)
    assert conversations[0] == conversations[1]
    assert len(set(conversations[0])) == 3


def test_a_stream_that_never_began_or_failed_leaves_the_conversation_as_it_was(demo_target):
    """Neither are turns forgotten for it, nor does it use up a turn's random numbers."""
    with localspec.load(target=demo_target, context_length=256) as engine:
        chats = [engine.chat(), engine.chat()]
        for chat in chats:
            for _ in range(4):
                chat.send("Tell me something.", seed=1, max_tokens=24).reply()
        chat, other = chats
        before = chat.messages
        chat.send("word " * 100).close()
        with pytest.raises(ContextError):
            chat.send("word " * 300).reply()
        assert (chat.messages, chat.num_forgotten) == (before, 0)
        assert chat.send("And?", seed=2).reply().text == other.send("And?", seed=2).reply().text


def test_a_stream_that_was_asked_for_amid_another_answer_takes_no_turn_away(engine):
    """It knows nothing of what came before it, and would stand in its place."""
    chat = engine.chat()
    first = chat.send("Tell me a story.", sampling=GREEDY, max_tokens=20)
    said = next(first).text
    late = chat.send("And now?", sampling=GREEDY, max_tokens=5)
    first.close()
    before = chat.transcript
    assert before[-1]["content"].startswith(said)
    with pytest.raises(EngineError, match="has changed"):
        next(late)
    assert chat.transcript == before
    assert chat.can_continue
    chat.send("And now?", sampling=GREEDY, max_tokens=5).reply()
    assert chat.transcript[: len(before)] == before


def test_a_model_without_a_template_needs_one_named(tmp_path, demo_target):
    bare = write_random_model(
        tmp_path / "bare.gguf", demo_target, drop=("tokenizer.chat_template",)
    )
    with localspec.load(target=bare) as engine:
        with pytest.raises(TemplateError, match="no chat template") as caught:
            engine.chat()
        assert "template=chatml" in caught.value.hint
        assert engine.chat(template="chatml").send("Hi", max_tokens=3).reply().token_ids


def test_undo_takes_the_last_turn_back(engine):
    chat = engine.chat(system="S")
    chat.send("One", max_tokens=3).reply()
    before = chat.messages
    chat.send("Two", max_tokens=3).reply()
    assert chat.undo() == "Two"
    assert chat.messages == before
    assert chat.undo() == "One"
    with pytest.raises(OptionError, match="no turn"):
        chat.undo()


def test_retry_answers_the_last_question_anew(engine):
    """The same seed gives another text, because it is a turn of its own; the rest stays."""
    chat = engine.chat()
    chat.send("Hello", seed=1, max_tokens=5).reply()
    first = chat.send("Tell me a story.", seed=1, max_tokens=40).reply()
    before = chat.messages
    retried = "".join(piece.text for piece in chat.retry(seed=1, max_tokens=40))
    assert retried != first.text
    assert chat.messages == (*before[:-1], {"role": "assistant", "content": retried})
    assert chat.num_asked == 3


def test_another_question_takes_the_place_of_the_last_one(engine):
    """As soon as its answer says anything."""
    chat = engine.chat()
    with pytest.raises(OptionError, match="no question"):
        _ = chat.last_question
    chat.send("Hello", max_tokens=5).reply()
    chat.send("Tell me a story.", max_tokens=9).reply()
    before, options = chat.messages, AnswerOptions(max_tokens=9)
    assert chat.last_question == "Tell me a story."
    chat.edit("Tell me a riddle.", options).close()
    assert chat.messages == before
    said = "".join(piece.text for piece in chat.edit("Tell me a riddle.", options))
    assert chat.messages[:-2] == before[:-2]
    assert [message["content"] for message in chat.messages[-2:]] == ["Tell me a riddle.", said]


def test_a_retry_that_says_nothing_keeps_the_old_answer(engine, monkeypatch):
    """Whether it never began or was stopped before its first word."""
    chat = engine.chat()
    with pytest.raises(OptionError, match="no question"):
        chat.retry()
    chat.send("Tell me a story.", max_tokens=9).reply()
    before = chat.messages
    chat.retry().close()
    assert chat.messages == before
    decode = inside.target(engine).decode

    def stopped_decode(tokens, num_logits):
        engine.cancel()
        return decode(tokens, num_logits)

    monkeypatch.setattr(
        type(inside.target(engine)), "decode", lambda _self, *a: stopped_decode(*a)
    )
    assert list(chat.retry()) == []
    assert chat.messages == before


def test_what_changes_while_an_answer_comes_stays_changed(engine):
    chat = engine.chat(system="S")
    stream = chat.send("Tell me a story.")
    next(stream)
    chat.clear()
    stream.close()
    assert chat.messages == ({"role": "system", "content": "S"},)


def test_the_system_message_can_change(engine):
    chat = engine.chat(system="One")
    late = chat.send("Hi")
    chat.system = "Two"
    with pytest.raises(EngineError, match="has changed"):
        next(late)
    assert chat.messages == ({"role": "system", "content": "Two"},)
    chat.system = None
    assert (chat.system, chat.messages) == (None, ())


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x"}],
        [{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": 1}],
        [{}, {}],
    ],
)
def test_messages_that_are_no_whole_turns_are_refused(engine, messages):
    chat = engine.chat(system="S")
    with pytest.raises(OptionError):
        chat.replace(messages)
    assert chat.system == "S"


def test_a_template_that_knows_thinking_can_be_asked_to_leave_it_out(engine):
    source = (Path(__file__).parents[1] / "templates" / "Qwen-Qwen3-0.6B.jinja").read_text()
    vocabulary = engine.vocabulary
    said = [
        b"".join(
            map(vocabulary.piece, engine.chat(template=source, think=think).prompt_tokens("x"))
        )
        for think in (True, False)
    ]
    assert [text.count(b"</think>") for text in said] == [0, 1]
    with pytest.raises(TemplateError, match="no switch for thinking"):
        engine.chat(template="chatml", think=False)


def test_a_copy_goes_on_by_itself(engine):
    options = {"temperature": 0, "max_tokens": 8}
    chat = engine.chat(system="You are terse.")
    assert repr(chat) == "<Chat of 0 turns>"
    chat.send("Hello!", **options).reply()
    with chat.send("Tell me a story.", **options) as running:
        next(running)
        branch = chat.copy()
        assert len(branch.messages) == 3
    assert repr(branch) == "<Chat of 1 turn>"
    before = chat.messages
    one = branch.send("What is 7 times 8?", **options).reply()
    branch.system = None
    assert chat.messages == before
    assert [message["content"] for message in branch.messages] == [
        "Hello!", before[2]["content"], "What is 7 times 8?", one.text,
    ]  # fmt: skip
    cut = branch.send("Tell me a story.", **options).reply()
    assert cut.finish_reason == "length"
    other = branch.copy()
    rest = [each.continue_answer(**options).reply().text for each in (branch, other)]
    assert rest[0] == rest[1] != ""
    assert branch.messages == other.messages
