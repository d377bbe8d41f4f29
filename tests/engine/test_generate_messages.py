"""Answers to lists of messages as the field writes them, and what they say of themselves."""

from __future__ import annotations

import asyncio
import copy
import pickle
from pathlib import Path

import pytest

import inside
import localspec
from engines import PLACES
from localspec.chat.template import ChatTemplate
from localspec.errors import ContextError, OptionError, TemplateError

GREEDY = localspec.SamplingParams(temperature=0)
QUESTION = {"role": "user", "content": "Tell me a story about a fox."}
TEMPLATES = Path(__file__).parents[1] / "templates"


@pytest.fixture(scope="module", params=PLACES)
def any_engine(request):
    with request.param(draft_tokens=3) as opened:
        yield opened


def prompt_text(engine, messages, template=None):
    """What the model reads."""
    prompt = inside.prompt(engine, messages, template=template)
    return engine.detokenize(prompt.tokens, special=True)


def test_it_answers_what_a_chat_answers(any_engine):
    messages = [{"role": "system", "content": "You are terse."}, QUESTION]
    reply = any_engine.generate(messages, temperature=0).reply()
    chat = any_engine.chat(system="You are terse.")
    assert reply.text == chat.send(QUESTION["content"], sampling=GREEDY).reply().text
    with any_engine.generate(messages, temperature=0) as stream:
        assert "".join(piece.text for piece in stream) == reply.text

    async def ask():
        async with any_engine.generate(messages, temperature=0) as stream:
            said = [piece.text async for piece in stream]
        return "".join(said), (await any_engine.generate(messages, temperature=0)).text

    assert asyncio.run(ask()) == (reply.text, reply.text)


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        (5, "the messages are 5"),
        ([], "no messages"),
        ([{"content": "Hello"}], "the role of message 0 is None"),
        ([{"role": "user<|im_end|>", "content": "x"}], "the role of message 0"),
        ([{"role": "user", "content": 3}], "the content of message 0 is 3"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "message 0 has an image in it",
        ),
        (
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
            "message 0 has audio in it",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "a part that is not a text"),
    ],
)
def test_what_is_no_message_is_refused_by_its_number(engine, messages, what):
    with pytest.raises(OptionError, match=what) as caught:
        engine.generate(messages).reply()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("kind", "told"),
    [("input_audio", "Audio"), ("file", "A file"), ("document", "A document")],
)
def test_what_no_model_reads_is_a_note_in_an_earlier_message(engine, kind, told):
    """So that a conversation goes on behind the message that was refused."""
    note = f"[{told} was here, which this model cannot read.]"
    parts = [{"type": "text", "text": "Look:"}, {"type": kind, "source": {}}]
    found, plain = (
        engine.generate([{"role": "user", "content": content}, QUESTION], temperature=0)
        for content in (parts, f"Look:\n{note}")
    )
    assert found.reply().token_ids == plain.reply().token_ids


def test_messages_that_do_not_fit_are_refused_and_not_dropped(engine):
    with pytest.raises(ContextError, match="the context holds 2048"):
        engine.generate(
            [QUESTION, QUESTION, {"role": "user", "content": "fox " * 3000}]
        ).reply()


def test_any_roles_in_any_order_that_the_template_takes(engine, caplog):
    """A result without a call among them; the log says nothing of tools, as none are given."""
    messages = [
        {"role": "developer", "content": "You are terse."},
        {"role": "user", "content": "One."},
        {"role": "user", "content": "Two."},
        {"role": "tool", "content": "Three."},
    ]
    assert prompt_text(engine, messages) == (
        "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nOne.<|im_end|>\n"
        "<|im_start|>user\nTwo.<|im_end|>\n<|im_start|>tool\nThree.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert not caplog.messages


def test_a_role_that_the_template_passes_over_is_refused(engine):
    """Its text would be lost without a word."""
    template = (
        "{% for m in messages %}{% if m.role in ('user', 'tool') %}{{ m.content }}|"
        "{% endif %}{% endfor %}"
    )
    told = [{"role": "tool", "content": " 42 "}, QUESTION]
    assert "42" in prompt_text(engine, told, template)
    lost = [{"role": "critic", "content": "No."}, QUESTION]
    with pytest.raises(TemplateError, match="leaves out messages of the role 'critic'"):
        engine.generate(lost, template=template).reply()


def test_several_in_a_row_become_one_where_the_template_wants_turns(engine):
    template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}"
        "{% endfor %}[assistant]"
    )
    twice = [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    once = [{"role": "user", "content": "One.\n\nTwo."}]
    replies = [
        engine.generate(messages, template=template, temperature=0, max_tokens=8).reply()
        for messages in (twice, once)
    ]
    assert replies[0].token_ids == replies[1].token_ids
    mixed = [{"role": "critic", "content": "x"}, *once]
    with pytest.raises(TemplateError, match="roles must alternate"):
        engine.generate(mixed, template=template).reply()


def test_what_the_system_says_later_is_the_users_where_the_template_wants_it_first(engine):
    """As coding agents send it, of which some say so behind the first question."""
    template = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    said = [
        {"role": "developer", "content": "Be terse."},
        {"role": "system", "content": "Be kind."},
        QUESTION,
        {"role": "system", "content": "It is Monday."},
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "It is Tuesday."},
    ]
    assert prompt_text(engine, said, template) == (
        f"[system]Be terse.\n\nBe kind.[user]{QUESTION['content']}\n\nIt is Monday."
        "[assistant]Hello.[user]It is Tuesday."
    )


