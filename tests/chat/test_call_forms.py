"""The form of calls as it is read off templates: made-up ones, and llama.cpp's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from localspec.chat import call_forms
from localspec.chat.call_forms import tools_of
from localspec.chat.messages import checked_messages
from localspec.chat.prompt import PromptMaker, enforced_grammar
from localspec.chat.template import ChatTemplate
from localspec.streaming.answer_text import AnswerText, WholeMessage
from localspec.streaming.calls import CallStream
from localspec.streaming.thinking import Part, Thoughts
from localspec.streaming.thought_families import families_of
from localspec.tools.call_form import CALL_ID, NAME, CallForm
from localspec.tools.grammar import CallGrammar, Calls
from localspec.tools.tool import tool_use, whole_calls
from prompts import Spelled

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
BYTES = llguidance.LLTokenizer("byte")

LLAMA_TEMPLATES = os.environ.get(
    "LOCALSPEC_LLAMA_TEMPLATES", ""
)  # models/templates of llama.cpp


def template_of(calls: str) -> str:
    """A template of turns that writes the calls `m.tool_calls` like this."""
    return (
        "{% if tools %}[tools]{{ tools | tojson }}[/tools]{% endif %}{% for m in messages %}"
        "<|turn|>{{ m.role }}{{ '\n' }}{{ m.content }}{% if m.tool_calls %}"
        f"{calls}{{% endif %}}<|end|>{{{{ '\n' }}}}{{% endfor %}}"
        "{% if add_generation_prompt %}<|turn|>assistant{{ '\n' }}{% endif %}"
    )


def each_call(call: str) -> str:
    return f"{{% for t in m.tool_calls %}}{{% set c = t.function %}}{call}{{% endfor %}}"


def each_argument(argument: str) -> str:
    return f"{{% for k, v in c.arguments | items %}}{argument}{{% endfor %}}"


VALUE = "{{ v if v is string else v | tojson }}"
JSON = "{{ c.arguments | tojson }}"
MADE_UP = {
    "an object in marks": template_of(
        each_call('{{ "\\n" }}<call>{"name": "{{ c.name }}", "arguments": ' + JSON + "}</call>")
    ),
    "a list of objects": template_of(
        "<calls>["
        + each_call(
            '{"name": "{{ c.name }}", "arguments": ' + JSON + ', "id": "{{ t.id }}"}'
            "{{ ', ' if not loop.last }}"
        )
        + "]</calls>"
    ),
    "objects with numbers and other keys": template_of(
        "<|START|>["
        + each_call(
            '{{ "\\n" }}{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.name }}", '
            '"parameters": ' + JSON + "}{{ ',' if not loop.last }}"
        )
        + "]<|STOP|>"
    ),
    "names as keys": template_of(
        "<|tools|>["
        + each_call('{"{{ c.name }}": ' + JSON + "}{{ ', ' if not loop.last }}")
        + "]<|/tools|>"
    ),
    "names between marks": template_of(
        "<|calls|>"
        + each_call("<|call|>function<|sep|>{{ c.name }}\n```json\n" + JSON + "\n```<|/call|>")
        + "<|/calls|>"
    ),
    "names with ids": template_of(
        "<|calls|>"
        + each_call("<|call|>{{ t.id }}<|name|>{{ c.name }}<|args|>" + JSON + "<|/call|>")
        + "<|/calls|>"
    ),
    "numbered names": template_of(
        "<|calls|>"
        + each_call(
            "<|call|>functions.{{ c.name }}:{{ loop.index0 }}<|args|>" + JSON + "<|/call|>"
        )
        + "<|/calls|>"
    ),
    "names in tags": template_of(each_call("<function={{ c.name }}>" + JSON + "</function>")),
    "tags": template_of(
        each_call(
            "{{ '\\n' }}<seed:call>\n<function={{ c.name }}>\n"
            + each_argument("<parameter={{ k }}>" + VALUE + "</parameter>\n")
            + "</function>\n</seed:call>"
        )
    ),
    "pairs of tags": template_of(
        each_call(
            "<tool_call>{{ c.name }}"
            + each_argument("<arg_key>{{ k }}</arg_key><arg_value>" + VALUE + "</arg_value>")
            + "</tool_call>"
        )
    ),
    "pairs of tags on lines": template_of(
        each_call(
            "{{ '\\n' }}<tool_call>{{ c.name }}\n"
            + each_argument(
                "<arg_key>{{ k }}</arg_key>\n<arg_value>" + VALUE + "</arg_value>\n"
            )
            + "</tool_call>"
        )
    ),
    "attributes": template_of(
        "<x:calls>"
        + each_call(
            '{{ "\\n" }}<invoke name="{{ c.name }}">\n'
            + each_argument('<parameter name="{{ k }}">' + VALUE + "</parameter>\n")
            + "</invoke>"
        )
        + "{{ '\\n' }}</x:calls>"
    ),
    "attributes of texts": template_of(
        "<x:calls>"
        + each_call(
            '{{ "\\n" }}<invoke name="{{ c.name }}">\n'
            + each_argument(
                '<parameter name="{{ k }}" '
                "string=\"{{ 'true' if v is string else 'false' }}\">"
                + VALUE
                + "</parameter>\n"
            )
            + "</invoke>"
        )
        + "{{ '\\n' }}</x:calls>"
    ),
    "Python": template_of(
        "<|start|>["
        + each_call(
            "{{ c.name }}("
            + each_argument(
                '{{ k }}={{ "\'" + v + "\'" if v is string else v }}'
                "{{ ', ' if not loop.last }}"
            )
            + "){{ ', ' if not loop.last }}"
        )
        + "]<|stop|>"
    ),
    "a queue of ids": template_of(  # as Kimi K2 keeps it
        "<|calls|>{% set q = namespace(ids=[]) %}"
        + each_call(
            "{% set id = 'functions.' ~ c.name ~ ':' ~ loop.index0 %}"
            "{% set _ = q.ids.append(id) %}<|call|>{{ q.ids.pop(0) }}<|args|>" + JSON
        )
        + "<|/calls|>"
    ),
    "a turn of its own": template_of(  # GigaChat 3
        "{% set c = m.tool_calls[0].function %}"
        '<|end|>\n<|turn|>function call<|body|>\n{"name": "{{ c.name }}", "arguments": '
        + JSON
        + "}"
    ),
    "calls between the marks of messages": template_of(  # Solar
        "<|end|><|begin|>assistant<|tool_calls|>{# <|content|> #}"
        + each_call("<|call|>{{ t.id }}<|name|>{{ c.name }}<|args|>" + JSON + "<|/call|>")
        + "<|calls|>"
    ),
    "messages to tools": template_of(  # Muse
        each_call(
            "<|eom|><|start|>assistant to={{ c.name }}<|message|><x:calls>\n"
            '<x:invoke name="{{ c.name }}">\n'
            + each_argument('<x:parameter name="{{ k }}">' + VALUE + "</x:parameter>\n")
            + "</x:invoke>\n</x:calls>"
        )
    ),
    "kinds of values": template_of(  # Kimi K3
        "{# <|end_of_msg|> #}<|open|>tools<|sep|>"
        + each_call(
            '<|open|>call tool="{{ c.name }}" index="{{ loop.index }}"<|sep|>'
            + each_argument(
                '<|open|>argument key="{{ k }}" type="'
                "{% if v is string %}string{% elif v is boolean %}boolean{% elif v is number %}"
                "number{% elif v is mapping %}object{% elif v is none %}null{% else %}array"
                '{% endif %}"<|sep|>' + VALUE + "<|close|>argument<|sep|>"
            )
            + "<|close|>call<|sep|>"
        )
        + "<|close|>tools<|sep|>"
    ),
    "marked texts": template_of(  # MiniCPM5
        each_call(
            '{{ "\n" }}<function name="{{ c.name }}">'
            + each_argument(
                '<param name="{{ k }}">'
                "{% if v is string and ('<' in v or '&' in v or '\n' in v) %}"
                "<![CDATA[{{ v }}]]>{% else %}" + VALUE + "{% endif %}</param>"
            )
            + "</function>"
        )
    ),
}

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "t"},
        "count": {"type": "integer", "description": "c"},
        "items": {"type": "array", "items": {"type": "string"}, "description": "i"},
        "tree": {"type": "object", "description": "o"},
        "flag": {"type": "boolean", "description": "f"},
    },
    "required": ["text"],
}
USE = tool_use(
    [{"name": name, "description": "d", "parameters": SCHEMA} for name in ("look", "write")],
    "auto",
    is_parallel=True,
)
MANY = {"text": 'a "b" <c> 中\nline', "count": -3, "items": ["x", "<y>"], "flag": True}
TREE = {"text": "", "items": [], "tree": {"a": {"b": [1, None], "c": {}}}}
CALLS = [
    [("look", {"text": "Rome"})],
    [("look", MANY)],
    [("look", {"text": "a"}), ("write", MANY)],
    [("write", {"text": "1e5"}), ("write", {"text": "true"})],
]
QUESTION = {"role": "user", "content": "The question?"}


def turn_of(source, calls, said):
    """What the template makes of an answer with those calls, up to the end of its turn."""
    template = ChatTemplate(source, bos="<s>", eos="</s>")
    tools = [tool.declared() for tool in USE.tools]
    given = [
        {"id": f"callid00{at}", "type": "function", "function": {"name": n, "arguments": a}}
        for at, (n, a) in enumerate(calls)
    ]
    answer = {"role": "assistant", "content": said, "tool_calls": given}
    results = [
        {"role": "tool", "content": "RESULT", "tool_call_id": each["id"], "name": name}
        for each, (name, _) in zip(given, calls, strict=True)
    ]
    text = template.render([QUESTION, answer, *results], tools=tools, opens_answer=False)
    form = tools_of(source).form
    text = text.rpartition("The question?")[2].partition("RESULT")[0]
    return text[text.index(form.openings[0]) :]


def ended(form, text):
    """The calls at the beginning of a text, without what follows them."""
    last = (form.end + form.after).strip()
    return text[: text.rindex(last) + len(last)] if last else text.partition("</s>")[0]


def read(form, text, *, size, is_kept):
    stream = CallStream(Calls(form, USE, grammar=CallGrammar("") if is_kept else None))
    parts = stream.push(Part("I think.", is_thought=True))
    for at in range(0, len(text), size):
        parts += stream.push(Part(text[at : at + size], is_thought=False))
    parts += stream.finish(is_cut=False)
    assert "".join(part.text for part in parts if part.is_thought) == "I think."
    said = "".join(part.text for part in parts if not part.is_thought)
    return said, [(each.name, each.arguments) for each in whole_calls(p.call for p in parts)]


def fits(grammar, text):
    matcher = llguidance.LLMatcher(
        BYTES, llguidance.LLMatcher.grammar_from_lark(grammar.lark), log_level=0
    )
    assert not matcher.is_error(), matcher.get_error()
    for trigger in grammar.triggers:
        text = text.removeprefix(trigger)
    text = re.sub(r', "id": "callid00\d"', "", text)  # models need not write it
    tokens = BYTES.tokenize_str(text)
    return matcher.validate_tokens(tokens) == len(tokens)


def check_read(source):
    """The template's own calls are read as they were, in whatever parts they come."""
    form = tools_of(source).form
    for calls in [*CALLS, [("look", TREE)], [("look", {})]]:
        if form.is_single and len(calls) > 1:
            continue
        text = ended(form, turn_of(source, calls, ""))
        for said in ("", "I look: 1 < 2."):
            for size in (1, 7, len(text)):
                found = read(form, said + text, size=size, is_kept=False)
                assert found == (said, calls), (text, size)


