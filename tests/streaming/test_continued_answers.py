"""An answer that was cut anywhere and is continued is the answer that comes in one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import localspec
from call_families import FAMILIES, TOOLS
from engines import PLACES
from examples import num_examples
from gguf_maker import with_template, write_scripted_model
from localspec.chat.call_forms import tools_of
from localspec.errors import OptionError
from localspec.streaming.answer_text import AnswerText, WholeMessage
from localspec.streaming.thinking import Thoughts
from localspec.streaming.thought_families import families_of
from localspec.tools.grammar import CallGrammar, Calls
from localspec.tools.tool import tool_use, whole_calls
from prompts import Spelled

ENDLESS = 1000
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}[ask]"
THOUGHTFUL = "{# <think> </think> #}"
THINKING = f"{THOUGHTFUL}{PLAIN}<think>{{{{ '\n' }}}}"


@dataclasses.dataclass(frozen=True)
class Case:
    """spelled: the tokens of an answer, each with one successor; a byte's token as <0xE6>."""

    spelled: str  # with | between two
    text: str
    thoughts: str = ""
    template: str = PLAIN
    stop: tuple[str, ...] = ()
    shows_all: bool = False  # and nothing else, wherever it is cut

    @property
    def said(self):
        return self.spelled.split("|")


CASES = {
    "characters": Case(
        "é|<0xE6>|<0x97>|<0xA5>|-|<0xF0>|<0x9F>|<0x99>|<0x82>|.", "é日-🙂.", shows_all=True
    ),
    "bytes that are no character": Case("A|<0xE6>|<0x97>|B|<0xF0>", "A\ufffdB\ufffd"),
    "marks of several tokens": Case(
        "<|th|ink|>|Hm|<0xE2>|<0x80>|<0xA6>|</|thi|nk>|\n\n|Hi|!",
        "Hi!",
        "Hm…",
        THOUGHTFUL + PLAIN,
    ),
    "thoughts that the prompt opens": Case("Hm|.</|thin|k>| |Hi|!", "Hi!", "Hm.", THINKING),
    "what is no mark": Case("<|thin|ly|>|Hi", "<thinly>Hi", "", THOUGHTFUL + PLAIN),
    "a stop string": Case("a S|TO|ne S|T|O|P b", "a STOne ", stop=("STOP", "xy")),
    "a stop string of characters": Case("S|<0xE6>|<0x97>|<0xA5>|T", "", stop=("S日",)),
    "a stop string in thoughts": Case(
        "Hm|.S|T|OP|</think>|Hi", "Hi", "Hm.STOP", THINKING, ("STOP",)
    ),
    "none across the marks": Case("Hm|.ST|</thi|nk>|OP", "OP", "Hm.ST", THINKING, ("STOP",)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model for each case, which says it in answer to anything."""
    folder = tmp_path_factory.mktemp("cases")
    return {
        name: write_scripted_model(
            folder / f"{number}.gguf",
            {
                # Behind the template's last token.
                ("<0x0A>" if case.template == THINKING else "[ask]"): case.said[0],
                **dict(itertools.pairwise(case.said)),
            },
            user_defined=("[ask]",),
        )
        for number, (name, case) in enumerate(CASES.items())
    }


class Closed(int):
    """The size of a part that is closed behind so many tokens by its reader."""


class Cancelled(int):
    """The size of a part that is cancelled behind so many tokens, and read to its end."""


def parts_of(chat, cuts, **options):
    """The streams of an answer in parts, read: sizes of the parts but the last are in `cuts`.

    A plain number is its max_tokens.
    """
    streams, ask = [], functools.partial(chat.send, "x")
    for size in [*cuts, ENDLESS]:
        is_ended_here = isinstance(size, Closed | Cancelled)
        with ask(max_tokens=ENDLESS if is_ended_here else size, **options) as stream:
            pieces = list(tokens_of(stream, size) if is_ended_here else stream)
            if isinstance(size, Cancelled):
                stream.cancel()
                pieces += stream
        reply = stream.reply()
        said, thought = (
            "".join(piece.text for piece in pieces if piece.is_thought is is_thought)
            for is_thought in (False, True)
        )
        if isinstance(size, Closed):  # nothing is shown behind that
            assert reply.text.startswith(said)
        else:
            assert (reply.text, reply.thoughts) == (said, thought)
        streams.append((pieces, reply))
        if reply.finish_reason in ("stop", "tool_calls"):
            assert not chat.can_continue
            with pytest.raises(OptionError, match="the last answer is complete"):
                chat.continue_answer()
            return streams
        assert reply.finish_reason == ("cancelled" if is_ended_here else "length")
        if not chat.messages:  # nothing was said when it was ended
            return None
        assert chat.can_continue
        ask = chat.continue_answer
    raise AssertionError("it never ends")


def tokens_of(stream, count):
    """The stream's pieces up to one with that token."""
    num_tokens = 0
    for piece in stream:
        yield piece
        num_tokens += len(piece.token_ids)
        if num_tokens == count:
            return


def all_cuts(num_tokens):
    """In two wherever that can be, also by ending it there; token by token; and anyhow."""
    chance = random.Random(num_tokens)
    sizes = 1, 2, 3, Closed(1), Closed(2), Cancelled(1), Cancelled(2)
    for size in range(1, num_tokens + 1):
        yield [size]
        yield [Closed(size)]
        yield [Cancelled(size)]
    yield [1] * num_tokens
    yield [Cancelled(1)] * num_tokens
    for _ in range(8):
        yield chance.choices(sizes, k=num_tokens)


def check_parts(chat, whole, cuts, **options):
    """Compare an answer in parts with the whole one, and with what its streams showed."""
    streams = parts_of(chat, cuts, **options)
    if streams is None:
        assert isinstance(cuts[0], Closed | Cancelled)
        return None
    assert chat.messages[-1]["content"] == whole.text
    assert streams[-1][1].finish_reason == whole.finish_reason
    assert [t for _, reply in streams for t in reply.token_ids] == list(whole.token_ids)
    shown = [reply.text for _, reply in streams]
    return streams, "".join(shown), "".join(reply.thoughts for _, reply in streams)


@pytest.mark.parametrize("load", PLACES)
@pytest.mark.parametrize("name", CASES)
def test_wherever_it_is_cut(name, load, files):
    """Text, thoughts, tokens and the reason of its end; of what was shown too early no more."""
    case = CASES[name]
    options = {"temperature": 0.0, "stop": case.stop}
    with load(target=files[name]) as engine:
        whole = engine.chat(template=case.template).send("x", **options).reply()
        assert (whole.text, whole.thoughts) == (case.text, case.thoughts)
        for cuts in all_cuts(len(whole.token_ids)):
            chat = engine.chat(template=case.template)
            found = check_parts(chat, whole, cuts, **options)
            if found is None:
                continue
            _, said, thought = found
            assert is_within(case.text, said)
            assert is_within(case.thoughts, thought)
            assert said.count("\ufffd") == case.text.count("\ufffd")
            assert chat.num_asked == 1
            if case.shows_all:
                assert (said, thought) == (case.text, case.thoughts)


def is_within(text, longer):
    """Whether its characters are all there, in order."""
    rest = iter(longer)
    return all(each in rest for each in text)


@pytest.fixture(scope="module")
def pair(demo_target, demo_draft):
    with localspec.load(target=demo_target, draft=demo_draft) as engine:
        yield engine


@pytest.fixture
def _grammar():
    pytest.importorskip("llguidance", reason="llguidance is not installed")


@pytest.mark.usefixtures("_grammar")
@pytest.mark.parametrize("options", [{}, {"seed": 4, "temperature": 1.5}])
def test_what_it_is_to_fit_it_fits_in_parts(pair, options):
    """Cut within a character, where the constraint is, too."""
    options = {"temperature": 0.0, "draft_tokens": 3, **options}
    for asked in ({"choices": ["日本語", "日本人🙂"]}, {"regex": "[あ-ん]{2}🙂é{1,3}x?"}):
        whole = pair.chat().send("x", **asked, **options).reply()
        for cuts in all_cuts(len(whole.token_ids)):
            found = check_parts(pair.chat(), whole, cuts, **asked, **options)
            assert found is None or found[1] == whole.text


@pytest.mark.parametrize("rule", [None, "coupled", "token", "block"])
def test_with_a_seed_it_says_what_it_would_have_said(pair, rule):
    """Step by step, so with every rule; and so does the next answer."""
    options = {"seed": 11, "temperature": 1.0, "rule": rule, "draft_tokens": 0}
    question = "Tell me a story about a fox."
    chat = pair.chat()
    whole = chat.send(question, max_tokens=25, **options).reply()
    chat.send("And?", max_tokens=9, **options).reply()
    parts = pair.chat()
    said = parts.send(question, max_tokens=9, **options).reply().text
    with parts.continue_answer(max_tokens=16, **options) as stream:
        said += "".join(piece.text for piece in stream)
    assert said == whole.text
    parts.send("And?", max_tokens=9, **options).reply()
    assert parts.messages == chat.messages


@pytest.mark.usefixtures("_grammar")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_a_grammar_keeps_to_its_form_goes_on(tmp_path, demo_target, name):
    """Its pieces come once, with one id: token by token, and where any token ends a part."""
    path = with_template(demo_target, tmp_path / "model.gguf", FAMILIES[name].template)
    properties = {"city": {"enum": ["Rome", "日"]}}
    schema = {"type": "object", "properties": properties, "required": ["city"]}
    tools = [{"name": "get_weather", "parameters": schema}]
    options = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    options |= {"temperature": 1.0, "seed": 3}
    with localspec.load(target=path) as engine:
        whole = engine.chat().send("x", **options).reply()
        assert [call.name for call in whole.tool_calls] == ["get_weather"]
        num_tokens = len(whole.token_ids)
        for cuts in ([1] * num_tokens, *([first, *[3] * num_tokens] for first in (1, 2, 3))):
            chat = engine.chat()
            streams, *_ = check_parts(chat, whole, cuts, **options)
            (call,) = streams[-1][1].tool_calls
            assert call.json == whole.tool_calls[0].json
            pieces = [each.call for pieces, _ in streams for each in pieces if each.call]
            assert whole_calls(pieces) == (call,)
            assert chat.messages[-1]["tool_calls"][0]["id"] == call.id


FRAGMENTS = (
    *("<", "<think>", "</think>", "</", "think>", "Hm", " ", "\n\n", "日本", "🙂", "STO", "P"),
    *("S", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "get_weather", "{}", '"'),
    *('{"name": "now", "arguments": {}}', '{"name": "now", "parameters": {}}', "<|start|>"),
    *("<|channel|>", "<|message|>", "<|end|>", "analysis", "final", " to=functions.now"),
)


@settings(max_examples=num_examples(400))
@given(
    st.one_of(
        st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
        st.sampled_from([family.two or family.call for family in FAMILIES.values()]),
    ),
    st.sampled_from([None, *FAMILIES]),
    st.booleans(),
    st.data(),
)
def test_whatever_it_says_and_wherever_it_is_cut(answer, name, is_kept, data):
    """Read by itself, in tokens of any bytes: thoughts, calls, stop strings of any family."""
    raw = answer.encode() + data.draw(st.sampled_from([b"", b"\xe6\x97"]))
    places = st.lists(st.integers(0, len(raw)), max_size=30)
    ends = sorted({*data.draw(places), len(raw)} - {0})
    vocabulary = Spelled([raw[a:b] for a, b in itertools.pairwise([0, *ends])])
    calls, thoughts = None, Thoughts(families_of("</think>", ()))
    if name is not None:
        form = tools_of(FAMILIES[name].template).form
        use = tool_use(TOOLS, "auto", is_parallel=data.draw(st.booleans()))
        calls = Calls(form, use, grammar=CallGrammar("") if is_kept else None)
        thoughts = Thoughts(families_of(FAMILIES[name].template, ()))
    if data.draw(st.booleans()):
        thoughts = thoughts.after("<think><|start|>assistant")
    stop = data.draw(st.sampled_from([(), ("STOP", "Hm <")]))
    arguments = (vocabulary, thoughts, stop, calls)
    cuts = data.draw(st.sets(st.integers(1, max(len(ends), 1))))
    said, has_stopped, shown = read(arguments, len(ends), cuts)
    whole = read(arguments, len(ends), set())
    assert (said, has_stopped) == whole[:2]
    assert whole[0] == WholeMessage.of(whole[2])
    assert is_within(said.text, "".join(part.text for part in shown if not part.is_thought))
    assert is_within(said.thoughts, "".join(part.text for part in shown if part.is_thought))
    assert [part.call for part in shown if part.call] == [
        part.call for part in whole[2] if part.call
    ]


def test_a_call_of_no_tool_is_text_even_where_a_grammar_should_have_kept_it():
    form = tools_of(FAMILIES["Mistral Small"].template).form
    use = tool_use(TOOLS, "auto", is_parallel=False)
    calls = Calls(form, use, grammar=CallGrammar(""))
    thoughts = Thoughts(families_of(FAMILIES["Mistral Small"].template, ()))
    said, _, _ = read((Spelled([b"[TOOL_CALLS]</[ARGS]"]), thoughts, (), calls), 1, set())
    assert (said.text, said.tool_calls) == ("[TOOL_CALLS]</[ARGS]", ())


def read(arguments, num_tokens, cuts):
    """An answer that is cut behind such tokens; if it was stopped; what its streams showed."""
    text = AnswerText(*arguments)
    parts, shown = [], []
    for token in range(num_tokens):
        if token in cuts:
            shown += new(text.finish(is_cut=True))
            text = AnswerText(*arguments)
            parts = text.resume(range(token))
        found = text.push(token)
        parts += found
        shown += new(found)
        if text.has_stopped:
            break
    found = text.finish(is_cut=False)
    return WholeMessage.of(parts + found), text.has_stopped, shown + new(found)


def new(parts):
    return [part for part in parts if not part.is_again]
