"""What the forms of protocols write, event by event, without a server."""

from __future__ import annotations

import json
from types import SimpleNamespace

import httpx
import pytest

from localspec.errors import OptionError
from localspec.server.answering import NewPiece, ReadingPrompt, Waiting
from localspec.server.chat_completions import ChatCompletion
from localspec.server.encoding import compact_json, sse_event
from localspec.server.fields import Fields
from localspec.server.messages import MessageForm
from localspec.server.responses import ResponseForm
from localspec.speculative.metrics import Provenance
from localspec.streaming.reply import Piece
from localspec.tools.calls import CallPiece

QUESTION = {"messages": [{"role": "user", "content": "Hello!"}], "stream": True}


def data_of(text):
    """The objects in a stream's events."""
    lines = text.split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if "data: " in line]


def piece(text="", *, arguments=None, is_thought=False):
    call = None
    if arguments is not None:
        call = CallPiece(0, "call_1", "look", arguments, is_last=arguments.endswith("}"))
    made = Piece(text, (1,), Provenance.PLAIN, is_thought=is_thought, call=call)
    return NewPiece(0, made, 5)


@pytest.mark.parametrize("waiting", [Waiting(0), ReadingPrompt(5, 10)])
@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([piece(arguments='{"at":'), piece(arguments=' "fox"}')], "input_json_delta"),
        ([piece("Hm, ", is_thought=True), piece("well.", is_thought=True)], "thinking_delta"),
        ([piece("Hm, "), piece("well.")], "text_delta"),
    ],
)
def test_who_waits_in_the_midst_of_a_block_gets_nothing_more_of_that_block(
    pieces, kind, waiting
):
    form = MessageForm(Fields(QUESTION))
    form.begin(SimpleNamespace(name="demo"))
    first, second = pieces
    text = form.text_for(first) + form.text_for(waiting) + form.text_for(second)
    start, block, *deltas = data_of(text)
    assert (start["type"], block["type"]) == ("message_start", "content_block_start")
    assert [each["type"] for each in deltas] == ["content_block_delta"] * 3
    assert {each["index"] for each in deltas} == {0}
    assert {each["delta"]["type"] for each in deltas} == {kind}
    (_, said), (_, nothing), (_, more) = [each["delta"].items() for each in deltas]
    assert nothing[1] == ""
    assert said[1] + more[1] in ('{"at": "fox"}', "Hm, well.")


def test_json_stays_one_line_to_who_reads_lines():
    """As httpx and with it Ollama's library for Python do."""
    value = {
        "a\u2028": "one\u2028two\u2029three\x85four\r\n\x0b\x0c\x1c\x1d\x1e",
        "b": ["\u00fc"],
    }
    assert json.loads(compact_json(value)) == value
    assert "\u00fc" in compact_json(value)
    (line, _) = httpx.Response(200, text=sse_event(value)).iter_lines()
    assert json.loads(line.removeprefix("data: ")) == value


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(None, None), (-1, None), (7, 7), (-7, 2**63 - 7), (2**64 - 7, 2**63 - 7)],
)
def test_every_whole_number_is_a_seed(seed, expected):
    asked = ChatCompletion(Fields({**QUESTION, "seed": seed}))
    assert asked.question.seed_of(0) == expected


FUNCTION = {"type": "function", "name": "f", "parameters": {}}
CUSTOM = {"type": "custom", "name": "p"}
NESTED = {"type": "custom", "custom": {"name": "p"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
ANTHROPIC = {"name": "f", "input_schema": {}}


@pytest.mark.parametrize(
    ("kind", "tools", "choice", "must"),
    [
        (ResponseForm, [CUSTOM], CUSTOM, False),
        (ResponseForm, [CUSTOM, FUNCTION], CUSTOM, False),
        (ResponseForm, [{"type": "web_search"}], {"type": "web_search"}, False),
        (ResponseForm, [CUSTOM], "required", False),
        (ResponseForm, [CUSTOM, FUNCTION], "required", True),
        (ResponseForm, [CUSTOM, FUNCTION], {"type": "function", "name": "f"}, True),
        (ChatCompletion, [NESTED], NESTED, False),
        (MessageForm, [SEARCH], {"type": "tool", "name": "web_search"}, False),
        (MessageForm, [SEARCH], {"type": "any"}, False),
        (MessageForm, [SEARCH, ANTHROPIC], {"type": "any"}, True),
    ],
)
def test_the_choice_of_a_tool_that_is_ignored_is_ignored(kind, tools, choice, must):
    asked = kind(Fields({**QUESTION, "input": "Hi", "tools": tools, "tool_choice": choice}))
    assert asked.question.use.must is must


def test_the_choice_of_a_tool_that_is_not_there_is_refused():
    for tools in ([], [CUSTOM]):
        fields = {"input": "Hi", "tools": tools, "tool_choice": {**FUNCTION, "name": "g"}}
        with pytest.raises(OptionError, match="the tools are none"):
            ResponseForm(Fields(fields))
