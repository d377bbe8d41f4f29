"""Markdown on a terminal while a model writes it: text is only ever appended.

Nothing on the screen is rewritten, so that a resize, a narrow window or a slow connection
cannot leave a mess. The only exception is a few words that are shown in place of a table until
it is complete. Ambiguous text is held back: a marker until its partner or the end of the line,
a line of code until it ends, a table until it is complete. The text must have no control
characters (`screen.printable`). Text that is not Markdown is unchanged.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from localspec.cli.conversation import ThoughtView
from localspec.cli.screen import printable
from localspec.cli.terminal.wrapping import Style, WrappedWriter, terminal_writer
from localspec.streaming.reply import Piece

_RULE_COLUMNS = 40
_MAX_HELD_BACK = 400  # characters from a marker on that wait for its partner

# Constructs within a line. Emphasis does not start before a space, and "_" does not start it
# within a word. Only Markdown's own markers can be escaped: other backslashes are LaTeX.
_INLINE = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`)(?P<code_text>.+?)(?<!`)(?P=ticks)(?!`))"
    r"|\*\*(?=\S)(?P<strong>.+?)(?<=\S)\*\*(?!\*)"
    r"|(?<!\w)__(?=\S)(?P<strong_>.+?)(?<=\S)__(?!\w)"
    r"|\*(?![\s*])(?P<emphasis>[^*]*[^\s*])\*(?!\*)"
    r"|(?<!\w)_(?![\s_])(?P<emphasis_>[^_]*[^\s_])_(?!\w)"
    r"|!?\[(?P<label>[^\[\]]*)\]\((?P<address>[^()\s]*)\)"
    r"|\\(?P<escaped>[-*_`#|~.+\\])"
)
_MARKER = re.compile(r"[`*\[\\!]|(?<!\w)_")
# Text that may become one of the constructs when more text comes.
_INCOMPLETE = re.compile(
    r"`.*|\*{1,3}(?:[^\s*].*)?|_{1,2}(?:[^\s_].*)?"
    r"|!?\[[^\[\]]*(?:\](?:\([^()\s]*)?)?|!|\\"
)
# The beginning of a line that says which kind of line it is.
_START = re.compile(
    r" *(?P<fence>`{3,}|~{3,})"
    r"|(?P<heading> {0,3}#{1,6} +)"
    r"|(?P<indent> *)(?P<bullet>[-*+]|\d{1,9}[.)]) +"
    r"|(?P<quote> {0,3}(?:> ?)+)"
)
_RULE = re.compile(r" {0,3}([-*_])( *\1){2,} *")
_LANGUAGE = re.compile(r"[^\s{}=,:.][^\s{}=,:]*")  # "python", "{.python .x}", "c++ title=a"
# Text that may become one of the above when more of the line comes.
_UNDECIDED = re.compile(r" *([-*+_>#|`~ ]*|\d{1,9}[.)]?|\d{1,9}[.)] +|[-*+] +)")
# Columns of the window for the border and blanks of a table's column; the table has 1 more.
_BORDER = 3
_RULER = re.compile(r":?-+:?")  # a cell of the second row of a table
# What stays in one line of a cell. Lines may end between any two wide characters.
_WORD = re.compile(r"[^\s\u2e80-\uffff]+|\S")

PLAIN_CODE = Style(color="cyan")  # if the language is missing or unknown
# Dim, not grey: some palettes have no grey.
_STYLES = (
    ((Comment,), Style(dim=True)),
    ((Keyword, Operator.Word, Name.Tag), Style(color="magenta")),
    ((String, Generic.Inserted), Style(color="green")),
    ((Number, Name.Variable), Style(color="yellow")),
    (
        (Name.Function, Name.Class, Name.Builtin, Name.Decorator, Name.Attribute),
        Style(color="cyan"),
    ),
    ((Generic.Deleted,), Style(color="red")),
)
# Code that is added for the lexer, to close comments and strings that the text leaves open.
# Most lexers recognise a comment of several lines only by its end.
_CLOSERS = "*/ --> ]] #> -} ''' \"\"\" `\n</script></style>\nEOF\n"
_MAX_ABOVE = 2000  # characters above a line that a lexer reads again


class Highlighter:
    """Highlights the lines of one piece of code as they come.

    Args:
        language: the language as the code's fence names it, or "".
    """

    def __init__(self, language: str) -> None:
        self._lexer: Lexer | None = None
        with contextlib.suppress(ClassNotFound):
            self._lexer = get_lexer_by_name(language)
        self._above = ""  # earlier lines that a lexer has to read again

    def styled(self, lines: str) -> list[tuple[str, Style]]:
        """Cut the next whole lines into texts, each with its style."""
        if self._lexer is not None:
            try:
                runs = list(self._runs(self._lexer, lines))
            except Exception:  # a lexer may fail on any text: the code is shown without colours
                runs = []
            texts = [text for text, _ in runs]
            if "".join(texts) == lines:
                return runs
            self._lexer = None  # it has failed or changed the text: it is not used again
        return [(lines, PLAIN_CODE)]

    def _runs(self, lexer: Lexer, lines: str) -> Iterator[tuple[str, Style]]:
        """The texts of the lexer's tokens in `lines`, each with its style.

        The next call has the lexer read these lines again, and those above, if they are not
        long or end in a string or comment: it recognises more with more context.
        """
        lines_start = len(self._above)
        text = self._above + lines
        is_open = False  # whether the last token is a string or a comment, which may continue
        for position, kind, token in lexer.get_tokens_unprocessed(text + _CLOSERS):
            if position >= len(text):
                break
            is_open = kind in String or kind in Comment
            num_above = max(lines_start - position, 0)  # characters of the token before `lines`
            visible = token[num_above : len(text) - position]
            if visible:
                yield visible, _style(kind)
        self._above = ""
        if is_open or len(text) < _MAX_ABOVE:
            self._above = text


def _style(kind: Any) -> Style:
    """The style of a kind of token of Pygments."""
    for styled_kinds, style in _STYLES:
        # A kind of Pygments contains the more special kinds.
        if any(kind in styled_kind for styled_kind in styled_kinds):
            return style
    return Style()


class MarkdownWriter:
    """Writes the Markdown of an answer to a terminal as it comes."""

    def __init__(self, out: WrappedWriter) -> None:
        self._out = out
        self._width = out.width
        self._line = ""  # the current line so far
        self._is_started = False  # whether the line's kind is known and it is being written
        self._num_written = 0  # characters of the line
        self._style = Style()  # of the current line
        self._fence = ""  # the fence at the start of the current code, with its indent
        self._code = ""  # whole lines of code that are not written yet
        self._highlighter = Highlighter("")
        self._table: list[str] = []  # lines of a table that are not written yet
        self._is_after_blank = True  # whether the line above is blank or there is none
        self._is_after_code = False  # whether code has ended, and no line has followed it

    def push(self, text: str) -> None:
        """Write more of the answer, up to text that is held back."""
        while text:
            line_part, newline, text = text.partition("\n")
            self._line += line_part
            if newline:
                self._end_line()
            elif self._is_started or self._start_line():
                self._write_decided()
        self._write_code()

    def finish(self) -> None:
        """Write the text that is held back, and end the line: the answer has ended.

        A blank line follows code at the end of the answer.
        """
        if self._line or self._is_started:
            self._end_line()
        self._write_code()
        self._flush_table()
        if (self._fence or self._is_after_code) and not self._is_after_blank:
            self._out.newline()

    def _end_line(self) -> None:
        """Write the rest of the current line, whose end has come."""
        line = self._line
        is_started = self._is_started
        if not is_started and self._take_block_line(line):
            self._line = ""
            return
        if not is_started:
            self._flush_table()
            self._leave_code(line)
            if self._is_after_blank and not line.strip():
                self._line = ""  # blank lines in a row are one
                return
            self._write_prefix()
        self._write_styled(self._line, self._style, self._num_written, len(self._line))
        self._out.newline()
        self._line = ""
        self._is_started = False
        self._num_written = 0
        self._style = Style()
        self._is_after_blank = not line.strip()

    def _take_block_line(self, line: str) -> bool:
        """Write or keep a line that is code, a fence, a rule or a row of a table.

        Returns False, and does nothing, if the line is none of these.
        """
        if self._fence:
            self._add_code(line)
            return True
        if line.lstrip().startswith("|"):
            self._table.append(line)
            self._out.show_temporary(f"(a table, line {len(self._table)} …)")
            return True
        if _RULE.fullmatch(line):
            self._flush_table()
            self._leave_code(line)
            columns = min(self._width() - 1, _RULE_COLUMNS)
            self._out.write_verbatim("─" * columns + "\n", Style(dim=True))
            self._is_after_blank = False
            return True
        start = _START.match(line)
        if start and start["fence"]:
            info = line[start.end() :]
            if "`" in info:  # it is code within the line
                return False
            self._flush_table()
            self._start_code(start[0], info)
            return True
        return False

    def _start_code(self, fence: str, info: str) -> None:
        """Begin code: write its language, if there is one, with a blank line above.

        Args:
            fence: the fence with its indent.
            info: the text after the fence, which may name the language.
        """
        if not self._is_after_blank:
            self._out.newline()
        language = ""
        match = _LANGUAGE.search(info)
        if match is not None:
            language = match[0]
            self._out.write_verbatim(f"── {language} ──\n", Style(dim=True))
            self._is_after_blank = False
        self._fence = fence
        self._highlighter = Highlighter(language)

    def _add_code(self, line: str) -> None:
        """Add a line to the code that is to be written; the closing fence ends the code."""
        fence = self._fence.lstrip()
        bare = line.strip()
        has_only_marks = set(bare) == {fence[0]}
        if has_only_marks and len(bare) >= len(fence):  # the closing fence
            self._write_code()
            self._fence = ""
            self._is_after_code = True
            return
        # Code in a list is indented; the indent of its fence is not part of the code.
        num_spaces = len(line) - len(line.lstrip(" "))
        indent = len(self._fence) - len(fence)
        self._code += line[min(indent, num_spaces) :] + "\n"

    def _write_code(self) -> None:
        """Write the whole lines of code that have come since the last call."""
        lines = self._code
        self._code = ""
        if not lines:
            return
        runs = [(lines, PLAIN_CODE)]
        if self._out.colourful:
            runs = self._highlighter.styled(lines)
        for text, style in runs:
            self._out.write_verbatim(text, style)
        self._is_after_blank = False

    def _leave_code(self, line: str) -> None:
        """Write a blank line if code is followed by `line`, unless `line` is blank itself."""
        if self._is_after_code and line.strip() and not self._is_after_blank:
            self._out.newline()
        self._is_after_code = False

    def _start_line(self) -> bool:
        """Start to write the current line if its kind is already known. Returns whether it is.

        Code and tables are not started: they are written in whole lines.
        """
        if self._fence or self._line.lstrip().startswith(("|", "```", "~~~")):
            return False
        if _UNDECIDED.fullmatch(self._line):
            return False
        self._flush_table()
        self._leave_code(self._line)
        self._write_prefix()
        self._is_started = True
        return True

    def _write_prefix(self) -> None:
        """Write the line's indent and the symbol for its prefix, such as a bullet.

        This sets the line's style. The characters of indent and prefix count as written.
        """
        max_indent = self._width() // 3  # deep lists leave room for their text
        start = _START.match(self._line)
        if start is None or start["fence"]:  # such a fence begins code within the line
            self._num_written = len(self._line) - len(self._line.lstrip(" "))
            self._out.start_line(" " * min(self._num_written, max_indent))
            return
        self._num_written = start.end()
        if start["heading"]:
            self._style = Style(bold=True, color="magenta")
            self._out.start_line("")
        elif start["quote"]:
            self._style = Style(italic=True)
            self._out.start_line("│ " * start["quote"].count(">"))
        else:
            mark = start["bullet"]
            if mark in "-*+":
                mark = "•"
            indent = " " * min(len(start["indent"]), max_indent)
            self._out.start_line(f"{indent}{mark} ")

    def _write_decided(self) -> None:
        """Write the line's text up to a construct that may not be complete."""
        end = self._decided_end()
        self._write_styled(self._line, self._style, self._num_written, end)
        self._num_written = end

    def _decided_end(self) -> int:
        """The index at which the first construct begins that may not be complete.

        If there is no such construct, it is the length of the line. One that has waited for
        more than `_MAX_HELD_BACK` characters counts as text.
        """
        num_characters = len(self._line)
        complete_end = self._num_written  # constructs before this index are complete
        for marker in _MARKER.finditer(self._line, complete_end):
            start = marker.start()
            if start < complete_end:
                continue  # within a construct that is complete
            construct = _INLINE.match(self._line, start)
            if construct and construct.end() < num_characters:
                complete_end = construct.end()
                continue
            # A construct at the end of the text so far may continue: "*", then "*".
            may_continue = construct or _INCOMPLETE.fullmatch(self._line, start)
            if may_continue and num_characters - start <= _MAX_HELD_BACK:
                return start
        return num_characters

    def _write_styled(
        self,
        text: str,
        style: Style,
        start: int,
        end: int,
    ) -> None:
        """Write text[start:end] with its constructs in their styles.

        The function needs the whole text: the character before a "_" decides whether the "_" is
        a marker.
        """
        plain_start = start
        for construct in _INLINE.finditer(text, start, end):
            self._out.write_words(text[plain_start : construct.start()], style)
            plain_start = construct.end()
            self._write_construct(construct, style)
        self._out.write_words(text[plain_start:end], style)

    def _write_construct(self, construct: re.Match[str], style: Style) -> None:
        """Write a match of `_INLINE`, in a line of that style."""
        strong = construct["strong"] or construct["strong_"]
        emphasis = construct["emphasis"] or construct["emphasis_"]
        if construct["code"]:
            self._out.write_words(construct["code_text"], style + PLAIN_CODE)
        elif strong:
            self._write_styled(strong, style + Style(bold=True), 0, len(strong))
        elif emphasis:
            self._write_styled(emphasis, style + Style(italic=True), 0, len(emphasis))
        elif construct["escaped"]:
            self._out.write_words(construct["escaped"], style)
        else:
            # The address of a link is written out, so that the label cannot hide it.
            self._out.write_words(construct["label"], style + Style(color="blue"))
            self._out.write_words(f" ({construct['address']})", style)

    def _flush_table(self) -> None:
        """Write the table that is held back, if there is one. Other rows stay as they are."""
        rows = self._table
        self._table = []
        if not rows:
            return
        self._out.show_temporary("")
        self._leave_code(rows[0])
        cells = [_cells(row) for row in rows]
        lines = _table_lines(cells, self._width() - 1) or rows
        for line in lines:
            self._out.write_lines(f"{line}\n", Style())
        self._is_after_blank = False