def check_kept(source, some_calls):
    """The template's own calls fit the grammar, by which they are read while they come."""
    form = tools_of(source).form
    grammar = enforced_grammar(form, USE, {})
    for calls in some_calls:
        if form.is_single and len(calls) > 1:
            continue
        text = ended(form, turn_of(source, calls, ""))
        for size in (1, 7, len(text)):
            found = read(form, text, size=size, is_kept=True)
            assert found == ("", calls), (text, size)
        if "'" not in text:  # the grammar has JSON's quotes
            assert fits(grammar, text), (text, grammar.lark)


def check_pieces(source):
    """Where a grammar keeps the calls, a text comes while it is written."""
    form = tools_of(source).form
    stream = CallStream(Calls(form, USE, grammar=CallGrammar("")))
    begun, found, _ = turn_of(source, [("look", {"text": "Rome"})], "").partition("Rome")
    parts = [
        part
        for character in begun + found
        for part in stream.push(Part(character, is_thought=False))
    ]
    assert "".join(part.call.json for part in parts).endswith('"Rome')


@pytest.mark.parametrize("name", MADE_UP)
def test_the_calls_of_a_template_are_read_by_its_own_form(name):
    found = tools_of(MADE_UP[name])
    assert found.is_known
    assert found.are_shown
    check_read(MADE_UP[name])
    check_pieces(MADE_UP[name])
    check_kept(MADE_UP[name], CALLS if name == "Python" else [*CALLS, [("look", TREE)]])


