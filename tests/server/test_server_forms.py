"""What the forms of protocols write, event by event, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from localspec.chat.template import ChatTemplate
from localspec.errors import OptionError
from localspec.sampling.params import SamplingParams
from localspec.server.answering import NewPiece, ReadingPrompt, Waiting
from localspec.server.anthropic_messages import MessageForm
from localspec.server.completions import ChatCompletion
from localspec.server.encoding import compact_json, sse_event
from localspec.server.fields import Fields
from localspec.server.ollama import OllamaChat
from localspec.server.responses import ResponseForm
from localspec.speculative.metrics import Provenance
from localspec.streaming.reply import Piece
from localspec.tools.tool import CallPiece

DEMO = SimpleNamespace(name="demo", sampling=SamplingParams(), fingerprint="fp_1")
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
    return NewPiece(0, made, 5, 0)


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
    form.model = DEMO
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
    assert asked.question.options.seed == expected


FUNCTION = {"type": "function", "name": "f", "parameters": {}}
CUSTOM = {"type": "custom", "name": "p"}
NESTED = {"type": "custom", "custom": {"name": "p"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
ANTHROPIC = {"name": "f", "input_schema": {}}


@pytest.mark.parametrize(
    ("kind", "tools", "choice", "must"),
    [
        (ResponseForm, [CUSTOM, FUNCTION], CUSTOM, False),
        (ResponseForm, [{"type": "web_search"}], {"type": "web_search"}, False),
        (ResponseForm, [CUSTOM], "required", False),
        (ResponseForm, [CUSTOM, FUNCTION], "required", True),
        (ResponseForm, [CUSTOM, FUNCTION], {"type": "function", "name": "f"}, True),
        (ChatCompletion, [NESTED], NESTED, False),
        (MessageForm, [SEARCH], {"type": "tool", "name": "web_search"}, False),
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


def test_answers_in_a_row_after_a_thought_are_all_kept():
    answers = [{"role": "assistant", "content": text} for text in ("A", "B")]
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    user = {"role": "user", "content": "Hi"}
    (messages,) = ResponseForm(
        Fields({"input": [user, thought, *answers, user]})
    ).question.inputs
    assert [message["content"] for message in messages] == ["Hi", "A", "B", "Hi"]
    assert messages[1]["reasoning_content"] == "Hm."


NAMES = [each["name"] for each in (FUNCTION, {"name": "g"})]
TWO = [{**FUNCTION, "name": name} for name in NAMES]
CHAT_TWO = [{"type": "function", "function": {"name": name}} for name in NAMES]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_tools_that_are_allowed_may_be_called_and_all_stay_in_the_prompt(mode):
    """So that what stands behind the tools in the prompt stays cached."""
    few = {"mode": mode, "tools": [{"type": "mcp", "server_label": "x"}, TWO[1]]}
    responses = ResponseForm(
        Fields({"input": "x", "tools": TWO, "tool_choice": {"type": "allowed_tools", **few}})
    )
    nested = {"mode": mode, "tools": CHAT_TWO[1:]}
    choice = {"type": "allowed_tools", "allowed_tools": nested}
    chat = ChatCompletion(Fields({**QUESTION, "tools": CHAT_TWO, "tool_choice": choice}))
    for form in (responses, chat):
        use = form.question.use
        assert [tool.name for tool in use.tools] == NAMES
        assert [tool.name for tool in use.callable] == ["g"]
        assert use.must is (mode == "required")


SPACE = {"type": "namespace", "name": "mcp__x__", "description": "X.", "tools": [FUNCTION]}


def test_a_function_in_a_namespace_is_called_by_both_names():
    """As Codex has the functions of MCP servers."""
    other = {**SPACE, "name": "agents", "tools": [{**FUNCTION, "name": "_f"}, CUSTOM]}
    called = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    asked = {
        "input": [
            {"role": "user", "content": "x"},
            {**called, "namespace": "mcp__x__"},
            {"type": "function_call_output", "call_id": "1", "output": "y"},
        ],
        "tools": [SPACE, FUNCTION, other],
    }
    form = ResponseForm(Fields(asked))
    form.model = DEMO
    names = [tool.name for tool in form.question.use.tools]
    assert names == ["mcp__x__f", "f", "agents__f"]
    (messages,) = form.question.inputs
    assert messages[1]["tool_calls"][0]["function"]["name"] == "mcp__x__f"
    own = []
    for number, name in enumerate(names):
        call = CallPiece(number, f"call_{number}", name, "{}", is_last=True)
        made = Piece("", (1,), Provenance.PLAIN, call=call)
        events = data_of(form.text_for(NewPiece(0, made, 5, 0)))
        (item,) = [e["item"] for e in events if e["type"] == "response.output_item.added"]
        own.append((item["name"], item.get("namespace")))
    assert own == [("f", "mcp__x__"), ("f", None), ("_f", "agents")]
    chosen = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{**FUNCTION, "namespace": "agents"}],
    }
    use = ResponseForm(Fields({**asked, "tool_choice": chosen})).question.use
    assert [tool.name for tool in use.callable] == ["agents__f"]


ASKED = {"input": "Hi", **QUESTION}
GPT_OSS = Path(__file__).parents[1] / "templates" / "openai-gpt-oss-120b.jinja"


@pytest.mark.parametrize(
    ("kind", "fields", "effort"),
    [
        (ChatCompletion, {}, "medium"),
        (ChatCompletion, {"reasoning_effort": "minimal"}, "low"),
        (ChatCompletion, {"reasoning_effort": "xhigh"}, "high"),
        (ChatCompletion, {"reasoning_effort": "none"}, "medium"),
        (ChatCompletion, {"chat_template_kwargs": {"reasoning_effort": "high"}}, "high"),
        (ResponseForm, {"reasoning": {"effort": "high"}}, "high"),
        (MessageForm, {"output_config": {"effort": "max"}}, "high"),
        (OllamaChat, {"think": "low"}, "low"),
        (OllamaChat, {"think": True}, "medium"),
    ],
)
def test_how_much_to_think_reaches_the_template(kind, fields, effort):
    question = kind(Fields({**ASKED, **fields})).question
    template = ChatTemplate(GPT_OSS.read_text("utf-8"), bos="", eos="")
    prompt = template.render(question.inputs[0], variables=question.variables)
    assert f"Reasoning: {effort}\n" in prompt


@pytest.mark.parametrize(
    ("kind", "fields", "thinks"),
    [
        (ChatCompletion, {"reasoning_effort": "none"}, False),
        (ChatCompletion, {"chat_template_kwargs": {"thinking": True}}, True),
        (ResponseForm, {"reasoning": {"effort": "none"}}, False),
        (MessageForm, {"thinking": {"type": "enabled", "budget_tokens": 99}}, True),
        (MessageForm, {"thinking": {"type": "disabled"}}, False),
        (OllamaChat, {"think": True}, True),
        (OllamaChat, {"think": False}, False),
        (OllamaChat, {}, None),
    ],
)
def test_whether_to_think_reaches_the_template_by_its_name_for_it(kind, fields, thinks):
    variables = kind(Fields({**ASKED, **fields})).question.variables
    assert variables.get("thinking") is thinks
    if "chat_template_kwargs" not in fields:
        assert variables.get("enable_thinking") is thinks


@pytest.mark.parametrize("kind", [ChatCompletion, ResponseForm, MessageForm, OllamaChat])
def test_clients_that_ask_can_see_how_far_a_prompt_is(kind):
    form = kind(Fields(ASKED))
    form.model = DEMO
    form.text_for(Waiting(0))
    text = form.text_for(ReadingPrompt(1024, 7239, 512, 361.26, 12.3456))
    found = json.loads(text.strip().rpartition("data: ")[2])
    progress = {
        "processed": 1024,
        "total": 7239,
        "cache": 512,
        "left_s": 361.3,
        "time_ms": 12346,
    }
    assert found["prompt_progress"] == progress
