"""Shows an answer while it is generated, rendered and with its thoughts."""

from __future__ import annotations

import os

from localspec.cli.conversation import ThoughtView
from localspec.cli.screen import printable
from localspec.cli.terminal.markdown import MarkdownWriter
from localspec.cli.terminal.wrapping import Style, terminal_writer
from localspec.streaming.reply import Piece


class RenderedView:
    """Markdown rendered, and thoughts as `think` says. On a dumb terminal plain text.

    text_so_far: the text so far of an answer that is continued.
    """

    def __init__(self, think: ThoughtView, text_so_far: str = "") -> None:
        self._think = think
        self._has_thought = False
        self._has_said = False
        self._blank = ""  # at the end of the thoughts so far
        self._is_plain = os.environ.get("TERM") == "dumb"
        self._out = terminal_writer(err=False)
        self._markdown = MarkdownWriter(self._out)
        self._continues = bool(text_so_far)
        if text_so_far:
            self._markdown.continue_after(printable(text_so_far))

    def push(self, piece: Piece) -> None:
        """Show one more piece."""
        text = printable(piece.text)
        if piece.is_thought:
            self._show_thought(text)
        else:
            self._show_said(text)

    def finish(self) -> None:
        """End the line."""
        if self._is_plain or not self._has_said:
            self._out.newline()
        else:
            self._markdown.finish()

    def _show_thought(self, text: str) -> None:
        if self._has_said or not self._has_thought:
            text = text.lstrip()
        if not text:
            return
        if self._has_said:
            # Some models think again, or only after they have said something.
            self.finish()
            self._markdown = MarkdownWriter(self._out)
            self._has_thought, self._has_said, self._blank = False, False, ""
        style = Style() if self._think == "show" or self._is_plain else Style(dim=True)
        if self._think == "hide":
            # At once, not held back as an unfinished word.
            self._out.verbatim("" if self._has_thought else "(thinking)", style)
            text = ""
        self._has_thought = True
        # Blank space is held back, since it may be the end of the thoughts.
        text = self._blank + text
        shown = text.rstrip()
        self._blank = text.removeprefix(shown)
        self._out.lines(shown, style)

    def _show_said(self, text: str) -> None:
        if self._continues and self._is_plain and not self._has_said:
            text = text.lstrip()
        if not text:
            return
        if self._has_thought and not self._has_said:
            # A blank line between the thoughts and the answer.
            self._out.newline()
            self._out.newline()
        self._has_said = True
        if self._is_plain:
            self._out.lines(text, Style())
        else:
            self._markdown.push(text)
