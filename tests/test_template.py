"""Chat templates render as their makers meant, and can do no harm."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localspec.chat.messages import checked_messages
from localspec.chat.prompt import PromptMaker, takes_tools
from localspec.chat.template import BUILT_IN, ChatTemplate
from localspec.errors import TemplateError
from localspec.tools.tool import tool_use

TEMPLATES = Path(__file__).parent / "templates"
TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Why?"},
]
# A text that grows in each turn; one of two million characters; two things to be compared
# that are small and take 2**40 steps to go through.
GROW = (
    "{{% set ns = namespace(s='xx') %}}"
    "{{% for i in range(99) %}}{{% set ns.s = ns.{} %}}{{% endfor %}}"
)
LONG = GROW.format("s + ns.s").replace("99", "20")
NEST = (
    "{{% set ns = namespace(s=1, t=1) %}}{{% for i in range(40) %}}"
    "{{% set ns.s = {} %}}{{% set ns.t = {} %}}{{% endfor %}}{{{{ ns.s == ns.t }}}}"
)


def render(source: str, messages=TURNS) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages)


def test_chatml():
    assert render(BUILT_IN["chatml"]) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_hold_every_message_and_ask_for_an_answer(name):
    prompt = render(BUILT_IN[name])
    assert prompt.index("Hi") < prompt.index("Hello.") < prompt.index("Why?")
    assert "assistant" in prompt[-30:] or "model" in prompt[-30:]


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_templates_in_use_render(path):
    """Those of well-known models, unchanged."""
    prompt = render(path.read_text(encoding="utf-8"))
    assert prompt.index("Hi") < prompt.index("Hello.") < prompt.index("Why?")


def test_gemma():
    """As google/gemma-2-2b-it has it, but for refusing system messages."""
    assert render(BUILT_IN["gemma"]) == (
        "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
        "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n"
    )


def test_templates_that_are_in_use_render_as_by_jinja_itself():
    """With its own filters and without a meter, byte by byte."""
    free = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    free.globals["strftime_now"] = lambda form: dt.datetime.now().strftime(form)
    conversations = [
        TURNS,
        [{"role": "system", "content": " Be brief. /no_think\n"}, *TURNS],
        [*TURNS[:1], {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi "}, *TURNS],
    ]
    for path in TEMPLATES.glob("*.jinja"):
        source = path.read_text(encoding="utf-8")
        for messages in conversations:
            expected = free.from_string(source).render(
                messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
            )
            assert render(source, messages) == expected, path.stem


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ unclosed",
        "{{ 1 // 0 }}",
        "{{ messages[0].nothing.more }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% import 'os' as os %}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999999999) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 9999999999 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ '%9999999999d' % 1 }}",
        "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ " + "9" * 5000 + " }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for a in [1] %}" * 22 + "{% endfor %}" * 22,
        "x" * 300_000,
        "{{ 'x' | center(90000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ '{:900000000}'.format(1) }}",
        "{{ '%900000000d' | format(1) }}",
        "{{ (5).to_bytes(1000000000, 'big') }}",
        "{% autoescape true %}{{ messages }}{% endautoescape %}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ 'a\n' | indent(900000000, true) }}",
        "{{ namespace() }}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% set tick = 1 %}"
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}"
        "{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}"
        "{% set x = range(99999) | map('string') | join %}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}" + "A" * 9999 + "{% endfor %}{% endset %}",
        GROW.format("s ~ ns.s"),
        GROW.format("s + ns.s"),
        GROW.format("s.replace('x', 'xx')"),
        GROW.format("s | replace('x', 'xx')"),
        GROW.format("s | replace('x', 'x\\nx') | indent(99)"),
        LONG + "{% set x = ('{}' * 99).format(ns.s) %}",
        GROW.format("s.join([ns.s, ns.s])"),
        GROW.format("s | list | join(ns.s)"),
        GROW.format("s[1:] * 9"),
        LONG + "{{ range(99999) | map('string') | join(ns.s) }}",
        LONG + "{{ ns.s.strip(ns.s[1:] + 'y') }}",
        LONG + "{{ ns.s | trim(ns.s[1:] + 'y') }}",
        LONG + "{{ ns.s.rsplit('y' + ns.s) }}",
        LONG + "{{ ns.s | replace('x', '9') | int }}",
        LONG + "{% set x = range(99999) | map('string') | select('in', ns.s) | list %}",
        LONG + "{% for i in range(999) %}{% set x = ns.s[1:] %}{% endfor %}",
        NEST.format("[ns.s, ns.s]", "[ns.t, ns.t]"),
        NEST.format("(ns.s, ns.s)", "(ns.t, ns.t)"),
        NEST.format("{'a': ns.s, 'b': ns.s}", "{'a': ns.t, 'b': ns.t}"),
        NEST.format("dict(a=ns.s, b=ns.s)", "dict(a=ns.t, b=ns.t)"),
        "{% macro m() %}{% set ns.s = varargs %}{% set ns.t = kwargs %}{% endmacro %}"
        + NEST.format("ns.s", "ns.t").replace(
            "{% endfor", "{{ m(ns.s, ns.s, _a=ns.t, _b=ns.t) }}{% endfor"
        ),
    ],
)
def test_broken_and_hostile_templates_end_in_an_error(source, monkeypatch):
    """Soon, in little memory, and without effect on anything else."""
    monkeypatch.setattr("localspec.chat.sandbox.MAX_SECONDS", 1.0)
    started = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert len(str(caught.value)) < 500
    assert time.monotonic() - started < 20


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="nothing bounds a process's memory here")
def test_hostile_templates_use_little_memory(tmp_path):
    """All that grow, in a process that may have no more than a gigabyte."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from localspec.chat.template import ChatTemplate\n"
        "from localspec.errors import TemplateError\n"
        "for source in sys.stdin.read().split('\\0'):\n"
        "    try:\n"
        "        ChatTemplate(source, bos='', eos='').render([])\n"
        "    except TemplateError as error:\n"
        "        assert 'MemoryError' not in str(error), source\n"
    )
    sources = [
        "{% set x = 'a' * 1000000000 %}",
        "{% set x = [0] * 1000000000 %}",
        LONG + "{% set x = ns.s | list %}{% set y = ns.s | list %}",
        LONG + "{% set x = ns.s.split('x') %}",
        LONG + "{% set x = ns.s.replace('', ns.s) %}",
        LONG + "{% set x = [ns.s] * 99999 %}{% set x = x | tojson %}",
        LONG + "{% set x = ([ns.s] * 9) | map('upper') | list %}",
        GROW.format("s ~ ns.s"),
        NEST.format("[ns.s, ns.s]", "[ns.t, ns.t]"),
    ]
    subprocess.run(
        [sys.executable, "-c", code],
        input="\0".join(sources),
        cwd=tmp_path,  # not the checkout: the installed package is meant
        text=True,
        check=True,
    )


