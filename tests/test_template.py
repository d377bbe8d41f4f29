"""Chat templates render as their makers meant, and can do no harm."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localspec.chat.messages import checked_messages
from localspec.chat.prompt import PromptMaker, takes_tools
from localspec.chat.template import BUILT_IN, ChatTemplate
from localspec.errors import TemplateError, TemplateLimitError
from localspec.tools.tool import tool_use

TEMPLATES = Path(__file__).parent / "templates"
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
        "{{ messages.append(1) }}",
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


def test_the_length_of_a_prompt_is_bounded():
    with pytest.raises(TemplateLimitError, match="more than 8000000 characters"):
        render("{% for i in range(9999) %}" + "x" * 9999 + "{% endfor %}")


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
