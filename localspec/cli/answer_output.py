"""Writes an answer to stdout while it is generated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from localspec.cli.screen import counted, mark, note, printable
from localspec.cli.signal_handlers import cancel_on_interrupt
from localspec.cli.standard_streams import is_terminal

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine
    from localspec.streaming.answer import Answer
    from localspec.streaming.reply import Piece, Reply


class PlainView:
    """Shows an answer as text on stdout, with control characters made visible.

    Its thoughts go to stderr; if both are terminals, all goes to stdout, where one writer wraps
    it.

    Args:
        show_draft: whether each token is marked by its provenance.
    """

    def __init__(self, *, show_draft: bool) -> None:
        self._show_draft = show_draft
        self._write_answer = text_writer(err=False)
        self._write_thought = self._write_answer
        self._share_terminal = is_terminal(sys.stdout) and is_terminal(sys.stderr)
        if not self._share_terminal:
            self._write_thought = text_writer(err=True)
        self._was_thought: bool | None = None  # of the last piece; None before the first

    def push(self, piece: Piece) -> None:
        """Show one more piece."""
        if not piece.text:
            return
        is_first = self._was_thought is None
        changes_kind = not is_first and self._was_thought != piece.is_thought
        # Thoughts end with their line. The answer's line ends before thoughts only if both are
        # on one terminal.
        if changes_kind and (self._was_thought or self._share_terminal):
            self._write_thought("\n", None)
        self._was_thought = piece.is_thought
        text = printable(piece.text)
        colour = None
        if self._show_draft:
            text, colour = mark(text, piece.provenance)
        if piece.is_thought:
            self._write_thought(text, colour)
        else:
            self._write_answer(text, colour)

    def finish(self) -> None:
        """End the last line, also that of thoughts on stderr."""
        if self._was_thought and not self._share_terminal:
            self._write_thought("\n", None)
        self._write_answer("\n", None)


def write_answer(answer: Answer, *, show_draft: bool) -> Reply:
    """Print an answer as it comes, and return its reply.

    Ctrl-C stops the answer; its text so far is kept.
    """
    view = PlainView(show_draft=show_draft)
    with cancel_on_interrupt(answer.cancel), answer:
        for piece in answer:
            view.push(piece)
    view.finish()
    return answer.reply()


def note_limits(reply: Reply, max_tokens: int | None, engine: BaseEngine) -> None:
    """Note that an answer was cut off, and which parts of its JSON schema were not enforced.

    If `max_tokens` cut the answer off, only a terminal shows the note: on a pipe the limit is
    no surprise.
    """
    num_tokens = len(reply.token_ids)
    is_at_limit = max_tokens is not None and num_tokens >= max_tokens
    if reply.finish_reason == "length" and not is_at_limit:
        trained = engine.trained_context_length
        remedy = "This model's context cannot be larger."
        if engine.context_length < trained:
            remedy = f"For more: --ctx, up to {trained}."
        note(f"Cut off: the context of {engine.context_length} tokens is full. {remedy}")
    elif reply.finish_reason == "length" and is_terminal(sys.stderr):
        remedy = "--max-tokens; in a chat /continue, or /set max_tokens"
        note(f"Cut off after {counted(num_tokens, 'token')}. For more: {remedy}.")
    if reply.not_kept:
        parts = ", ".join(reply.not_kept)
        note(
            f"Parts of the JSON schema that are not enforced: {parts}. --strict makes this an "
            "error."
        )


def text_writer(*, err: bool) -> Callable[[str, str | None], None]:
    """A function that writes a text in a colour to stdout or stderr; None is no colour.

    On a terminal lines are wrapped between words, so a word is written once it is complete.
    Elsewhere the text is written unchanged and without colour.
    """
    stream = sys.stdout
    if err:
        stream = sys.stderr
    if not is_terminal(stream):
        return lambda text, _colour: click.echo(text, nl=False, err=err)
    # Imported here: a pipe does not need the library that knows how wide characters are.
    from localspec.cli.terminal.wrapping import Style, terminal_writer

    out = terminal_writer(err=err)
    return lambda text, colour: out.write_lines(text, Style(color=colour))