def _cells(row: str) -> list[str]:
    """The texts of a table row's cells, without Markdown's markers."""
    inner = row.strip().removeprefix("|").removesuffix("|")
    cells = re.split(r"(?<!\\)\|", inner)  # at bars that are not escaped
    return [_INLINE.sub(_without_markers, cell.strip()) for cell in cells]


def _without_markers(construct: re.Match[str]) -> str:
    """The text of a match of `_INLINE`, without its markers."""
    if construct["address"] is not None:
        return f"{construct['label']} ({construct['address']})"
    for name in ("code_text", "strong", "strong_", "emphasis", "emphasis_"):
        if construct[name] is not None:
            return construct[name]
    return construct["escaped"]


def _table_lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table as lines for the terminal; [] if the rows are not a table.

    If the columns' longest words do not fit into `width`, every cell is a line with its
    column's name, and may be longer than `width`.

    Args:
        rows: the texts of each row's cells: the header, the ruler below it, the body.
        width: the width of the window in columns.
    """
    if len(rows) < 2:
        return []
    header, ruler, *body = rows
    if not all(map(_RULER.fullmatch, ruler)):
        return []
    if any(len(row) > len(header) for row in body):
        return []
    columns = list(zip_longest(header, *body, fillvalue=""))
    room = width - _BORDER * len(header) - 1
    sizes = _sizes(columns, room)
    if sum(sizes) > room:
        return _cell_lines(header, body)
    table = Table()
    for cell, size in zip(header, sizes, strict=True):
        # Text, because rich would read markup in a str. Fold: nothing is cut off.
        table.add_column(Text(cell), overflow="fold", width=size)
    for row in body:
        table.add_row(*map(Text, row))
    drawn = io.StringIO()
    Console(
        file=drawn,
        width=width,
        color_system=None,
    ).print(table)
    return drawn.getvalue().splitlines()


def _cell_lines(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """A line for each cell, with its column's name, and a blank line between two rows."""
    lines: list[str] = []
    for row in body:
        if lines:
            lines.append("")
        for name, cell in zip(header, row, strict=False):
            lines.append(f"{name}: {cell}")
    return lines


