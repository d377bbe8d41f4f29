"""Chat templates render as their makers meant, and can do no harm."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localspec.chat.call_forms import takes_tools
from localspec.chat.messages import as_text, checked_messages
from localspec.chat.prompt import PromptMaker
from localspec.chat.template import BUILT_IN, ChatTemplate
from localspec.errors import Interrupted, OptionError, TemplateError, TemplateLimitError
from localspec.tools.tool import tool_use

TEMPLATES = Path(__file__).parents[1] / "templates"
TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Why?"},
]


def render(source: str, messages=TURNS) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages)


def test_chatml():
    assert render(BUILT_IN["chatml"]) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_templates_that_are_in_use_render_as_by_jinja_itself(path):
    """Unchanged, byte by byte; and two million characters in five hundred turns."""
    free = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    free.globals["strftime_now"] = lambda form: dt.datetime.now().strftime(form)
    source = path.read_text(encoding="utf-8")
    for messages in (
        TURNS,
        [{"role": "system", "content": " Be brief. /no_think\n"}, *TURNS],
        [*TURNS[:1], {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi "}, *TURNS],
    ):
        expected = free.from_string(source).render(
            messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
        )
        assert render(source, messages) == expected
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": "word " * 800}
        for number in range(501)
    ]
    assert len(render(source, turns)) > 2_000_000


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ 1 // 0 }}",
        "{{ messages[0].nothing.more }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.clear() }}",
        "{{ messages.insert(0, messages[0]) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        # Jinja 3.1.5 writes the environment.
        "{{ ('{0.__init__.__globals__[os].environ}' | attr('format'))(cycler) }}",
        # Jinja before 3.1.5 does.
        "{{ cycler | tojson(default='{0.__init__.__globals__[os].environ}'.format) }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(9999999999) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "x" * 300_000,
    ],
)
def test_broken_and_hostile_templates_end_in_an_error(source):
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert len(str(caught.value)) < 500
    assert "chatml" in caught.value.hint


def doubled(step, begin="'x'", times=60):
    """A template that makes a value twice as large again and again."""
    return (
        f"{{% set ns = namespace(x={begin}) %}}{{% for i in range({times}) %}}"
        f"{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x }}}}"
    )


def test_a_template_changes_only_its_own_lists():
    """Kimi K2's keeps a queue, and takes from it what it has put there."""
    source = (
        "{% set q = namespace(ids=[]) %}{% for m in messages %}"
        "{% set _ = q.ids.append(m.role) %}{% endfor %}"
        "{{ q.ids.pop(0) }} {{ q.ids | length }}"
        "{% set _ = messages[0].parts.append(1) %}{% set _ = messages.pop() %}"
    )
    turns = [{"role": "user", "content": "hi", "parts": []}, {"role": "user", "content": "ho"}]
    assert render(source, turns) == "user 1"
    assert turns[0]["parts"] == []
    assert len(turns) == 2


def test_what_a_filter_yields_is_written_as_a_list():
    """As llama.cpp's template of DeepSeek R1 writes its tools."""
    assert render("{{ messages | map(attribute='role') | tojson }}") == (
        '["user", "assistant", "user"]'
    )