def test_the_error_says_what_to_do():
    with pytest.raises(TemplateError, match="must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert "chatml" in caught.value.hint


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


def test_json_with_the_options_of_its_filter():
    messages = [{"role": "é", "content": "x"}]
    for options, expected in {
        "": '{"role": "é", "content": "x"}',
        "indent=1": '{\n "role": "é",\n "content": "x"\n}',
        "separators=(',', ':')": '{"role":"é","content":"x"}',
        "sort_keys=true": '{"content": "x", "role": "é"}',
        "ensure_ascii=true": '{"role": "\\u00e9", "content": "x"}',
    }.items():
        assert render(f"{{{{ messages[0] | tojson({options}) }}}}", messages) == expected


def test_what_is_marked_for_training_renders_as_it_stands():
    """Variables that are set there stay there, as in Hugging Face's own rendering."""
    source = (
        "{% set x = 1 %}{% for m in messages %}"
        "{% generation %}{% set x = 2 %}{{ m.content }}{{ x }}{% endgeneration %}{{ x }}"
        "{% endfor %}"
    )
    assert render(source) == "Hi21Hello.21Why?21"


def test_filters_and_methods_that_templates_use():
    """With the results that Jinja documents."""
    source = (
        "{{ messages | map(attribute='role') | join('+') }} {{ ' a ' | trim }} "
        "{{ 'a-b'.split('-') | last }} {{ {'b': 1, 'a': 2} | dictsort }} {{ none ~ 1 ~ 2.5 }} "
        "{{ 'abc'[::-1] }} {{ '12' | int + 1 }} {{ 'it is' | title }} {{ 7 % 4 }} {{ 2 ** 9 }} "
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ x }}"
        "{{ 'ab'.replace('b', 'c') }} {{ 'ab' | replace('a', 'c', 1) }} {{ ', '.join('ab') }} "
        "{{ '{}-{a}'.format(1, a='x') }} "
        "{{ 'a\nb' | indent(2) }} {{ [3, 1] | sort | first }} {{ 'x' * 3 }} {{ [1] + [2] }}"
    )
    assert render(source) == (
        "user+assistant+user a b [('a', 2), ('b', 1)] None12.5 cba 13 It Is 3 512 2 "
        "ac cb a, b 1-x a\n  b 1 xxx [1, 2]"
    )


def test_a_long_conversation_stays_within_the_bounds():
    """Two million characters in five hundred turns."""
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": "word " * 800}
        for number in range(501)
    ]
    for path in TEMPLATES.glob("*.jinja"):
        assert len(render(path.read_text(encoding="utf-8"), turns)) > 2_000_000


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
    "one of two results": [USER, called("a", "b"), result("b", "blue")],
    "one of two and words": [USER, called("a", "b"), result("b", "blue"), AGAIN],
    "words before a result": [USER, called("a"), AGAIN, result("a", "red")],
    "words around a call": [USER, SAID, called("a"), result("a", "red"), SAID, AGAIN],
    "words before some calls": [
        USER, SAID, called("a"), result("a", "red"), AGAIN, called("b"), AGAIN,
    ],
    "a result of no call": [USER, SAID, result("a", "red")],
    "a result without an id": [USER, called("a"), {"role": "tool", "content": "red"}],
    "a cut call": [USER, called("a", arguments=CUT), AGAIN],
    "its result": [USER, called("a", arguments=CUT), result("a", "no JSON")],
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
