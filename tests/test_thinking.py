"""Thoughts and speech, however the answer was cut into pieces."""

from __future__ import annotations

import pytest

from localspec.thinking import ThoughtStream, opened_by, tags_of, without_thoughts

TAGS = tags_of("")


def split(text: str, closing: str | None, size: int) -> tuple[str, str]:
    """What was thought and said in all, from pieces of `size` characters."""
    stream = ThoughtStream(TAGS, closing)
    parts = [stream.push(text[at : at + size]) for at in range(0, len(text), size)]
    parts.append(stream.finish())
    return "".join(part.thought for part in parts), "".join(part.said for part in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "closing", "thought", "said"),
    [
        ("Hello", None, "", "Hello"),
        ("", None, "", ""),
        ("<think>\nHm.\n</think>\n\nHello", None, "\nHm.\n", "Hello"),
        ("\n <think>a</think>b", None, "a", "b"),
        ("[THINK]a[/THINK]b", None, "a", "b"),
        ("a < b </ c</think>\nd", "</think>", "a < b </ c", "d"),
        ("never ends </thi", "</think>", "never ends </thi", ""),
        ("<thinking>a</think>b</thinking>c", None, "a</think>b", "c"),
        ("Write <think>x</think> in XML", None, "", "Write <think>x</think> in XML"),
        ("<thin ice", None, "", "<thin ice"),
        ("  <thi", None, "", "  <thi"),
        ("<think></think>", None, "", ""),
        ("<think>a</think>b<think>c</think>", None, "a", "b<think>c</think>"),
    ],
)
def test_an_answer_is_split_where_its_thoughts_end(text, closing, thought, said, size):
    """A tag that is cut in two is one, and no character is lost."""
    assert split(text, closing, size) == (thought, said)
    assert without_thoughts(text, ThoughtStream(TAGS, closing)) == said


def test_the_tags_are_those_that_the_template_names():
    assert tags_of("{{ content.split('</think>')[-1] }}") == (("<think>", "</think>"),)
    assert len(tags_of("no tag")) > 2


def test_a_prompt_can_open_the_thoughts():
    assert opened_by("<|im_start|>assistant\n<think>\n", TAGS) == "</think>"
    assert opened_by("<think>\n\n</think>\n\n", TAGS) is None
