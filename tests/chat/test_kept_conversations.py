"""A conversation that an application keeps, and goes on with later: `chat(messages=…)`."""

from __future__ import annotations

import json
import pickle

import pytest

import localspec
from engines import PLACES
from localspec.errors import OptionError

OPTIONS = {"temperature": 0.8, "seed": 5, "max_tokens": 30}
QUESTIONS = ("Tell me a story about a fox.", "Another one!", "What is 7 times 8?")
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "now", "arguments": {"zone": "UTC"}},
}
USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello!"}
TOOL = {"role": "tool", "content": "noon", "tool_call_id": "c1", "name": "now"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}


def kept(chat: localspec.Chat) -> list[dict[str, object]]:
    """The transcript, as JSON gives it back."""
    return json.loads(json.dumps(chat.transcript))


@pytest.mark.parametrize("place", PLACES)
def test_it_goes_on_as_if_it_had_not_ended_and_finds_its_caches(place):
    """The same answer with the same random numbers; all that was read before is cached."""
    with place(num_threads=1) as engine:
        chat = engine.chat(system="You are terse.")
        for question in QUESTIONS[:2]:
            chat.send(question, **OPTIONS).reply()
        other = engine.chat(messages=kept(chat))
        assert (other.messages, other.num_asked) == (chat.messages, 2)
        expected = chat.send(QUESTIONS[2], **OPTIONS).reply()
        engine.chat(system="Another text takes the place.").send("Hi", **OPTIONS).reply()
        reply = other.send(QUESTIONS[2], **OPTIONS).reply()
        assert reply.text == expected.text
        assert other.transcript == chat.transcript
        # All but the last token of the prompt, whose logits are needed.
        assert reply.stats.cached_prompt_tokens == reply.stats.prompt_tokens - 1


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("own_folders")
def test_its_caches_are_found_after_a_restart(place):
    """Where they are kept on disk; without that, all of it is read again."""
    options = {"num_threads": 1, "cache_disk": 1_000_000_000}
    with place(**options) as engine:
        chat = engine.chat(system="You are terse. " * 40)  # short texts are not kept on disk
        chat.send(QUESTIONS[0], **OPTIONS).reply()
        last = chat.send(QUESTIONS[1], **OPTIONS).reply()
        transcript = kept(chat)
    for more in ({}, {"cache_disk": 0}):
        with place(**{**options, **more}) as engine:
            chat = engine.chat(messages=transcript)
            stats = chat.send(QUESTIONS[2], **OPTIONS).reply().stats
            if more:
                assert stats.cached_prompt_tokens == 0
            else:
                # The last token of an answer is decoded with the next prompt.
                num_read = last.stats.prompt_tokens + len(last.token_ids) - 1
                assert stats.cached_prompt_tokens >= num_read


def test_calls_and_their_results_go_back_in(engine):
    """Also calls that still wait for their results, and thoughts."""
    thoughtful = {**ASSISTANT, "reasoning_content": "A greeting."}
    whole = [USER, thoughtful, USER, CALLING, TOOL, ASSISTANT]
    assert list(engine.chat(messages=whole).transcript) == whole
    waiting = engine.chat(messages=json.loads(json.dumps(whole[:4])))
    assert waiting.transcript == tuple(whole[:4])
    with pytest.raises(OptionError, match="their results are missing"):
        waiting.send("And?")
    waiting.send_tool_results({"c1": "noon"})  # which the template has to know


def test_pictures_go_back_in_but_not_from_json(engine):
    shown = {"type": "image", "image": localspec.Picture(2, 1, b"\xff\0\0" * 2)}
    question = {"role": "user", "content": [shown, {"type": "text", "text": "What is it?"}]}
    chat = engine.chat(messages=[question, ASSISTANT])
    for messages in (chat.transcript, pickle.loads(pickle.dumps(chat.transcript))):
        assert engine.chat(messages=messages).messages == chat.messages
    with pytest.raises(TypeError, match="Picture is not JSON serializable"):
        json.dumps(chat.transcript)
    without = json.loads(json.dumps(chat.transcript, default=str))
    for use in (lambda: engine.chat(messages=without), lambda: engine.generate(without)):
        with pytest.raises(OptionError, match="message 0 has pictures in a form") as caught:
            use()
        assert "pickle" in caught.value.hint


def test_the_system_message_is_given_in_one_way(engine):
    system = {"role": "system", "content": "S"}
    for chat in (
        engine.chat(messages=[system, USER, ASSISTANT]),
        engine.chat(messages=[USER, ASSISTANT], system="S"),
        engine.chat(messages=[system]),
        engine.chat(messages=[], system="S"),
    ):
        assert chat.system == "S"
    with pytest.raises(OptionError, match="begin with a system message, too"):
        engine.chat(messages=[system, USER, ASSISTANT], system="T")


@pytest.mark.parametrize(
    ("messages", "what", "hint"),
    [
        ("Hi", "the messages are 'Hi'", "Give a list such as"),
        ([USER], "the last message has the role 'user' and no answer", "chat.send"),
        (
            [USER, CALLING, TOOL],
            "the last message has the role 'tool'",
            "engine.generate(messages)",
        ),
        (
            [ASSISTANT, USER],
            "'Hello!' has the role 'assistant'; it has to be 'user'",
            "whole turns",
        ),
        (
            [USER, USER, ASSISTANT],
            "'Hi' has the role 'user'; it has to be 'assistant'",
            "whole turns",
        ),
        ([USER, ASSISTANT, ASSISTANT], "it has to be 'user'", "whole turns"),
        (
            [USER, ASSISTANT, {"role": "system", "content": "S"}],
            "has the role 'system'",
            "comes first",
        ),
    ],
)
def test_other_messages_are_refused_with_what_is_wrong(engine, messages, what, hint):
    with pytest.raises(OptionError) as caught:
        engine.chat(messages=messages)
    assert what in str(caught.value)
    assert hint in caught.value.hint
