"""Markdown as it streams: what a terminal shows, whatever the pieces and the width are."""

from __future__ import annotations

import re

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.cli.screen import printable
from localspec.cli.terminal.markdown import MarkdownWriter
from localspec.cli.terminal.wrapping import WrappedWriter

_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def written(text: str, *, width: int = 80, size: int = 1, colourful: bool = True) -> str:
    """Everything that is written for `text` when it comes in pieces of `size` characters."""
    parts: list[str] = []
    writer = MarkdownWriter(WrappedWriter(parts.append, lambda: width, colourful=colourful))
    for at in range(0, len(text), size):
        writer.push(text[at : at + size])
    writer.finish()
    return "".join(parts)


def shown(text: str, **more) -> str:
    """The same without styles."""
    return _STYLES.sub("", written(text, **more))


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text.", "plain text.\n"),
        ("two\nlines\n\nand more", "two\nlines\n\nand more\n"),
        ("**bold**, *it*, `code`, __b__, _i_", "bold, it, code, b, i\n"),
        ("***both*** and **a *b* c**", "both and a b c\n"),
        ("2 * 3 * 4, snake_case_name, a_b_", "2 * 3 * 4, snake_case_name, a_b_\n"),
        ("snake_case_ x and _it_.", "snake_case_ x and it.\n"),
        ("**never closed, `nor this", "**never closed, `nor this\n"),
        ("`**code**` and ``a`b``", "**code** and a`b\n"),
        ("wow! [1] is no link!", "wow! [1] is no link!\n"),
        ("# Head\ntext", "Head\ntext\n"),
        ("#no head", "#no head\n"),
        ("- one\n- **two**\n  - three\n* four", "• one\n• two\n  • three\n• four\n"),
        ("1. one\n2) two\n10. ten", "1. one\n2) two\n10. ten\n"),
        ("-5 degrees\n1.5 m\n1984", "-5 degrees\n1.5 m\n1984\n"),
        ("> said\n>> again", "│ said\n│ │ again\n"),
        ("```py\nx = '**a**'\n\n# y\n```\nend", "x = '**a**'\n\n# y\nend\n"),
        ("~~~\n```\n~~~", "```\n"),
        ("a\n---\nb", "a\n" + "─" * 40 + "\nb\n"),
        ("a \\*b\\* \\(x\\)", "a *b* \\(x\\)\n"),
        ("1984\\. a \\- b", "1984. a - b\n"),
        ("| not a table", "| not a table\n"),
        ("", ""),
    ],
)
def test_what_is_shown_does_not_depend_on_the_pieces(text, expected, size):
    assert shown(text, size=size) == expected


def test_words_come_as_soon_as_they_are_whole():
    """Only what may still become something else waits."""
    parts: list[str] = []
    writer = MarkdownWriter(WrappedWriter(parts.append, lambda: 80, colourful=False))
    seen = []
    for piece in ("Hello wor", "ld! Is ", "**it** **open", " still** or", " not\n"):
        writer.push(piece)
        seen.append(_STYLES.sub("", "".join(parts)))
    assert seen == [
        "Hello",
        "Hello world! Is",
        "Hello world! Is it",
        "Hello world! Is it open still",
        "Hello world! Is it open still or not\n",
    ]


def test_a_link_shows_where_it_leads():
    """As text: no hyperlink of the terminal, whose label could pretend another target."""
    raw = written("See [https://bank.example](https://evil.example/x).")
    assert _STYLES.sub("", raw) == "See https://bank.example (https://evil.example/x).\n"
    assert "\x1b]" not in raw


def test_richs_markup_is_text():
    table = (
        "| [red]a[/red] | [link=https://evil.example]b[/link] |\n|---|---|\n| [bold]c | d |\n"
    )
    for text in ("[red]x[/red] [link=https://evil.example]b[/link]", table):
        raw = written(text)
        assert "\x1b[31m" not in raw
        assert "\x1b]8" not in raw
        for word in ("[red]", "[link=https://evil.example]"):
            assert word in raw


def test_a_table_is_drawn_when_it_is_whole():
    drawn = shown("| a | **b** |\n|---|:-:|\n| 日本 | x \\| y |\nafter").splitlines()
    assert len({pyte_width(line) for line in drawn[:-1]}) == 1
    assert any("日本" in line and "x" in line for line in drawn)
    assert drawn[-1] == "after"
    narrow = "| a | b | c |\n|---|---|---|\n| d | e | f |\n"
    assert shown(narrow, width=12) == narrow


def pyte_width(line: str) -> int:
    """Columns that a terminal needs for the line."""
    screen = pyte.Screen(200, 2)
    pyte.Stream(screen).feed(line)
    return screen.cursor.x


@pytest.mark.parametrize("width", [10, 40, 80])
@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox jumps over the lazy dog. " * 5,
        "日本語の文章には空白がありません。" * 6,
        "👩\u200d🚀 and 🇩🇪 and 👍🏽 and cafe\u0301 " * 6,
        "- a long point of a list that goes on and on\n  - and one below it, longer still",
    ],
)
def test_no_line_is_wider_than_the_window(text, width):
    for line in shown(text, width=width).splitlines():
        assert pyte_width(line) <= width
    assert "".join(shown(text, width=width).split()) == "".join(text.replace("- ", "•").split())


def test_wrapped_lines_of_a_point_are_indented():
    assert shown("- one two three four", width=12) == "• one two\n  three four\n".replace(
        "three four", "three\n  four"
    )


def test_without_colour_there_is_bold_and_no_colour():
    raw = written("# Head\n**b** `c` [l](a)", colourful=False)
    assert "\x1b[1m" in raw
    assert not re.search(r"\x1b\[(3[0-7]|9[0-7])m", raw)


@given(st.text(st.sampled_from("ab *_`[]()!\\\n#>-|1.~日\u200d👩\x1b\r\u202e"), max_size=60))
def test_nothing_is_lost_and_nothing_is_obeyed(text):
    """Letters come out in order; the only control codes are those of styles."""
    raw = written(printable(text), width=20, size=3)
    bare = _STYLES.sub("", raw)
    assert bare.replace("\n", "").replace("\x1b", "?").isprintable() or "\u200d" in bare
    assert "\x1b" not in bare
    letters = [c for c in text if c in "ab日👩"]
    fence = re.search(r"^ *(```|~~~)", text, re.MULTILINE)  # what follows it is a language
    if not fence:
        assert [c for c in bare if c in "ab日👩"] == letters


def test_a_line_without_end_is_written_in_time():
    """Markers of which no partner comes."""
    for text in (
        "*a " * 20_000,
        "a" + "`" * 20_000,
        "[" * 20_000,
        "**a" * 20_000,
        "_a" * 20_000,
    ):
        assert len(written(text, size=50)) >= len(text) // 2
