"""Thoughts and speech, however the answer was cut into pieces."""

from __future__ import annotations

import pytest

from localspec.streaming.thinking import Part, Thoughts, ThoughtStream, without_thoughts
from localspec.streaming.thought_families import families_of

USUAL = Thoughts(families_of("", ()))

# Parts of the templates that name the marks, and what follows the prompt's last words.
GPT_OSS = "'<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>'"
MUSE = "'<|start|>assistant to=self<|message|>' + message.reasoning_content + '<|eom|>'"
SOLAR = "'<|begin|>assistant<|content|>' + message.content + '<|end|>'"
GEMMA = "text.split('<channel|>') '<|channel>thought\n'"
COHERE2 = "<|START_THINKING|><|END_THINKING|> <|START_TEXT|>{{message.content}}<|END_TEXT|>"
APERTUS = "set inner_token = '<|inner_prefix|>' set outer_token = '<|inner_suffix|>'"
KIMI = "'<|open|>' + tag + '<|sep|>' '<|close|>' '<|end_of_msg|>'"
GRANITE = (
    "your thoughts between <think></think> and your response between <response></response>"
)
APRIEL = "Here are my reasoning steps:\n asst_text.split('[BEGIN FINAL RESPONSE]')[-1]"
HUNYUAN = "'<think{}>'.format(':opensource')"


def split(text: str, thoughts: Thoughts, size: int) -> tuple[str, str]:
    """What was thought and said in all, from pieces of `size` characters."""
    stream = ThoughtStream(thoughts)
    parts = [
        part for at in range(0, len(text), size) for part in stream.push(text[at : at + size])
    ]
    parts += stream.finish()
    assert stream.finish() == []
    return (
        "".join(part.text for part in parts if part.is_thought),
        "".join(part.text for part in parts if not part.is_thought),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "prompt", "thought", "said"),
    [
        ("Hello", "", "", "Hello"),
        ("", "", "", ""),
        (" \n", "", "", " \n"),
        ("<think>\nHm.\n</think>\n\nHello", "", "\nHm.\n", "Hello"),
        ("\n <think>a</think>b", "", "a", "b"),
        ("a < b </ c</think>\nd", "assistant\n<think>\n", "a < b </ c", "d"),
        ("never ends </thi", "<think>", "never ends </thi", ""),
        ("<thinking>a</think>b</thinking>c", "", "a</think>b", "c"),
        ("Write <think>x</think> in XML", "", "", "Write <think>x</think> in XML"),
        ("<thin ice", "", "", "<thin ice"),
        ("<think>a</think>b<think>c</think>", "", "a", "b<think>c</think>"),
        ("</think>b", "<think>\n\n</think>\n\n", "", "b"),
        ("a <|channel|> b", "", "", "a <|channel|> b"),
    ],
)
def test_an_answer_is_split_where_its_thoughts_end(text, prompt, thought, said, size):
    """A tag that is cut in two is one, and no character is lost."""
    assert split(text, USUAL.after(prompt), size) == (thought, said)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("template", "prompt", "text", "thought", "said"),
    [
        # llama.cpp's tests/test-chat.cpp expects the same of these.
        (
            GPT_OSS,
            "<|start|>assistant",
            "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm<|end|>"
            "<|start|>assistant<|channel|>final <|constrain|>json<|message|>{}",
            "Hm",
            "{}",
        ),
        (
            GPT_OSS,
            "<|start|>assistant",
            "<|channel|>analysis<|message|>Hm <|end|><|start|>assistant"
            "<|channel|>commentary to=python <|constrain|>code<|message|>print()",
            "Hm print()",
            "",
        ),
        (
            MUSE,
            "<|start|>assistant",
            " to=self<|message|>Hm<|eom|><|start|>assistant to=user<|message|>Hi",
            "Hm",
            "Hi",
        ),
        (
            SOLAR,
            "<|begin|>assistant",
            "<|think|>Hm<|end|><|begin|>assistant<|content|>Hi<|end|>",
            "Hm",
            "Hi",
        ),
        (
            GEMMA,
            "<|turn>model\n",
            "Hello<|channel>thought\n<channel|><channel|>",
            "\n",
            "Hello",
        ),
        (
            COHERE2,
            "<|CHATBOT_TOKEN|><|START_THINKING|>",
            "I'm\nthinking<|END_THINKING|><|START_TEXT|>Hello<|END_TEXT|>",
            "I'm\nthinking",
            "Hello",
        ),
        (APERTUS, "", "<|inner_prefix|>Hm<|inner_suffix|>Hello", "Hm", "Hello"),
        (
            KIMI,
            '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
            "Hm<|close|>think<|sep|><|open|>response<|sep|>Hello<|close|>response<|sep|>"
            "<|close|>message<|sep|>",
            "Hm",
            "Hello",
        ),
        (
            GRANITE,
            "<|end_of_role|>",
            "<think>Hm</think>\n<response>Hello</response>",
            "Hm",
            "Hello",
        ),
        (
            APRIEL,
            "<|begin_assistant|>\nHere are my reasoning steps:\n",
            "Hm\n[BEGIN FINAL RESPONSE]\nHello",
            "Hm\n",
            "Hello",
        ),
    ],
)
def test_each_family_marks_thoughts_in_its_way(template, prompt, text, thought, said, size):
    thoughts = Thoughts(families_of(template, ()))
    assert split(text, thoughts.after(prompt), size) == (thought, said)


def test_the_vocabulary_tells_the_family_where_the_template_does_not():
    found = families_of("<|im_start|>", ["<|im_start|>", "[INST]", "[THINK]", "[/THINK]"])
    assert [family.signs for family in found] == [("[/THINK]",)]
    found = families_of(HUNYUAN, ["<think:opensource>", "</think:opensource>"])
    assert [family.signs for family in found] == [("</think:opensource>",)]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("text", ["Hello.", "Hello. " * 60])
def test_a_model_that_names_no_channel_is_heard(text, size):
    """Fine-tunes leave the heads out: short or long, nothing of it is lost."""
    thoughts = Thoughts(families_of(GPT_OSS, ())).after("<|start|>assistant")
    assert split(text, thoughts, size) == ("", text)


@pytest.mark.parametrize(
    ("template", "answer", "rest"),
    [
        ("", "<think>\nHm.\n</think>\n\nHello", "Hello"),
        (GEMMA, "<|channel>thought\nHm.<channel|>Hello", "Hello"),
        ("", "Hello <think>", "Hello <think>"),
        ("", " Hello\n", " Hello\n"),
        (GPT_OSS, "<|start|> begins a message.", "<|start|> begins a message."),
    ],
)
def test_answers_from_elsewhere_come_without_their_thoughts(template, answer, rest):
    assert without_thoughts(answer, families_of(template, ())) == rest


def test_speech_does_not_wait_where_no_mark_can_follow():
    stream = ThoughtStream(USUAL)
    assert stream.push("a <") == [Part("a <", is_thought=False)]
    assert stream.push("thi") == [Part("thi", is_thought=False)]