@pytest.mark.parametrize("name", sorted(path.name for path in TEMPLATES.glob("*.jinja")))
def test_an_answer_that_has_begun_is_gone_on_with(engine, name):
    """Whatever the template does to finished answers; its spaces stay."""
    template = (TEMPLATES / name).read_text("utf-8")
    begun = [QUESTION, {"role": "assistant", "content": "Once upon <|im_end|> a "}]
    assert prompt_text(engine, begun, template).endswith("Once upon <|im_end|> a ")


def test_tokens_to_text_and_back(any_engine):
    tokens = any_engine.tokenize("Héllo <|im_end|>")
    assert any_engine.detokenize(tokens) == "Héllo <|im_end|>"
    special = any_engine.tokenize("Hi<|im_end|>", special=True)
    assert any_engine.detokenize(special) == "Hi"
    assert any_engine.detokenize(special, special=True) == "Hi<|im_end|>"
    half = any_engine.tokenize("é")[:1]
    assert any_engine.detokenize(half) in ("�", "é")
    with pytest.raises(OptionError, match="token id 1000000"):
        any_engine.detokenize([10**6])
    with pytest.raises(OptionError, match="the text is 3"):
        any_engine.tokenize(3)


def test_a_long_prompt_tells_how_far_it_is(any_engine):
    tokens = any_engine.tokenize("A fox and a hen. " * 400)[:1100]
    seen = []
    reply = any_engine.generate_raw(
        tokens, max_tokens=2, on_prompt=lambda *reading: seen.append(reading)
    ).reply()
    assert reply.token_ids
    assert len(seen) >= 2
    assert seen == sorted(seen)
    assert all(0 < num_read < total == 1100 for num_read, total in seen)

    def stop(_num_read, _total):
        raise KeyError("enough")

    others = any_engine.tokenize("A hen and a fox. " * 400)[:1100]
    with pytest.raises(KeyError, match="enough"):
        any_engine.generate_raw(others, on_prompt=stop).reply()
    whole = any_engine.generate_raw(others, max_tokens=3, ignore_eos=True).reply()
    assert 0 < whole.stats.cached_prompt_tokens < 1099  # what was read of it before
    assert len(whole.token_ids) == 3
    with pytest.raises(OptionError, match="on_prompt is 3"):
        any_engine.generate_raw(others, on_prompt=3).reply()


def test_what_an_engine_takes_can_be_asked_and_freed(any_engine):
    one, other = any_engine.chat(), any_engine.chat()
    any_engine.free_kept()
    assert any_engine.memory().kept_bytes == 0
    one.send("Hello!", max_tokens=3).reply()
    other.send("Hello!", max_tokens=3).reply()
    memory = any_engine.memory()
    assert 0 < memory.kept_bytes <= memory.most_kept_bytes
    assert memory.models.needed_bytes > 10_000_000
    any_engine.free_kept()
    assert any_engine.memory().kept_bytes == 0
    assert one.send("And then?", max_tokens=3).reply().token_ids
    with one.send("Hello!") as stream:
        next(stream)
        with pytest.raises(localspec.BusyError):
            any_engine.free_kept()