# Each would take all time or all memory in one operation, which no signal interrupts.
OPERATIONS = {
    "a power": "{% if (9**(9**(9 if messages else 8))) > 1 %}a{% endif %}",
    "a power of constants": "{% if 9**(9**9) > 1 %}a{% endif %}",
    "a power that is written": "{{ 9**(9**9) }}",
    "squares": doubled("ns.x * ns.x", "9"),
    "a quotient": "{{ ('f' * 4000000) | int(base=16) // ('f' * 2000000) | int(base=16) }}",
    "a text many times": "{{ 'x' * 2000000000 }}",
    "many times a text": "{{ 2000000000 * 'x' }}",
    "a list many times": "{{ ([1] * 2000000000) | length }}",
    "a list of long texts": "{{ ([LONG] * 1000000) | join | length }}",
    "sums of texts": doubled("ns.x + ns.x"),
    "sums of lists": doubled("ns.x + ns.x", "[1]"),
    "texts in a row": doubled("ns.x ~ ns.x"),
    "lists in lists": doubled("[ns.x, ns.x]"),
    "a list in itself": "{% set x = [] %}{% set _ = x.append(x) %}{{ x | tojson }}",
    "a list that grows while it is read": (
        "{% set x = [1] %}{% for y in x %}{% set _ = x.append(y) %}{% endfor %}"
    ),
    "lists in lists as JSON": doubled("[ns.x, ns.x]", times=40).replace(
        "ns.x }}", "ns.x | tojson }}"
    ),
    "lists in a text": doubled("[ns.x, ns.x]").replace("ns.x }}", "(ns.x | upper) }}"),
    "lists in a row": doubled("[ns.x, ns.x]").replace("ns.x }}", "('' ~ ns.x) }}"),
    "a namespace of lists": doubled("[ns.x, ns.x]").replace("ns.x }}", "ns }}"),
    "values of lists": doubled("{'a': ns.x, 'b': ns.x}.values()"),
    "items of lists": doubled("{'a': ns.x, 'b': ns.x}.items()"),
    "an exception of lists": doubled("[ns.x, ns.x]").replace(
        "ns.x }}", "raise_exception(ns.x) }}"
    ),
    "blocks": (
        "{% set ns = namespace(x='x') %}{% for i in range(60) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}{{ ns.x }}"
    ),
    "macros": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + doubled("m(ns.x)"),
    "center": "{{ 'a' | center(2000000000) }}",
    "center of a variable": "{{ messages[0].content | center(2000000000) }}",
    "center in a block": "{% filter center(2000000000) %}a{% endfilter %}",
    "center of each": "{{ ['a'] | map('center', 2000000000) | list }}",
    "padding": "{{ 'a'.ljust(2000000000) }}",
    "padding by an attribute": "{{ ('a' | attr('rjust'))(2000000000) }}",
    "zeros": "{{ 'a'.zfill(2000000000) }}",
    "tabs": r"{{ ('\t' * 1000000).expandtabs(1000000) }}",
    "a replacement": "{{ LONG.replace('x', LONG) }}",
    "a filter's replacement": "{{ LONG | replace('x', LONG) }}",
    "between letters": "{{ LONG.join(LONG) }}",
    "joined": "{{ (['a'] * 100000) | join(LONG) }}",
    "a joined range": "{{ range(100000) | join(LONG) }}",
    "translated": "{{ LONG.translate({120: LONG}) }}",
    "a width": "{{ '%1500000000d' % 1 }}",
    "a width of a variable": "{{ '%1500000000d' % (messages | length) }}",
    "a width among the values": "{{ '%*d' % (1500000000, 1) }}",
    "a precision": "{{ '%.1500000000f' % 1 }}",
    "a value by its name": ("{% set long = LONG %}{{ ('%(x)s' * 100000) % {'x': long} }}"),
    "a filter's width": "{{ '%1500000000d' | format(1) }}",
    "a format's width": "{{ '{:>1500000000}'.format('a') }}",
    "a format's width in a field": "{{ '{:>{w}}'.format('a', w=1500000000) }}",
    "a format's map": "{{ '{a:>1500000000}'.format_map({'a': 'b'}) }}",
    "a format's fields": "{% set long = LONG %}{{ ('{0}' * 100000).format(long) }}",
    "an indentation": "{{ messages | tojson(indent=300000000) }}",
    "an indentation's text": "{{ messages | tojson(indent=LONG * 2) }}",
    "separators": "{{ ([1] * 100000) | tojson(separators=(LONG, ':')) }}",
    "indented": "{{ 'a\nb' | indent(2000000000) }}",
    "indented by a text": r"{{ ('\n' * 100000) | indent(LONG) }}",
    "wrapped": "{{ ('a b' * 100000) | wordwrap(1, wrapstring=LONG) }}",
    "filled up": "{{ [1] | batch(2000000000, 0) | list | length }}",
    "slices": "{{ [1] | slice(2000000000) | list | length }}",
    "rounded": "{{ 1 | round(-2000000000) }}",
    "rounded up": "{{ 1 | round(2000000000, 'ceil') }}",
    "a sum of lists": "{{ ([[1] * 1000] * 100000) | sum(start=[]) | length }}",
    "bytes": "{{ (1).to_bytes(2000000000, 'big') | length }}",
    "bytes of a text": "{{ 'a'.encode().center(2000000000) | length }}",
    "a search from the end": "{{ LONG.rfind('b' + 'x' * 2000000) }}",
    "pieces from the end": "{{ LONG.rsplit(sep='b' + 'x' * 2000000) }}",
    "letters cut off": "{{ LONG.strip('a' * 4000000) }}",
    "letters cut off by a filter": "{{ LONG | trim('a' * 4000000) }}",
    "many beginnings": "{{ LONG.startswith(('x',) * 1000000) }}",
    "a date": "{{ strftime_now('%9999999d' * 100000) | length }}",
    "paragraphs": "{{ lipsum(n=1000000000) }}",
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_takes_all_time_or_memory(name):
    with pytest.raises(TemplateError) as caught:
        render(OPERATIONS[name].replace("LONG", "('x' * 4000000)"))
    assert "chat template cannot be used" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 2**10 }} {{ 3 * 4 }} {{ 'ab' * 2 }} {{ [1] * 2 }}", "1024 12 abab [1, 1]"),
        ("{{ 7 % 4 }} {{ 7 // 2 }} {{ 1 - 2 }} {{ 1 / 2 }}", "3 3 -1 0.5"),
        ("{{ '%s is %5.2f%%' % ('it', 2.5) }}", "it is  2.50%"),
        ("{{ '%(a)s %(a)s' % {'a': 1} }}{{ '%d' % 7 }}", "1 17"),
        ("{{ '100%% 20000 %s' | format('a') }}", "100% 20000 a"),
        ("{{ '{} {a:>4}'.format(1, a='b') }}", "1    b"),
        ("{{ '{text}'.format(text=1) }}{{ '%(text)s' | format(text=2) }}", "12"),
        ("{{ 'a' | center(5) }}|{{ 5 | center(3) }}", "  a  | 5 "),
        ("{{ 'a\nb' | indent(2, first=true) }}", "  a\n  b"),
        ("{{ 'aab' | replace('a', 'cc') }}{{ 'aab'.replace('a', 'c', 1) }}", "ccccbcab"),
        ("{{ messages | map(attribute='content') | join('+') }}", "Hi+Hello.+Why?"),
        ("{{ '+'.join(messages | map(attribute='content')) }}", "Hi+Hello.+Why?"),
        ("{{ ' a ' | trim }}{{ 'xax' | trim(chars='x') }}{{ ' b '.strip() }}", "aab"),
        ("{{ 1.55 | round(1) }} {{ 3 | round }}", "1.6 3"),
        ("{{ [1, 2, 3] | batch(2) | list }}{{ [1, 2] | sum }}", "[[1, 2], [3]]3"),
        ("{{ 'a' ~ 1 ~ none ~ [2] }}{{ x ~ 'b' }}", "a1None[2]b"),
        ("{{ {'b': 1, 'a': 'é'} | tojson }}", '{"b": 1, "a": "é"}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true) }}", '{"a": "é", "b": 1}'),
        ("{{ ['é'] | tojson(indent=2, ensure_ascii=true) }}", '[\n  "\\u00e9"\n]'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
    ],
)
def test_operations_within_the_bounds_are_jinjas_own(source, text):
    assert render(source) == text


