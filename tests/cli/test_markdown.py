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
    """What stays of `text`, with its styles, when it comes in pieces of `size` characters."""
    parts: list[str] = []
    writer = MarkdownWriter(WrappedWriter(parts.append, lambda: width, colourful=colourful))
    for at in range(0, len(text), size):
        writer.push(text[at : at + size])
    writer.finish()
    return stays("".join(parts))


def stays(text: str) -> str:
    """A terminal's text without what was written over."""
    return re.sub(r"[^\n\r]*\r", "", text)


def shown(text: str, **more) -> str:
    """The same without styles."""
    return _STYLES.sub("", written(text, **more))


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text.", "plain text.\n"),
        ("two\nlines\n\nand more", "two\nlines\n\nand more\n"),
        ("\n\none\n\n \n\ntwo\n\n", "one\n\ntwo\n\n"),
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
        ("```py\nx = '**a**'\n\n# y\n```\nend", "── py ──\nx = '**a**'\n\n# y\n\nend\n"),
        ("~~~\n```\n~~~", "```\n\n"),
        ("So:\n```\nx\n```\n- y", "So:\n\nx\n\n• y\n"),
        ("So:\n\n```\nx\n```\n\ny", "So:\n\nx\n\ny\n"),
        ("```\nx\n```\n---\n```\ny", "x\n\n" + "─" * 40 + "\n\ny\n\n"),
        ("```\nx\n```\n| y\n~~~ c++ a=b\nz", "x\n\n| y\n\n── c++ ──\nz\n\n"),
        ("1. a\n   ```{.sh}\n   x\n\ty\n z\n   ```", "1. a\n\n── sh ──\nx\n\ty\nz\n\n"),
        ("a\n---\nb", "a\n" + "─" * 40 + "\nb\n"),
        ("a \\*b\\* \\(x\\)", "a *b* \\(x\\)\n"),
        ("1984\\. a \\- b", "1984. a - b\n"),
        ("| not a table", "| not a table\n"),
        ("", ""),
        ("- one two three four", "• one two three four\n"),
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


def test_a_table_that_is_being_written_shows_how_far_it_is():
    parts: list[str] = []
    writer = MarkdownWriter(WrappedWriter(parts.append, lambda: 80, colourful=False))
    writer.push("| a | b |\n|---|---|\n")
    assert "".join(parts).endswith("(a table, line 2 …)\r")


@pytest.mark.parametrize("width", range(10, 100, 5))
def test_a_table_keeps_its_words_whole(width):
    """In columns as wide as they must be; where those do not fit a cell is a line."""
    rows = [
        ["Language", "Typical use", "日本語の文章"],
        ["C++", "Datenverarbeitungsprogramme, games", "空白が and scientists"],
        ["Java", "servers"],
    ]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    text = shown("\n".join([lines[0], "|---|---|---|", *lines[1:]]) + "\n", width=width)
    for word in " ".join(map(" ".join, rows)).split():
        assert word in text or not word.isascii()
    if width >= 30:
        assert max(map(pyte_width, text.splitlines())) < width
    is_drawn = "┏" in text
    assert is_drawn == (width >= 10 + 8 + 27 + 10 + 1)
    if not is_drawn:
        assert "Language: C++ Typical use: Daten" in " ".join(text.split())
        assert re.search(r"\n\nLanguage:\sJava\n", text)


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


def test_without_colour_there_is_bold_and_no_colour():
    raw = written("# Head\n**b** `c` [l](a)", colourful=False)
    assert "\x1b[1m" in raw
    assert not re.search(r"\x1b\[(3[0-7]|9[0-7])m", raw)


CODE = """\
def f(x):
    \'\'\'Ask
    "for"

    more.\'\'\'
\treturn x + 0x1f  # **done**, `日本` if
"""


def runs_of(raw: str) -> list[tuple[str, str]]:
    """The styles' numbers, and the text that each is of."""
    found = re.findall(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m|([^\x1b]+)", raw, re.DOTALL)
    return [(style, text or bare) for style, text, bare in found]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_code_is_coloured_line_by_line_and_stays_as_it_is(size):
    raw = written(f"```python\n{CODE}```\n", size=size)
    assert _STYLES.sub("", raw) == f"── python ──\n{CODE}\n"
    runs = runs_of(raw)
    assert ("35", "def") in runs
    assert [text for style, text in runs if style == "32"] == [
        "\'\'\'Ask", '    "for"', "    more.\'\'\'",
    ]  # fmt: skip
    assert ("33", "0x1f") in runs
    assert ("2", "# **done**, `日本` if") in runs
    assert written(f"```python\n{CODE}```\n", colourful=False).count("\x1b[") == 2  # the label


@given(
    st.sampled_from(["python", "js", "html", "yaml", "sh", "c", "json", "diff", "php", "rb"]),
    st.text(st.sampled_from("ab0 \n\t'\"`*/-<>{}[]()#$\\:=日\u2028"), max_size=80),
    st.integers(1, 30),
)
def test_colours_never_change_the_text(language, code, size):
    text = f"````{language}\n{code}\n````"
    assert shown(text, size=size) == shown(text, colourful=False)


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


@pytest.mark.parametrize("marker", ["*a ", "`", "[", "**a", "_a"])
def test_a_line_without_end_is_written_in_time(marker):
    """Markers of which no partner comes."""
    text = "a" + marker * 1000
    assert len(written(text, size=50)) >= len(text) // 2