def test_caches_are_kept_on_disk_wherever_the_engine_lives(any_engine, tmp_path, monkeypatch):
    chat = any_engine.chat()
    chat.send(QUESTION["content"], max_tokens=10).reply()
    monkeypatch.chdir(tmp_path)  # also where the models are in a process that began elsewhere
    assert any_engine.save_caches(chat, "chat.cache")
    assert (tmp_path / "chat.cache").exists()
    assert not any_engine.save_caches(any_engine.chat(), tmp_path / "none.cache")
    other = any_engine.chat()
    other.replace(chat.messages)
    any_engine.generate([{"role": "user", "content": "Something else."}], max_tokens=2).reply()
    assert any_engine.load_caches(other, "chat.cache")
    reply = other.send("And then?", max_tokens=2).reply()
    assert reply.stats.cached_prompt_tokens > 10
    with pytest.raises(OptionError, match="the chat is 3"):
        any_engine.save_caches(3, tmp_path / "x")


def test_an_isolated_engine_has_the_same_interface():
    """But for what checks and measurements need, where the models live, and the process."""
    ours, theirs = (
        {name for name in dir(kind) if not name.startswith("_")}
        for kind in (localspec.Engine, localspec.IsolatedEngine)
    )
    assert ours - theirs == {"exclusively", "num_decodes"}
    assert theirs - ours == {"process_id"}


def test_a_reply_says_which_stop_string_ended_it(any_engine):
    """The one that comes first in the text; none where nothing or something else did."""
    whole = any_engine.generate([QUESTION], sampling=GREEDY).reply()
    words = whole.text.split()
    stop = [words[9], words[4]]
    reply = any_engine.generate(
        [QUESTION], sampling=GREEDY, stop=["nowhere to be found", *stop]
    ).reply()
    first = min(stop, key=whole.text.index)
    assert (reply.finish_reason, reply.stopped_by) == ("stop", first)
    assert reply.text == whole.text[: whole.text.index(first)]
    assert (whole.finish_reason, whole.stopped_by) == ("stop", None)
    cut = any_engine.generate([QUESTION], sampling=GREEDY, stop=stop, max_tokens=1).reply()
    assert (cut.finish_reason, cut.stopped_by) == ("length", None)


def test_a_context_error_has_its_numbers(any_engine):
    """Also of a conversation, and out of another process."""
    length = any_engine.context_length
    with pytest.raises(ContextError) as caught:
        any_engine.generate_raw([5] * (length + 3)).reply()
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.num_tokens, error.context_length) == (length + 3, length)
    with pytest.raises(ContextError) as caught:
        any_engine.chat().send("fox " * length).reply()
    assert caught.value.num_tokens is None or caught.value.num_tokens > length
    assert copy.copy(caught.value).context_length == length


def test_the_template_says_whether_it_has_a_switch_for_thoughts(any_engine):
    """Not so one that names it in a comment, or in a text."""
    assert not any_engine.has_think_switch
    for source, has_switch in (
        ("{{ enable_thinking }}{{ messages }}", True),
        ("{% if enable_thinking is defined %}x{% endif %}", True),
        ("{# enable_thinking #}{{ messages }}", False),
        ("{{ 'enable_thinking' }}", False),
    ):
        template = ChatTemplate(source, bos="", eos="")
        assert template.has_think_switch is has_switch


def test_an_answer_and_its_reply_are_shown_as_their_text(any_engine):
    options = {"temperature": 0, "max_tokens": 12}
    expected = any_engine.generate("What is 7 times 8?", **options).reply()
    answer = any_engine.generate("What is 7 times 8?", **options)
    assert repr(answer) == "<Answer, not read to its end>"
    assert str(answer) == f"{answer}" == str(expected) == expected.text
    num_tokens = len(expected.token_ids)
    assert repr(expected) == f"<Reply {expected.text!r}, {num_tokens} tokens, stop>"
    assert repr(answer) == f"<Answer, {expected!r}>"
    one = any_engine.generate("What is 7 times 8?", temperature=0, max_tokens=1).reply()
    assert repr(one) == f"<Reply {one.text!r}, 1 token, length>"
    half = any_engine.generate("What is 7 times 8?", **options)
    next(half)
    assert str(half) == expected.text
    cancelled = any_engine.generate("What is 7 times 8?", **options)
    cancelled.cancel()
    assert str(cancelled) == ""
    long = any_engine.generate("Tell me a story.", max_tokens=60).reply()
    assert len(repr(long)) < 80
    assert "\n" not in repr(long)
