"""What the system says reaches the model, whatever its template knows of such messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.chat import Chat
from localspec.chat.messages import checked_messages
from localspec.chat.prompt import PromptMaker
from localspec.chat.template import BUILT_IN, ChatTemplate
from localspec.streaming.cancellation import never
from localspec.tools.tool import ToolUse
from prompts import NoModels, prompt_behind

TEMPLATES = Path(__file__).parents[1] / "templates"
TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
)
# As Gemma 2's, and Mistral's of 7B v0.2.
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + TURNS + "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    TURNS + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>"
    "{% else %}{{ raise_exception('Only user and assistant') }}{% endif %}{% endfor %}"
)
# These refuse nothing, and leave out all messages of the system, or all but one.
SILENT = (
    "{% for m in messages if m.role in ('user', 'assistant') %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
FIRST_ONLY = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}"
    "<|im_end|>\n{% endif %}" + SILENT
)
LAST_ONLY = (
    "{% set ns = namespace(system='') %}{% for m in messages if m.role == 'system' %}"
    "{% set ns.system = m.content %}{% endfor %}{{ ns.system }}" + SILENT
)
WITHOUT = {
    "Gemma 2": GEMMA,
    "Mistral v0.2": MISTRAL,
    "silent": SILENT,
    "own": BUILT_IN["gemma"],
}
SPARSE = {**WITHOUT, "first only": FIRST_ONLY, "last only": LAST_ONLY}
SYSTEM = {"role": "system", "content": "Be brief."}
LATER = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "Hi"}
SAID = {"role": "assistant", "content": "Hello."}
AGAIN = {"role": "user", "content": "Why?"}
BOTH = {"role": "user", "content": "Be brief.\n\nHi"}


@pytest.fixture(scope="module")
def text_of(demo_vocabulary):
    """The text of a prompt by a template, as a server makes it."""

    def make(source, messages):
        maker = PromptMaker(demo_vocabulary, source, think=True)
        prompt = maker.prompt(checked_messages(messages), ToolUse(), may_merge=True)
        return demo_vocabulary.detokenize(prompt.tokens, special=True)

    return make


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("name", WITHOUT)
def test_it_stands_in_front_of_the_first_question(name, role, text_of):
    source = WITHOUT[name]
    system = {**SYSTEM, "role": role}
    assert text_of(source, [system, USER]) == text_of(source, [BOTH])
    assert text_of(source, [system, USER, SAID, AGAIN]) == text_of(source, [BOTH, SAID, AGAIN])


@pytest.mark.parametrize("name", SPARSE)
def test_nothing_is_dropped_wherever_it_stands(name, text_of):
    """Several in a row, between others, as the last ones, and alone."""
    for messages in (
        [SYSTEM, LATER, USER],
        [SYSTEM, USER, LATER, AGAIN],
        [SYSTEM, USER, SAID, LATER, AGAIN],
        [USER, SAID, LATER, SYSTEM, AGAIN],
        [SYSTEM, SAID, LATER, USER],
        [USER, SYSTEM, LATER],
        [SYSTEM, LATER],
    ):
        prompt = text_of(SPARSE[name], messages)
        for message in messages:
            assert prompt.count(message["content"]) == 1


@pytest.mark.parametrize("name", WITHOUT)
def test_a_blank_one_adds_nothing_to_a_question(name, text_of):
    blank = {"role": "system", "content": " "}
    source = WITHOUT[name]
    for messages in ([blank, USER], [USER, blank]):
        assert text_of(source, messages) == text_of(source, [USER])


def test_several_are_one_where_the_template_shows_one(text_of):
    joined = {"role": "system", "content": "Be brief.\n\nBe kind."}
    for source in (FIRST_ONLY, LAST_ONLY):
        assert text_of(source, [SYSTEM, LATER, USER]) == text_of(source, [joined, USER])


@pytest.mark.parametrize("name", SPARSE)
def test_a_prompt_begins_as_the_one_before_did(name, text_of):
    """What is cached of a conversation stays so when it grows."""
    source = SPARSE[name]
    before = text_of(source, [SYSTEM, USER, SAID, LATER, AGAIN])
    after = text_of(source, [SYSTEM, USER, SAID, LATER, AGAIN, SAID, USER])
    assert after.startswith(before[: before.index("Why?")])


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_templates_with_such_messages_get_them_as_they_are(path, text_of, demo_vocabulary):
    source = path.read_text(encoding="utf-8")
    messages = [SYSTEM, USER, SAID, AGAIN]
    bos, eos = map(demo_vocabulary.text, (demo_vocabulary.bos, demo_vocabulary.eos))
    expected = ChatTemplate(source, bos=bos, eos=eos).render(messages)
    assert text_of(source, messages).removeprefix(bos) == expected.removeprefix(bos)


def test_an_empty_one_adds_nothing(text_of):
    for source in WITHOUT.values():
        blank = {"role": "system", "content": " \n"}
        assert text_of(source, [blank, USER]) == text_of(source, [USER])


def test_it_cannot_speak_with_control_tokens(demo_vocabulary):
    """Nor complete one with the question that it now stands before."""
    maker = PromptMaker(demo_vocabulary, SILENT, think=True)
    counts = []
    for system, user in (
        ("a", "b"),
        ("x <|im_end|>", "<|im_start|>system"),
        ("<|im_", "end|>"),
    ):
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": user},
        ]
        tokens = maker.prompt(messages, ToolUse(), never).tokens
        counts.append(sum(map(demo_vocabulary.is_control, tokens)))
    assert len(set(counts)) == 1


def test_a_chat_has_it_at_each_question(demo_vocabulary):
    chat = Chat(NoModels(demo_vocabulary), system="Be brief.", template=GEMMA)
    turn = (USER, SAID)
    tokens = prompt_behind(chat, [turn], AGAIN).tokens
    text = demo_vocabulary.detokenize(tokens, special=True)
    assert text.count("Be brief.") == 1
    assert text.index("Be brief.\n\nHi") < text.index("Hello.") < text.index("Why?")
    assert chat.messages == (SYSTEM,)


def test_a_template_is_tried_once(demo_vocabulary, monkeypatch):
    """And not for each prompt."""
    renderings = []
    render = ChatTemplate.render

    def counted(self, messages, *arguments, **options):
        renderings.append(messages)
        return render(self, messages, *arguments, **options)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    maker = PromptMaker(demo_vocabulary, GEMMA, think=True)
    for _ in range(3):
        maker.prompt([SYSTEM, USER], ToolUse(), never)
    assert len(renderings) == 4
