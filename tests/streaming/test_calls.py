"""Calls of tools as families of models write them, told apart from what is said."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import pytest

from call_families import ARGUMENTS, FAMILIES, TOOLS, written_call
from call_reading import USE, answer_text, read_answer
from localspec.chat.call_forms import takes_tools, tools_of
from localspec.chat.messages import checked_messages, fit_to_form
from localspec.chat.template import ChatTemplate
from localspec.streaming.answer_text import AnswerText
from localspec.streaming.calls import CallStream
from localspec.streaming.thinking import Part, Thoughts
from localspec.tools.grammar import Calls
from localspec.tools.tool import tool_use
from prompts import Spelled

LATER = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_7",
                "type": "function",
                "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_7", "content": "sunny"},
]


def test_each_template_has_its_form():
    found = [tools_of(family.template) for family in FAMILIES.values()]
    assert all(each.is_known and each.are_shown for each in found)
    assert len({each.form for each in found}) == len(FAMILIES)
    assert not tools_of("{{ messages }}").is_known


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call(name, is_kept):
    """Whatever tokens it comes in; free, or kept to its form by a grammar."""
    for seed in range(20):
        sizes = random.Random(seed) if seed else None
        said, thought, calls = read_answer(
            name, FAMILIES[name].call, is_kept=is_kept, sizes=sizes
        )
        assert (said, thought) == ("", "")
        assert calls == [("get_weather", ARGUMENTS)]


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("name", [name for name, each in FAMILIES.items() if each.two])
def test_two_calls_and_what_is_said_before(name, is_kept):
    answer = f"I look.\n\n{FAMILIES[name].two}"
    expected = [("get_weather", ARGUMENTS), ("now", {})]
    for seed in range(20):
        sizes = random.Random(seed)
        found = read_answer(name, answer, is_kept=is_kept, sizes=sizes)
        assert found == ("I look.", "", expected)
    one = tool_use(TOOLS, "auto", is_parallel=False)
    assert read_answer(name, answer, use=one) == ("I look.", "", expected[:1])


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_lost_of_nonsense(name):
    """Made of what calls are made of: every character is text, thought, or a part of a call."""
    family = FAMILIES[name]
    parts = [*family.marks, *"{}[],:\"'\n ab", "get_weather", '"name": ', "<parameter=a>", "1"]
    parts += ["<function=now>", "</function>", "</parameter>", "call:now", " to=functions.now"]
    for seed in range(300):
        sizes = random.Random(seed)
        answer = "".join(sizes.choices(parts, k=40))
        said, thought, calls = read_answer(name, answer, sizes=sizes)
        if name != "gpt-oss" and not calls:
            assert (said, thought) == (answer, "")


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_no_call_of_the_tools_stays_text(name):
    """Also one of a tool that nobody offered, and one that was cut."""
    call = FAMILIES[name].call
    for answer in (
        "Hello, world!\n",
        call.replace("get_weather", "rm"),
        call[: call.index("Rome") + 2],
    ):
        said, _, calls = read_answer(name, answer)
        assert calls == []
        if name == "gpt-oss" and answer != "Hello, world!\n":
            _, _, message = answer.partition(" to=functions.")
            tool, _, body = message.partition(" <|constrain|>json<|message|>")
            assert said == f"to={tool}\n{body}"
        else:
            assert said == answer


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt-oss"])
def test_a_call_in_thoughts_counts_if_they_never_end(name, is_kept):
    begin, end = "<think>", "</think>"
    call = FAMILIES[name].call
    if name == "Llama 3":
        call = f"<|python_tag|>{call}"
    expected = [("get_weather", ARGUMENTS)]
    for seed in range(9):
        sizes = random.Random(seed) if seed else None
        found = read_answer(name, f"{begin}Hm. {call}", is_kept=is_kept, sizes=sizes)
        assert found == ("", "Hm. ", expected)
        if two := FAMILIES[name].two:
            both = read_answer(name, f"{begin}{two}", is_kept=is_kept, sizes=sizes)
            assert both == ("", "", [*expected, ("now", {})])
        closed = read_answer(name, f"{begin}Hm. {call} {end}No.", is_kept=is_kept, sizes=sizes)
        assert closed == ("No.", f"Hm. {call} ", [])
        for other in (call[:-9], f"{call[:12]} is a mark.", "Hm <tool_ca"):
            assert read_answer(name, f"{begin}{other}", sizes=sizes) == ("", other, [])


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_cut_is_no_text(name, is_kept):
    """Neither half a mark nor half a call, wherever it is cut."""
    call, said = FAMILIES[name].call, "I look.\n\n"
    if name == "gpt-oss":
        call, said = call.removeprefix("<|channel|>commentary"), ""
    if tools_of(FAMILIES[name].template).form.is_bare:
        said = ""
    for end in range(1, len(call)):
        text, thought, _ = read_answer(name, said + call[:end], is_kept=is_kept, is_cut=True)
        assert (text, thought) == (said.rstrip(), ""), call[:end]


def test_a_stop_string_counts_in_what_is_said():
    """Neither in thoughts, where it would end the answer, nor across their marks."""
    call = FAMILIES["gpt-oss"].call
    for name, begin, end in (
        ("Qwen", "<think>", "</think>\n\n"),
        ("gpt-oss", "<|channel|>analysis<|message|>", "<|end|><|channel|>final<|message|>"),
    ):
        for seed in range(9):
            sizes = random.Random(seed)
            found = read_answer(name, f"{begin}A. B{end}C. D", stop=(".",), sizes=sizes)
            assert found == ("C", "A. B", [])
            found = read_answer(name, f"{begin}A. B{end}C. D", stop=("BC", "D"), sizes=sizes)
            assert found == ("C. ", "A. B", [])
    assert read_answer("gpt-oss", call, stop=("Rome",))[2] == []


@pytest.mark.parametrize("has_tools", [True, False])
def test_a_message_to_a_tool_that_nobody_offered_is_a_text_of_its_own(has_tools):
    """Neither thought nor joined to what was said; in an answer of a form it is no text."""
    begin = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    stray = "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>" + '{"a": 1}'
    said = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    python = "<|channel|>analysis to=python code<|message|>print()"
    more = "<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
    for answer, text, thought in (
        (begin + stray, 'to=rm\n{"a": 1}', "Hm."),
        (begin + said + stray, 'I look.\n\nto=rm\n{"a": 1}', "Hm."),
        (begin + python + more, "to=python\nprint()", "Hm.So."),
    ):
        for seed in range(9):
            sizes = random.Random(seed) if seed else None
            how = {"sizes": sizes, "has_tools": has_tools}
            assert read_answer("gpt-oss", answer, **how) == (text, thought, [])
            assert read_answer("gpt-oss", answer, is_constrained=True, **how)[0] in (
                "",
                "I look.",
            )
            stopped = read_answer("gpt-oss", answer, stop=("=",), **how)
            assert stopped[0] == text.partition("=")[0]


def test_thoughts_before_a_message_to_a_tool():
    answer = (
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{FAMILIES['gpt-oss'].call}"
    )
    assert read_answer("gpt-oss", answer) == ("", "Hm.", [("get_weather", ARGUMENTS)])
    role = " to=functions.now<|channel|>commentary json<|message|>{}"
    assert read_answer("gpt-oss", role) == ("", "", [("now", {})])
    for is_kept in (False, True):  # no grammar sees to a name without its space
        bare = role.replace("functions.", "")
        assert read_answer("gpt-oss", bare, is_kept=is_kept) == ("", "", [("now", {})])
        other = bare.replace("now", "python").replace("{}", "1")
        assert read_answer("gpt-oss", other, is_kept=is_kept) == ("to=python\n1", "", [])
    final = "<|channel|>final<|message|>Hello."
    assert read_answer("gpt-oss", final) == ("Hello.", "", [])


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_call_in_tags_whose_opening_was_forgotten(is_kept):
    """As Qwen3-Coder does; the closing may stand there or not."""
    call = FAMILIES["Qwen3-Coder"].call.removeprefix("<tool_call>\n")
    for seed in range(9):
        how = {"sizes": random.Random(seed) if seed else None, "is_kept": is_kept}
        for text, end in (("", ""), ("I look.", ""), ("I look.", "\n</tool_call>")):
            whole = f"{text}\n{call.removesuffix('</tool_call>').rstrip()}{end}"
            found = read_answer("Qwen3-Coder", whole, **how)
            assert found == (text, "", [("get_weather", ARGUMENTS)])
        found = read_answer("Qwen3-Coder", f"{call}\n{FAMILIES['Qwen3-Coder'].call}", **how)
        assert found == ("", "", [("get_weather", ARGUMENTS)] * 2)
        found = read_answer("Qwen3-Coder", f"<think>Hm. {call}", **how)
        assert found == ("", "Hm. ", [("get_weather", ARGUMENTS)])
        for other in ("<function=rm>\n</function>", "<function=now> is a tag.", "a <funct"):
            assert read_answer("Qwen3-Coder", other, **how) == (other, "", [])
        for end in range(3, len(call)):
            assert read_answer("Qwen3-Coder", call[:end], is_cut=True, **how)[0] == ""


def written(source):
    """What a template makes of an answer with a call, without its end, and of all the rest."""
    template = ChatTemplate(source, bos="", eos="</s>")
    messages = fit_to_form(checked_messages(LATER), tools_of(source).form)
    tools = [tool.declared() for tool in USE.tools]
    assert "get_weather" in template.render(messages[:1], tools=tools)
    text = template.render(messages, tools=tools)
    assert "sunny" in text
    before = text[: text.rindex("Rome", 0, text.rindex("sunny"))]
    form = tools_of(source).form
    begins = ["to=functions"] if form.recipient else form.openings
    begin = before.rindex('{"name"') if form.is_bare else max(map(before.rindex, begins))
    found = re.search(r"<\|im_end\|>|<\|eot_id\|>|</s>|<\|call\|>|<turn\|>", text[begin:])
    return text[begin : begin + found.start()]


PUBLISHED = {
    "Qwen-Qwen2.5-7B-Instruct": "Qwen",
    "Qwen-Qwen3-0.6B": "Qwen",
    "Qwen3-Coder": "Qwen3-Coder",
    "openai-gpt-oss-120b": "gpt-oss",
    "mistralai-Mistral-Nemo-Instruct-2407": "Mistral Nemo",
}


@pytest.mark.parametrize(
    ("file", "name"), [*((None, name) for name in FAMILIES), *PUBLISHED.items()]
)
def test_a_template_writes_a_call_as_its_models_do(file, name):
    """What was read is rendered again so that it is read again; as published, too."""
    source = FAMILIES[name].template
    if file is not None:
        source = (Path(__file__).parents[1] / f"templates/{file}.jinja").read_text("utf-8")
    assert takes_tools(source)
    assert tools_of(source).form == tools_of(FAMILIES[name].template).form
    said = written(source)
    _, _, calls = read_answer(name, f" {said}" if name == "gpt-oss" else said)
    assert calls == [("get_weather", ARGUMENTS)]


def fenced(text, word="json"):
    return f"```{word}\n{text}\n```"


OBJECT = json.dumps({"name": "get_weather", "arguments": ARGUMENTS}, indent=2)
NOW = '{"name": "now", "arguments": {}}'
FLAT = '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome", "days": 3}}'
NESTED = '{"type": "function", "function": {"name": "now", "arguments": "{}"}}'
CALLED, CALLED_NOW = ("get_weather", ARGUMENTS), ("now", {})
UNMARKED = [
    (fenced(OBJECT), [CALLED]),
    (fenced(OBJECT, ""), [CALLED]),
    (f"\n{fenced(OBJECT, 'JSON')}\n", [CALLED]),
    (f"```json\n{OBJECT}", [CALLED]),
    (fenced(FLAT), [CALLED]),
    (fenced(NESTED), [CALLED_NOW]),
    (fenced(NOW.replace("{}}", "null}")), [CALLED_NOW]),
    (fenced(f'{{"arguments": {json.dumps(ARGUMENTS)}, "name": "get_weather"}}'), [CALLED]),
    (f"{fenced(OBJECT)}\n\n{fenced(NOW)}", [CALLED, CALLED_NOW]),
    (fenced(f"{NOW}\n{OBJECT}"), [CALLED_NOW, CALLED]),
    (fenced(f"[{OBJECT}, {NOW}]"), [CALLED, CALLED_NOW]),
    (f"<tools>\n{OBJECT}\n</tools>", [CALLED]),
    (f"<tools>{NOW}</tools>\n<tools>{OBJECT}</tools>", [CALLED_NOW, CALLED]),
    (f"```json\n<tools>\n{NOW}\n</tools>\n```", [CALLED_NOW]),
    (f"{{{NOW}}}", [CALLED_NOW]),
    (f"{{{NOW}", [CALLED_NOW]),
    (fenced(f"{{{OBJECT}}}"), [CALLED]),
    (fenced(f"{{{NOW}"), [CALLED_NOW]),
    (f"{fenced(f'{{{NOW}}}')}\n{fenced(f'{{{OBJECT}')}", [CALLED_NOW, CALLED]),
    (fenced(OBJECT.replace("Rome", '```}"\\n<').replace('}"', '}\\"')), None),
]


def said_in_prefix(name, answer):
    """Of an answer in the speech of its family."""
    return f"<|channel|>final<|message|>{answer}" if name == "gpt-oss" else answer


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_that_is_nothing_but_objects_of_calls(name, is_kept):
    """As Qwen2.5-Coder writes them, whatever its template says."""
    for number, (answer, expected) in enumerate(UNMARKED):
        if expected is None:
            expected = [("get_weather", {**ARGUMENTS, "city": '```}"\n<'})]
        if tools_of(FAMILIES[name].template).form.is_single:
            expected = expected[:1]
        sizes = random.Random(number) if number else None
        whole = said_in_prefix(name, answer)
        assert read_answer(name, whole, is_kept=is_kept, sizes=sizes) == ("", "", expected), (
            answer
        )


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_fenced_objects_of_calls_in_front_of_a_text(name, is_kept, is_cut):
    """Qwen2.5-Coder explains the call that it has written, and a coding agent stood still."""
    is_single = tools_of(FAMILIES[name].template).form.is_single
    for before, behind in (
        ("", "**Explanation:**\n- It asks."),
        ("I call it:", "[1]"),
        ("", "```\nx"),
    ):
        for fence in (fenced(OBJECT), f"<tools>{OBJECT}</tools>"):
            whole = said_in_prefix(name, f"{before}\n{fence}\n\n{behind}")
            said = before if is_single else f"{before}{behind}"
            found = read_answer(name, whole, is_kept=is_kept, is_cut=is_cut)
            assert found == (said, "", [CALLED]), whole
    one = tool_use(TOOLS, "auto", is_parallel=False)
    whole = said_in_prefix(name, f"{fenced(OBJECT)}\nOr:\n{fenced(NOW)}")
    assert read_answer(name, whole, use=one, is_kept=is_kept) == ("", "", [CALLED])


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_counts_behind_an_object_that_lacks_a_brace(name, is_kept):
    """Qwen2.5-Coder 1.5B wrote its call once more, and the half one swallowed it."""
    half = f"<tools>\n{OBJECT[:-1].rstrip()}"
    for begin, said in (
        (f"{half}\n</tools>\n\n", f"{half}\n</tools>"),
        (f"{half}\n\n", half),
        (f"I look.\n{half}</tools>\nOnce more:\n", f"I look.\n{half}</tools>\nOnce more:"),
        (f"```json\n{NOW[:-1]}\n```\n", f"```json\n{NOW[:-1]}"),
        (f"{NOW[:-1]}\n", NOW[:-1]),
    ):
        for seed in range(5):
            how = {"sizes": random.Random(seed) if seed else None, "is_kept": is_kept}
            if tools_of(FAMILIES[name].template).form.is_bare and begin.startswith("{"):
                continue  # there all of the answer is the call
            found = read_answer(name, said_in_prefix(name, begin + fenced(OBJECT)), **how)
            assert found == (said, "", [CALLED]), begin
    if not tools_of(FAMILIES[name].template).form.is_single:
        whole = said_in_prefix(name, f"{fenced(NOW)}\n{half}\n</tools>\n{fenced(OBJECT)}")
        assert read_answer(name, whole)[2] == [CALLED_NOW, CALLED]
        half_text = OBJECT[: OBJECT.index("Rome")]
        whole = f"{fenced(NOW)}\n{half_text}{FAMILIES[name].call}"
        assert read_answer(name, whole, is_kept=is_kept) == (
            half_text,
            "",
            [CALLED_NOW, CALLED],
        )


def test_half_a_fenced_call_that_was_let_go_is_text_once():
    """A thought between its halves ends what may be a call."""
    stream = CallStream(Calls(tools_of(FAMILIES["Qwen"].template).form, USE))
    begin, end = f"```json\n{NOW[:14]}", f"{NOW[14:]}\n```\nThere."
    texts = [(begin, False), ("Hm.", True), (end, False)]
    parts = [part for text, is_thought in texts for part in stream.push(Part(text, is_thought))]
    parts += stream.finish(is_cut=False)
    assert [each for each in parts if each.call] == []
    assert "".join(each.text for each in parts if not each.is_thought) == begin + end


NO_CALLS = [
    "```python\nprint()\n```",
    fenced('{"name": "Alice", "arguments": {}}'),
    fenced('{"name": "get_weather", "age": 3}'),
    fenced(OBJECT.replace('"Rome"', '["Rome", "Oslo"]')),
    fenced(OBJECT.replace('"Rome"', "1e400")),
    fenced(OBJECT.replace("3", '"three"')),
    fenced('{"name": "get_weather", "arguments": {"days": 3}}'),
    fenced(OBJECT)[:-20],
    f"I call it:\n{OBJECT}",
    f"I call it:\n<tools>{OBJECT.replace('city', 'town')}</tools>",
    f"<tools>\n{NOW}, and so on\n</tools>",
    f"{{{NOW}, {NOW}}}",
    f"{{{{{NOW}}}}}",
    "The <tools> are ``` here.\n\n```\n",
    f"{OBJECT}\nI called it.",
    f"```json\n{OBJECT},\n{NOW}\n```",
    "[1] says so", "[]", "```", "``", "{}", "```json\n[]\n```", "``````json\n{", "1", "\n",
    "```js\n{",
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_more_or_less_than_objects_of_calls_is_text(name):
    for number, answer in enumerate(NO_CALLS):
        sizes = random.Random(number)
        whole = said_in_prefix(name, answer)
        said = answer.lstrip() if name == "gpt-oss" else answer
        assert read_answer(name, whole, sizes=sizes) == (said, "", []), answer


def test_text_is_held_no_longer_than_it_may_be_a_call():
    calls = Calls(tools_of(FAMILIES["Qwen"].template).form, USE)
    for answer, num_held in (
        ("Hello", 0),
        ("```python\nprint(1)\n```", 3),
        ("[1] and", 1),
        ('{"b": 1}', 2),
        ('```json\n{"name": "Alice", "age": 3}', len('```json\n{"name": "')),
        (fenced(f"{NOW}\n\n[1]"), len(f"```json\n{NOW}\n\n[")),
        (fenced('{"name": "get_weather", "arguments": {"days": 1}, "id": 7}'), 65),
    ):
        signs = [each.encode() for each in answer]
        text = AnswerText(Spelled(signs), Thoughts(), (), calls)
        sizes = [sum(len(part.text) for part in text.push(at)) for at in range(len(answer))]
        assert next(at for at, size in enumerate(sizes) if size) == num_held, answer
        rest = sum(len(part.text) for part in text.finish(is_cut=False))
        assert sum(sizes) + rest == len(answer)


OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}  # as Pydantic's


def streamed(name, texts, *, use=USE):
    """For each of the texts, which come one by one, the pieces of calls that it gave."""
    text = answer_text(name, texts, use)
    found = [text.push(at) for at in range(len(texts))] + [text.finish(is_cut=False)]
    return [[part.call for part in parts if part.call] for parts in found]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_comes_in_the_same_parts_wherever_it_is_cut(name):
    """The name first; together they are the text of the whole call."""
    call = FAMILIES[name].call
    for at in range(1, len(call)):
        pieces = [*itertools.chain(*streamed(name, [call[:at], call[at:]]))]
        assert (pieces[0].name, pieces[0].json) == ("get_weather", "")
        assert "".join(piece.json for piece in pieces) == json.dumps(ARGUMENTS)
        assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


LONG = "".join(f'line {number} <b> "q" \\ é\n' for number in range(30))
OF_TEXT = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
OF_PERHAPS = {"properties": {"text": OPTIONAL}}
OF_LIST = {"properties": {"edits": {"type": "array", "items": {"type": "object"}}}}
OF_OBJECT = {"properties": {"tree": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (OF_TEXT, {"text": LONG}),
        (OF_PERHAPS, {"text": LONG}),
        (OF_PERHAPS, {"text": f"the {LONG}"}),
        (OF_LIST, {"edits": [{"old": LONG, "n": -1.5}, {"new": LONG, "all": True}]}),
        (OF_OBJECT, {"tree": {"a": {"b": [LONG, None, []]}, "c": {}}}),
    ],
)
@pytest.mark.parametrize("name", FAMILIES)
def test_arguments_come_while_they_are_written(name, schema, arguments):
    """All but what may be a mark or a number, whatever the schema says of them."""
    use = tool_use([{"name": "f", "parameters": schema}], "auto", is_parallel=True)
    call = written_call(name, arguments)
    num_written = num_out = 0
    for character, pieces in zip([*call, ""], streamed(name, call, use=use), strict=True):
        num_written += len(character)
        num_out += sum(len(piece.json) for piece in pieces)
        assert num_out > num_written - 110, call[:num_written]
    pieces = itertools.chain(*streamed(name, call, use=use))
    assert json.loads("".join(piece.json for piece in pieces)) == arguments