def test_the_length_of_a_prompt_is_bounded():
    with pytest.raises(TemplateLimitError, match="more than 8000000 characters"):
        render("{% for i in range(9999) %}" + "x" * 9999 + "{% endfor %}")


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(90000) %}" + "{% for a in r %}" * 6 + "{% endfor %}" * 6,
        "{% macro m(n) %}{% if n %}{% set a = m(n - 1) ~ m(n - 1) %}{% endif %}{% endmacro %}"
        "{% set a = m(60) %}",
    ],
)
def test_what_writes_nothing_ends_too_when_it_is_cancelled(source):
    """Loops in loops, and a macro that calls itself twice."""
    looks = itertools.count()
    template = ChatTemplate(source, bos="<s>", eos="</s>")
    with pytest.raises(Interrupted):
        template.render(TURNS, lambda: next(looks) > 1000)
    assert ChatTemplate("{{ 1 }}", bos="", eos="").render(TURNS) == "1"


def test_what_templates_expect_of_their_environment():
    """Loop controls, trimmed blocks, tojson without HTML escapes, bos and eos."""
    source = (
        "{% for m in messages %}\n"
        "{% if loop.index == 2 %}{% break %}{% endif %}\n"
        "{{ bos_token }}{{ m | tojson }}{{ eos_token }}\n"
        "{% endfor %}"
    )
    messages = [{"role": "user", "content": "a < b & 'é'"}] * 2
    assert render(source, messages) == ('<s>{"role": "user", "content": "a < b & \'é\'"}</s>\n')


def test_what_is_marked_for_training_renders_as_it_stands():
    """Variables that are set there stay there, as in Hugging Face's own rendering."""
    source = (
        "{% set x = 1 %}{% for m in messages %}"
        "{% generation %}{% set x = 2 %}{{ m.content }}{{ x }}{% endgeneration %}{{ x }}"
        "{% endfor %}"
    )
    assert render(source) == "Hi21Hello.21Why?21"


USER, SAID, AGAIN = TURNS
CUT = '{"file_path": "a'


def called(*ids, arguments=None):
    """An answer that calls `look` once for each id."""
    calls = [
        {"id": each, "name": "look", "arguments": arguments or {"at": each}} for each in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id, text):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


