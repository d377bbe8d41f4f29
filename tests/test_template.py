"""Chat templates render as their makers meant, and can do no harm."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from localspec.errors import TemplateError
from localspec.template import BUILT_IN, ChatTemplate

TEMPLATES = Path(__file__).parent.parent.parent / "shared/data/templates"
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


def test_templates_in_use_are_there():
    if not TEMPLATES.is_dir():
        pytest.skip("the collection of templates is not here")
    assert len(list(TEMPLATES.glob("*.jinja"))) >= 5


def test_gemma_built_in_equals_gemmas_own():
    path = TEMPLATES / "google-gemma-2-2b-it.jinja"
    if not path.exists():
        pytest.skip("the collection of templates is not here")
    assert render(BUILT_IN["gemma"]) == render(path.read_text(encoding="utf-8"))


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
    ],
)
def test_broken_and_hostile_templates_end_in_an_error(source):
    """Soon, and without effect on anything else."""
    started = time.monotonic()
    with pytest.raises(TemplateError):
        render(source)
    assert time.monotonic() - started < 20


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
