"""What an answer and its reply say of themselves, here and in another process."""

from __future__ import annotations

import copy
import pickle

import pytest

import localspec
from localspec.chat.template import ChatTemplate
from localspec.errors import ContextError

GREEDY = localspec.SamplingParams(temperature=0)
STORY = "Tell me a story about a fox."


@pytest.fixture(
    scope="module",
    params=[
        localspec.load,
        pytest.param(localspec.IsolatedEngine, marks=pytest.mark.process),
    ],
    ids=["here", "isolated"],
)
def engine(request):
    with request.param() as opened:
        yield opened


def test_a_reply_says_which_stop_string_ended_it(engine):
    """The one that comes first in the text; none where nothing or something else did."""
    whole = engine.generate(STORY, sampling=GREEDY).reply()
    words = whole.text.split()
    stop = [words[9], words[4]]
    reply = engine.generate(STORY, sampling=GREEDY, stop=["nowhere to be found", *stop]).reply()
    first = min(stop, key=whole.text.index)
    assert (reply.finish_reason, reply.stopped_by) == ("stop", first)
    assert reply.text == whole.text[: whole.text.index(first)]
    assert (whole.finish_reason, whole.stopped_by) == ("stop", None)
    cut = engine.generate(STORY, sampling=GREEDY, stop=stop, max_tokens=1).reply()
    assert (cut.finish_reason, cut.stopped_by) == ("length", None)


def test_a_context_error_has_its_numbers(engine):
    """Also of a conversation, and out of another process."""
    length = engine.context_length
    with pytest.raises(ContextError) as caught:
        engine.generate_raw([5] * (length + 3)).reply()
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.num_tokens, error.context_length) == (length + 3, length)
    with pytest.raises(ContextError) as caught:
        engine.chat().send("fox " * length).reply()
    assert caught.value.num_tokens is None or caught.value.num_tokens > length
    assert copy.copy(caught.value).context_length == length


def test_the_template_says_whether_it_has_a_switch_for_thoughts(engine):
    """Not so one that names it in a comment, or in a text."""
    assert not engine.has_think_switch
    for source, has_switch in (
        ("{{ enable_thinking }}{{ messages }}", True),
        ("{% if enable_thinking is defined %}x{% endif %}", True),
        ("{# enable_thinking #}{{ messages }}", False),
        ("{{ 'enable_thinking' }}", False),
    ):
        template = ChatTemplate(source, bos="", eos="")
        assert template.has_think_switch is has_switch


def test_an_answer_and_its_reply_are_shown_as_their_text(engine):
    options = {"temperature": 0, "max_tokens": 12}
    expected = engine.generate("What is 7 times 8?", **options).reply()
    answer = engine.generate("What is 7 times 8?", **options)
    assert repr(answer) == "<Answer, not read to its end>"
    assert str(answer) == f"{answer}" == str(expected) == expected.text
    num_tokens = len(expected.token_ids)
    assert repr(expected) == f"<Reply {expected.text!r}, {num_tokens} tokens, stop>"
    assert repr(answer) == f"<Answer, {expected!r}>"
    half = engine.generate("What is 7 times 8?", **options)
    next(half)
    assert str(half) == expected.text
    cancelled = engine.generate("What is 7 times 8?", **options)
    cancelled.cancel()
    assert str(cancelled) == ""
    long = engine.generate("Tell me a story.", max_tokens=60).reply()
    assert len(repr(long)) < 80
    assert "\n" not in repr(long)