HISTORIES = {
    "a call that was denied": [USER, called("a"), AGAIN],
    "denied and answered": [USER, called("a"), SAID, AGAIN],
    "a result and words": [USER, called("a"), result("a", "red"), AGAIN],
    "one of two and words": [USER, called("a", "b"), result("b", "blue"), AGAIN],
    "words before a result": [USER, called("a"), AGAIN, result("a", "red")],
    "words before some calls": [
        USER, SAID, called("a"), result("a", "red"), AGAIN, called("b"), AGAIN,
    ],
    "a result of no call": [USER, SAID, result("a", "red")],
    "a result without an id": [USER, called("a"), {"role": "tool", "content": "red"}],
    "a cut call": [USER, called("a", arguments=CUT), AGAIN],
    "a cut call and a whole one": [
        USER,
        {
            **SAID,
            "tool_calls": [
                *called("a", arguments=CUT)["tool_calls"],
                *called("b")["tool_calls"],
            ],
        },
        result("a", "no JSON"),
        result("b", "blue"),
        AGAIN,
    ],
}  # fmt: skip
TOOLED = [
    path for path in sorted(TEMPLATES.glob("*.jinja")) if takes_tools(path.read_text("utf-8"))
]


@pytest.fixture(scope="module")
def prompt_of(demo_vocabulary):
    """The text of a prompt by a template, as a server makes it."""
    use = tool_use([{"name": "look"}], None, is_parallel=None)

    def make(path, messages):
        maker = PromptMaker(demo_vocabulary, path.read_text("utf-8"), think=True)
        prompt = maker.prompt(checked_messages(messages), use, may_merge=True)
        return demo_vocabulary.detokenize(prompt.tokens, special=True)

    return make


@pytest.mark.parametrize(
    "arguments", [{"città": "é"}, '{"citt\\u00e0": "\\u00e9"}', ["città", "é"], '["città", "é']
)
def test_letters_of_calls_stay_letters_where_these_become_text(arguments):
    """Whatever the way they were sent: a model reads them as people write them."""
    call = {"id": "a", "function": {"name": "look", "arguments": arguments}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    checked = checked_messages([USER, asked, AGAIN])
    text = "".join(as_text(each)["content"] for each in checked)
    assert "città" in text
    assert "é" in text
    assert "\\u" not in text


@pytest.mark.parametrize("value", [dt.date(2026, 1, 1), {"Rome"}, {("Rome", "Oslo"): 1}])
def test_arguments_that_are_not_json_are_refused(value):
    """By a plain error, and not by that of whoever writes them later."""
    call = {"id": "a", "name": "look"}
    for arguments in (value, {"at": value}):
        asked = {"role": "assistant", "tool_calls": [{**call, "arguments": arguments}]}
        with pytest.raises(OptionError, match="arguments of call 0 of message 1 are not JSON"):
            checked_messages([USER, asked, AGAIN])


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("path", TOOLED, ids=lambda path: path.stem)
def test_a_session_goes_on_behind_whatever_became_of_a_call(path, name, prompt_of):
    """No template refuses it, and all that was said and called is in the prompt."""
    prompt = prompt_of(path, HISTORIES[name])
    for message in HISTORIES[name]:
        assert (message["content"] or "") in prompt
        for call in message.get("tool_calls", ()):
            arguments = call["arguments"]
            assert (CUT if arguments == CUT else arguments["at"]) in prompt


@pytest.mark.parametrize("path", TOOLED, ids=lambda path: path.stem)
def test_results_stand_in_the_order_of_the_calls(path, prompt_of):
    """Most templates write no ids: the model takes the first result for the first call's."""
    first, second = result("rome", "sunny"), result("oslo", "snow")
    asked = [USER, called("rome", "oslo")]
    prompt = prompt_of(path, [*asked, second, first])
    assert prompt == prompt_of(path, [*asked, first, second])
    assert prompt.index("sunny") < prompt.index("snow")
    assert "no result" not in prompt
    missing = prompt_of(path, [*asked, second])
    assert missing.index("There is no result of this call.") < missing.index("snow")
    twice = prompt_of(path, [*asked, first, first, second])
    assert twice.index("sunny") < twice.index("snow") < twice.rindex("sunny")
    numbers = [{**each, "tool_call_id": at} for at, each in enumerate((first, second))]
    calls = [{**each, "id": at} for at, each in enumerate(asked[1]["tool_calls"])]
    numbered = [USER, {**asked[1], "tool_calls": calls}]
    assert prompt_of(path, [*numbered, *numbers]) == prompt_of(
        path, [*numbered, *numbers[::-1]]
    )