@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_blank_space_before_marked_text_is_not_part_of_it(space):
    form = tools_of(MADE_UP["marked texts"]).form
    call = f'<function name="look"><param name="text">{space}<![CDATA[a<b]]></param></function>'
    said, calls = read(form, call, size=len(call), is_kept=False)
    assert (said, calls) == ("", [("look", {"text": "a<b"})])


@pytest.mark.parametrize("name", MADE_UP)
def test_a_call_that_does_not_fit_its_schema_does_not_fit_the_grammar(name):
    form = tools_of(MADE_UP[name]).form
    grammar = enforced_grammar(form, USE, {})
    text = ended(form, turn_of(MADE_UP[name], [("look", {"text": "a", "count": 12})], ""))
    if name == "Python":
        text = text.replace("'", '"')
    assert fits(grammar, text)
    assert not fits(grammar, text.replace("12", "many"))
    assert not fits(grammar, text.replace("look", "rm"))
    assert not fits(grammar, text.replace("count", "number"))


@pytest.mark.parametrize("name", ["tags", "kinds of values"])
def test_an_argument_may_have_the_name_of_a_placeholder(name):
    form = tools_of(MADE_UP[name]).form
    schema = {"type": "object", "properties": {"a_KIND": {"type": "integer"}}}
    use = tool_use([{"name": "look", "parameters": schema}], "auto", is_parallel=True)
    grammar = enforced_grammar(form, use, {})
    text = ended(form, turn_of(MADE_UP[name], [("look", {"a_KIND": 2})], ""))
    assert fits(grammar, text)
    assert not fits(grammar, text.replace("a_KIND", "a_number"))


