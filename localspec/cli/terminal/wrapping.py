"""Wraps styled text to the width of the window."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from unicodedata import category

import click
from rich.cells import cell_len, get_character_cell_size
from rich.color import ColorSystem
from rich.style import Style as Style

from localspec.cli.standard_streams import num_columns, use_colour

_TAB = "    "
_JOINER = "\u200d"  # makes one emoji of the two beside it
# Unicode categories of opening brackets and quotes, and of closing ones and other punctuation.
_OPENING = ("Ps", "Pi")
_CLOSING = ("Pe", "Pf", "Po")
# Code points of halves of flags, and of skin tones: they belong to the character before them.
_JOINED = range(0x1F1E6, 0x1F200), range(0x1F3FB, 0x1F400)


class WrappedWriter:
    """Writes text in lines of the window's width; a word that does not fit starts a new line.

    The text must have no control characters (`screen.printable`).

    Args:
        write: writes a text to the terminal.
        width: returns the width of the window in columns; called at every word.
        colourful: whether styles may have colours.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        width: Callable[[], int],
        *,
        colourful: bool,
    ) -> None:
        self.width = width
        self.colourful = colourful
        self._write = write
        self._column = 0  # columns of the line that are written
        self._num_temporary = 0  # characters of the temporary text
        self._indent = ""  # what a wrapped line begins with
        self._gap = ""  # blank space before the word
        self._word: list[tuple[str, Style]] = []  # characters that stay in one line

    def start_line(self, prefix: str) -> None:
        """Start a line with `prefix`; wrapped lines are indented by its width."""
        self._write(prefix)
        self._column = cell_len(prefix)
        self._indent = " " * self._column

    def write_lines(self, text: str, style: Style) -> None:
        """Write more text, which may have newlines. The line that it ends in stays open."""
        first, *more = text.split("\n")
        self.write_words(first, style)
        for line in more:
            self.newline()
            self.write_words(line, style)

    def write_words(self, text: str, style: Style) -> None:
        """Write more of the line, without newlines. Holds a word back until it is complete."""
        for character in text:
            if character == " ":
                self._flush_word()
                self._gap += " "
            elif character == "\t":
                self._flush_word()
                self._gap += _TAB
            else:
                if self._may_break_before(character):
                    self._flush_word()
                self._word.append((character, style))

    def write_verbatim(self, text: str, style: Style) -> None:
        """Write whole lines unwrapped: the terminal breaks those that are too long."""
        lines = [self._styled(line, style) for line in text.split("\n")]
        self._write("\n".join(lines))

    def show_temporary(self, text: str) -> None:
        """Show a text at the start of the line, in place of the last such text.

        Whatever is written next overwrites it; "" removes it.
        """
        text = text[: self.width() - 1]
        self._write(f"{text:<{self._num_temporary}}\r")  # blanks cover a longer text
        self._num_temporary = len(text)

    def newline(self) -> None:
        """End the line."""
        self._flush_word()
        self._write("\n")
        self._column = 0
        self._indent = ""
        self._gap = ""

    def _may_break_before(self, character: str) -> bool:
        """Whether a line may end, without a space, between the word so far and a character.

        A line may end beside a wide character: scripts that have these, such as Chinese, have
        no spaces. But no line starts with closing punctuation or ends with an opening bracket.
        """
        if not self._word:
            return False
        previous, _ = self._word[-1]
        is_joined = any(ord(character) in code_points for code_points in _JOINED)
        if is_joined or previous == _JOINER:
            return False
        if category(character) in _CLOSING or category(previous) in _OPENING:
            return False
        columns = get_character_cell_size(character)
        if columns == 0:  # it is drawn over the previous character
            return False
        return columns > 1 or get_character_cell_size(previous) > 1

    def _flush_word(self) -> None:
        """Write the word that is held back, if any; on a new line if it does not fit."""
        if not self._word:
            return
        size = cell_len("".join(character for character, _ in self._word))
        # The last column stays free: terminals differ in what they do once it is filled. A
        # window less an indent may have no column.
        columns = max(self.width() - 1, 1)
        is_too_long = self._column + len(self._gap) + size > columns
        if is_too_long and self._column > len(self._indent):
            self._write("\n" + self._indent)
            self._column = len(self._indent)
        else:
            self._write(self._gap)
            self._column += len(self._gap)
        for style, characters in groupby(self._word, key=itemgetter(1)):
            text = "".join(character for character, _ in characters)
            self._write(self._styled(text, style))
        self._column += size
        while self._column > columns + 1:  # the terminal has broken a word longer than a line
            self._column -= columns + 1
        self._gap = ""
        self._word = []

    def _styled(self, text: str, style: Style) -> str:
        """The text with the escape sequences of a style."""
        if not self.colourful:
            style = style.without_color
        return style.render(text, color_system=ColorSystem.STANDARD)


def wrapped(text: str, width: int) -> str:
    """Plain text, with line ends so that it fits into a number of columns."""
    parts: list[str] = []
    writer = WrappedWriter(parts.append, lambda: width, colourful=False)
    writer.write_lines(text + "\n", Style())
    return "".join(parts).removesuffix("\n")


def terminal_writer(*, err: bool) -> WrappedWriter:
    """A writer for the terminal on stdout or stderr."""
    return WrappedWriter(
        lambda text: click.echo(text, nl=False, err=err),
        lambda: num_columns(err=err),
        colourful=use_colour() is None,
    )
