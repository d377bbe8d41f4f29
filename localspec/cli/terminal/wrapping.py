"""Wraps styled text to the width of the window."""

from __future__ import annotations

from collections.abc import Callable
from unicodedata import category

import click
from rich.cells import cell_len, get_character_cell_size
from rich.color import ColorSystem
from rich.style import Style as Style

from localspec.cli.standard_streams import num_columns, use_colour

_TAB = "    "
_JOINER = "\u200d"  # makes one emoji of those on both sides
_OPENING = ("Ps", "Pi")
_CLOSING = ("Pe", "Pf", "Po")
# Halves of flags, and skin tones: they belong to the character before them.
_JOINED = range(0x1F1E6, 0x1F200), range(0x1F3FB, 0x1F400)


class WrappedWriter:
    """Appends text to `write`; a word that does not fit starts a new line.

    The text has no control characters (`screen.printable`).

    Args:
        write: writes a text.
        width: returns the width in columns; called at every word.
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
        self._column = 0
        self._num_passing = 0  # characters of the passing text
        self._indent = ""
        self._gap = ""  # blank space before the word
        self._word: list[tuple[str, Style]] = []  # characters that no line ends between

    def start_line(self, prefix: str) -> None:
        """Start a line with `prefix`; wrapped lines are indented by its width."""
        self._write(prefix)
        self._column = cell_len(prefix)
        self._indent = " " * self._column

    def lines(self, text: str, style: Style) -> None:
        """More text, which may have several lines."""
        first, *more = text.split("\n")
        self.words(first, style)
        for line in more:
            self.newline()
            self.words(line, style)

    def words(self, text: str, style: Style) -> None:
        """More of the line, without newlines. A word is held back until it is complete."""
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

    def verbatim(self, text: str, style: Style) -> None:
        """Whole lines, not wrapped: the terminal breaks those that are too long."""
        lines = [self._styled(line, style) for line in text.split("\n")]
        self._write("\n".join(lines))

    def passing(self, text: str) -> None:
        """Show a text in place of the last one, until anything else is written there."""
        text = text[: self.width() - 1]
        self._write(f"{text:<{self._num_passing}}\r")
        self._num_passing = len(text)

    def newline(self) -> None:
        """End the line."""
        self._flush_word()
        self._write("\n")
        self._column = 0
        self._indent = ""
        self._gap = ""

    def _may_break_before(self, character: str) -> bool:
        """Whether a line may end between the last character and this one, without a space.

        It may beside a wide character, since the scripts that have these, such as Chinese, have
        no spaces. But no line starts with closing punctuation or ends with an opening bracket.
        """
        if not self._word:
            return False
        last = self._word[-1][0]
        is_joined = any(ord(character) in joined for joined in _JOINED)
        if is_joined or last == _JOINER:
            return False
        if category(character) in _CLOSING or category(last) in _OPENING:
            return False
        columns = get_character_cell_size(character)
        if columns == 0:  # it is drawn over the last one
            return False
        return columns > 1 or get_character_cell_size(last) > 1

    def _flush_word(self) -> None:
        if not self._word:
            return
        size = cell_len("".join(character for character, _ in self._word))
        # The last column stays free: terminals differ when it is filled.
        columns = max(self.width() - 1, 1)
        if self._column + len(self._gap) + size > columns and self._column > len(self._indent):
            self._write("\n" + self._indent)
            self._column = len(self._indent)
        else:
            self._write(self._gap)
            self._column += len(self._gap)
        run = ""
        style = self._word[0][1]
        for character, own in self._word:
            if own != style:
                self._write(self._styled(run, style))
                run = ""
                style = own
            run += character
        self._write(self._styled(run, style))
        self._column += size
        while self._column > columns + 1:  # the terminal has wrapped it
            self._column -= columns + 1
        self._gap = ""
        self._word = []

    def _styled(self, text: str, style: Style) -> str:
        if not self.colourful:
            style = style.without_color
        return style.render(text, color_system=ColorSystem.STANDARD)


def wrapped(text: str, width: int) -> str:
    """Plain text, wrapped to a number of columns."""
    parts: list[str] = []
    writer = WrappedWriter(parts.append, lambda: width, colourful=False)
    writer.lines(text + "\n", Style())
    return "".join(parts).removesuffix("\n")


def terminal_writer(*, err: bool) -> WrappedWriter:
    """A writer for the terminal on stdout or stderr."""
    return WrappedWriter(
        lambda text: click.echo(text, nl=False, err=err),
        lambda: num_columns(err=err),
        colourful=use_colour() is None,
    )