UNREAD = {
    "no mark but the end of each turn, which is no mark of calls": (
        "{# [BEGIN FINAL RESPONSE] #}{% for m in messages %}{{ m.content }}"
        + each_call("Here are my reasoning steps: {{ c.name }} " + JSON)
        + "\nHere are my reasoning steps:\n{% endfor %}"
    ),
    "deep lists": template_of(
        each_call("<call>{{ c.name }}{{ '{\"firstkey\": ' ~ '[' * 200000 }}" + JSON + "</call>")
    ),
    "an id twice": template_of(
        each_call(
            '<call>{"id": "{{ t.id }}", "call_id": "{{ t.id }}", "name": "{{ c.name }}", '
            '"arguments": ' + JSON + "}</call>"
        )
    ),
    "the placeholder of names": template_of(
        each_call("<call>[TOOL_NAME]{{ c.name }}[ARGS]" + JSON + "</call>")
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_form_that_cannot_be_read_off_is_another_form(name):
    found = tools_of(UNREAD[name])
    assert not found.is_known
    assert found.form.openings == ("<tool_call>",)


COMMAND = (
    "{% for m in messages %}<|turn|>{{ m.role }}{% if m.tool_calls %}<|START_THINKING|>"
    "{{ m.content }}<|END_THINKING|><|START_ACTION|>["
    + each_call(
        '{"tool_name": "{{ c.name }}", "parameters": ' + JSON + "}{{ ', ' if not loop.last }}"
    )
    + "]<|END_ACTION|>{% else %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}"
    "<|end|>{% endfor %}{{ tools | tojson }}"
)


def read_of_command(answer, *, is_kept, size):
    """Thoughts, speech and calls of an answer in tokens of that many characters."""
    form = tools_of(COMMAND).form
    texts = [answer[at : at + size] for at in range(0, len(answer), size)]
    thoughts = Thoughts(families_of(COMMAND, ())).without(form.openings)
    calls = Calls(form, USE, grammar=CallGrammar("") if is_kept else None)
    vocabulary = Spelled([each.encode() for each in texts])
    stream = AnswerText(vocabulary, thoughts, (), calls, is_constrained=False)
    parts = [part for token in range(len(texts)) for part in stream.push(token)]
    return WholeMessage.of(parts + stream.finish(is_cut=False))


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("size", [1, 9, 200])
def test_a_mark_that_begins_calls_does_not_begin_thoughts(is_kept, size):
    """Command R7B writes its calls behind a mark that without tools opens a thought."""
    assert tools_of(COMMAND).form.openings == ("<|START_ACTION|>",)
    answer = (
        "<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>["
        '{"tool_name": "look", "parameters": {"text": "a<b"}}]<|END_ACTION|>'
    )
    found = read_of_command(answer, is_kept=is_kept, size=size)
    assert (found.thoughts, found.text) == ("I look.", "")
    (call,) = found.tool_calls
    assert call.arguments == {"text": "a<b"}


@pytest.mark.parametrize("size", [1, 9])
@pytest.mark.parametrize("mark", ["<|END_ACTION|>", "<|START_THINKING|>", "<|END_RESPONSE|>"])
def test_a_mark_in_an_argument_is_its_text_where_a_grammar_keeps_the_call(mark, size):
    """Such marks are in files that agents write. Spelled out they are no control tokens."""
    arguments = {"text": f"Behind {mark} it ends."}
    calls = [("look", arguments), ("look", arguments)]
    written = tools_of(COMMAND).form.render(calls)
    found = read_of_command(f"Hm.{written}", is_kept=True, size=size)
    assert (found.thoughts, found.text) == ("", "Hm.")
    assert [(call.name, call.arguments) for call in found.tool_calls] == calls


def test_calls_in_words_have_numbers_as_ids():
    form = CallForm("", f"<{NAME}:{CALL_ID}>", end="</call>")
    written = form.render([("look", {}), ("look", {"text": CALL_ID})])
    assert written == f'<look:0>{{}}</call><look:1>{{"text": "{CALL_ID}"}}</call>'


PUBLISHED = sorted(Path(LLAMA_TEMPLATES).glob("*.jinja")) if LLAMA_TEMPLATES else []


@pytest.mark.skipif(not PUBLISHED, reason="LOCALSPEC_LLAMA_TEMPLATES names no folder")
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_calls_of_a_published_template(path):
    """Some write Python's words, or letters as escapes, or sort arguments: the grammar not."""
    source = path.read_text("utf-8")
    found = tools_of(source)
    form = found.form
    if found.is_known and form.is_shown and not (form.recipient or form.is_bare):
        check_read(source)
        check_pieces(source)
        check_kept(source, CALLS[:1])


@pytest.mark.skipif(not PUBLISHED, reason="LOCALSPEC_LLAMA_TEMPLATES names no folder")
def test_most_published_templates_have_a_form():
    found = {path.stem: tools_of(path.read_text("utf-8")) for path in PUBLISHED}
    assert len(found) >= 70
    assert sum(each.is_known for each in found.values()) >= 61
    for name in ("GLM-4.6", "deepseek-ai-DeepSeek-V3.2", "LFM2.5-8B-A1B", "ByteDance-Seed-OSS"):
        assert found[name].are_shown


@pytest.mark.skipif(not PUBLISHED, reason="LOCALSPEC_LLAMA_TEMPLATES names no folder")
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_published_template_shows_tools_calls_and_results(path, demo_vocabulary):
    """By itself or in words: none is dropped."""
    if "firefunction" in path.stem:
        pytest.skip("this template wants variables of its own, whatever it is asked")
    maker = PromptMaker(demo_vocabulary, path.read_text("utf-8"), think=True)
    call = {"id": "callid001", "function": {"name": "look", "arguments": {"text": "Rome"}}}
    messages = checked_messages(
        [
            {"role": "system", "content": "Be brief."},
            QUESTION,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "callid001", "content": "sunny"},
        ]
    )
    prompt = maker.prompt(messages, USE, may_merge=True)
    text = demo_vocabulary.detokenize(prompt.tokens, special=True)
    # Mistral Nemo's shows the system only in a last question.
    assert "Be brief." in text or "Nemo" in path.stem
    for word in ("The question?", "write", "look", "Rome", "sunny"):
        assert word in text, word
    assert prompt.calls is not None


def test_a_template_without_end_is_given_up(monkeypatch):
    """It is read where no other process bounds it."""
    monkeypatch.setattr(call_forms, "_MOST_S", 0.1)
    loops = "{% set r = range(90000) %}" + "{% for a in r %}" * 6 + "{% endfor %}" * 6
    found = tools_of(f"{loops}{{{{ tools }}}}")
    assert not found.are_shown
    assert not found.is_known
