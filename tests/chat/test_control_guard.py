"""What a message says never becomes a control token, and is said all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import localspec
from examples import num_examples
from gguf_maker import write_spm_model
from prompts import prompt_behind

PLAIN = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


@pytest.fixture(scope="module")
def demo():
    with localspec.load() as opened:
        yield opened


def prompt_of(engine, text, template=PLAIN):
    """Token ids of the prompt in which the message says `text`."""
    chat = engine.chat(template=template)
    return prompt_behind(chat, [], {"role": "user", "content": text}).tokens


def control_tokens(engine, tokens):
    return [token for token in tokens if engine.vocabulary.is_control(token)]


def said(engine, tokens):
    return b"".join(map(engine.vocabulary.piece, tokens)).decode()


# Marks as the vocabularies of the families have them, where libllama always cuts them out of a
# text: it calls them user-defined, because the file says so or it does itself.
GPT_OSS = (
    "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>",
    "<|return|>",
)  # fmt: skip
MARKS = (
    "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[THINK]", "[/THINK]",  # Mistral
    "<|channel>", "<channel|>", "<|tool_call>", '<|"|>',  # Gemma 4
    "<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",  # Command-R
    "<|User|>", "<\uff5cAssistant\uff5c>", "<pad>",  # DeepSeek
    "<start_of_turn>", "<unused1>", "[@BOS@]",  # Gemma 2
    "<think>", "</think>", "<tool_call>",  # Qwen 3
    ">>TITLE<<", "[|endofturn|]", "]~b]", "|||EMAIL_ADDRESS|||", "<0>",  # others
)  # fmt: skip


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """A vocabulary with all of them. libllama changes the types of gpt-oss's itself."""
    path = tmp_path_factory.mktemp("marked") / "model.gguf"
    write_spm_model(path, control=GPT_OSS, user_defined=MARKS)
    with localspec.load(target=path) as engine:
        yield engine


@pytest.mark.parametrize("text", GPT_OSS + MARKS)
def test_a_message_cannot_speak_with_them(marked, text):
    """In its midst, at its edges, doubled, and where the template completes them."""
    for message in (f"a {text}b", text, text * 2, text[1:], text[:-1]):
        template = f"<|start|>{text[0]}{{{{ messages[0].content }}}}{text[-1]}<|end|>"
        tokens = prompt_of(marked, message, template)
        steering = [marked.vocabulary.text(token) for token in control_tokens(marked, tokens)]
        assert steering == ["<s>", "<|start|>", "<|end|>"]
        spellings = marked.vocabulary.spellings()
        spelled = b"".join(spellings[token] for token in tokens).decode()
        assert spelled.replace(" ", "") == (
            f"<s><|start|>{text[0]}{message}{text[-1]}<|end|>".replace(" ", "")
        )


@settings(max_examples=num_examples(150))
@given(
    st.text("<|>im_startend o\n", max_size=40)
    | st.lists(
        st.sampled_from(["<|im_end|>", "<|im_", "start|>", "<|endoftext|>", "<", ">", "1", " "])
    ).map("".join)
)
def test_any_message_is_said_and_steers_nothing(demo, text):
    harmless = control_tokens(demo, prompt_of(demo, "x", None))
    tokens = prompt_of(demo, text, None)
    assert control_tokens(demo, tokens) == harmless
    assert said(demo, tokens) == f"user\n{text}\nassistant\n"


@settings(max_examples=num_examples(100))
@given(st.text(st.characters(exclude_characters="<>|", exclude_categories=["Cs"])))
def test_a_message_without_such_text_is_tokenised_with_its_surroundings(demo, text):
    rendered = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    expected = demo.vocabulary.tokenize(rendered, parse_special=True)
    assert prompt_of(demo, text, None) == expected


# As NVIDIA's Nemotron Nano v2 does it: a switch in a message, which is then cut out of it.
NEMOTRON = (
    "{% set ns = namespace(think=true) %}{% for m in messages %}"
    "{% if '/think' in m.content %}{% set ns.think = true %}"
    "{% elif '/no_think' in m.content %}{% set ns.think = false %}{% endif %}{% endfor %}"
    "{% for m in messages %}<SPECIAL_11>{{ m.role | title }}\n"
    "{{ m.content.replace('/think', '').replace('/no_think', '').strip() }}\n{% endfor %}"
    "<SPECIAL_11>Assistant\n{{ '<think>' if ns.think else '<think></think>' }}"
)
SWITCHES = [
    "<", ">", " ", "SPECIAL_", "1", "0", "2", "/", "think", "no_", "/think", "/no_think",
]  # fmt: skip
SMOLLM3 = (Path(__file__).parents[1] / "templates/HuggingFaceTB-SmolLM3-3B.jinja").read_text()


@pytest.fixture(scope="module")
def cutting(tmp_path_factory):
    """A vocabulary with the control tokens of templates that cut."""
    path = tmp_path_factory.mktemp("cutting") / "model.gguf"
    names = (*(f"<SPECIAL_{number}>" for number in (10, 11, 12)), "<think>", "</think>")
    write_spm_model(path, control=(*names, "<|im_start|>", "<|im_end|>"))
    with localspec.load(target=path) as engine:
        yield engine


def steering(engine, tokens):
    return [engine.vocabulary.text(token) for token in control_tokens(engine, tokens)][1:]


@pytest.mark.parametrize("beside", ["", " <b>", " <SPECIAL_/think12> "])
def test_a_switch_in_a_message_still_works(cutting, beside):
    """Though it brings control texts of the template's own, and beside what is hidden."""
    for text in ("/no_think Be brief", f"{beside} /no_think Be brief"):
        tokens = cutting.chat(system=text, template=SMOLLM3).prompt_tokens("hi")
        assert steering(cutting, tokens)[-2:] == ["<think>", "</think>"]
        assert "Be brief" in said(cutting, tokens)
        assert "/no_think Be" not in said(cutting, tokens)


@settings(max_examples=num_examples(100))
@given(st.lists(st.sampled_from(SWITCHES)).map("".join))
def test_no_message_steers_through_a_template_that_cuts(cutting, text):
    found = steering(cutting, prompt_of(cutting, text, NEMOTRON))
    own = ["<SPECIAL_11>", "<SPECIAL_11>", "<think>"]
    assert found in (own, [*own, "</think>"])


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    """A vocabulary that puts a space before texts, and merges the parts of "</s>"."""
    path = tmp_path_factory.mktemp("spm") / "model.gguf"
    with localspec.load(target=write_spm_model(path, more=("</", "s>", "ab"))) as engine:
        yield engine


@pytest.mark.parametrize(
    "text", ["a</s>b", "</s>", "ends<", "</s></s>", "a <s> b", "<unk>", "s>"]
)
def test_no_space_is_put_where_a_message_is_cut(spm, text):
    """And none of its parts are merged into what was to be avoided."""
    template = "[{{ messages[0].content }}]<s>{{ messages[0].content }}"
    bos, *tokens = prompt_of(spm, text, template)
    assert bos == spm.vocabulary.bos
    assert control_tokens(spm, tokens) == [bos]
    # What begins a text gets its space: the first, and the one after <s>.
    assert said(spm, tokens) == f" [{text}] {text}"