def _sizes(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """The widths of a table's columns, so that no word is broken.

    The widest column is made narrower until all fit, but none narrower than its longest word.

    Args:
        columns: the texts of each column's cells.
        room: the largest sum of the widths, unless the longest words need more.
    """
    min_sizes = []
    sizes = []
    for column in columns:
        words = _WORD.findall(" ".join(column))
        longest_word = max(map(cell_len, words), default=1)  # 1 if all cells are empty
        longest_cell = max(map(cell_len, column))
        min_sizes.append(longest_word)
        sizes.append(max(longest_word, min(longest_cell, room)))
    while sum(sizes) > room and sizes != min_sizes:
        shrinkable = [index for index, size in enumerate(sizes) if size > min_sizes[index]]
        widest = max(shrinkable, key=sizes.__getitem__)
        sizes[widest] -= 1
    return sizes


class RenderedView:
    """Shows an answer as rendered Markdown, and its thoughts in one of three ways.

    Args:
        think: "show" for thoughts like other text, "dim" for dimmed ones, "hide" for a word in
            their place.
    """

    def __init__(self, think: ThoughtView) -> None:
        self._think = think
        self._has_thoughts = False  # whether thoughts were shown before the answer's text
        self._has_answer = False  # whether text of the answer was shown
        self._trailing_blank = ""  # blank space at the end of the thoughts so far, not shown
        self._out = terminal_writer(err=False)
        self._markdown = MarkdownWriter(self._out)

    def push(self, piece: Piece) -> None:
        """Show one more piece."""
        text = printable(piece.text)
        if piece.is_thought:
            self._show_thought(text)
        else:
            self._show_answer(text)

    def finish(self) -> None:
        """Write the text that is held back, and end the line."""
        if self._has_answer:
            self._markdown.finish()
        else:
            self._out.newline()

    def _show_thought(self, text: str) -> None:
        """Show thoughts as `think` says. After text of the answer they start a new line."""
        if self._has_answer or not self._has_thoughts:
            text = text.lstrip()
        if not text:
            return
        if self._has_answer:
            # Some models think again, or only after some text.
            self.finish()
            self._markdown = MarkdownWriter(self._out)
            self._has_thoughts = False
            self._has_answer = False
            self._trailing_blank = ""
        is_dim = self._think != "show"
        style = Style(dim=is_dim)
        if self._think == "hide":
            if not self._has_thoughts:
                # Written at once: `write_lines` would hold it back as an unfinished word.
                self._out.write_verbatim("(thinking)", style)
            text = ""
        self._has_thoughts = True
        # Blank space is held back, since it may be the end of the thoughts.
        text = self._trailing_blank + text
        shown = text.rstrip()
        self._trailing_blank = text.removeprefix(shown)
        self._out.write_lines(shown, style)

    def _show_answer(self, text: str) -> None:
        """Show text of the answer, with a blank line between it and thoughts."""
        if not text:
            return
        if self._has_thoughts and not self._has_answer:
            self._out.newline()
            self._out.newline()
        self._has_answer = True
        self._markdown.push(text)
