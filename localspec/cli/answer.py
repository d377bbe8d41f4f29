"""Writes an answer to stdout while it is generated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import click

from localspec.cli.bars import shows_bars
from localspec.cli.interrupt import cancel_on_interrupt
from localspec.cli.screen import (
    cut_line,
    has_all_tokens,
    mark,
    note,
    printable,
    unenforced_line,
)

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine
    from localspec.streaming.answer import Answer
    from localspec.streaming.reply import Reply


def write_answer(answer: Answer, *, show_draft: bool) -> Reply:
    """Print an answer with control characters made visible; its thoughts go to stderr.

    Ctrl-C stops it and keeps the text so far.
    """
    said = text_writer(err=False)
    # One writer wraps all text on the same terminal.
    are_one = _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
    thought = said if are_one else text_writer(err=True)
    was_thought: bool | None = None
    with cancel_on_interrupt(answer.cancel), answer:
        for piece in answer:
            if not piece.text:
                continue
            is_other = was_thought is not None and was_thought != piece.is_thought
            if is_other and (was_thought or are_one):
                thought("\n", None)
            was_thought = piece.is_thought
            text, colour = mark(piece) if show_draft else (printable(piece.text), None)
            write = thought if piece.is_thought else said
            write(text, colour)
    if was_thought and not are_one:
        thought("\n", None)
    said("\n", None)
    return answer.reply()


def note_if_cut(reply: Reply, max_tokens: int | None, engine: BaseEngine) -> None:
    """Note on stderr that an answer was cut off; on a pipe not at --max-tokens, as asked."""
    line = cut_line(reply, max_tokens, engine)
    if line and (shows_bars() or not has_all_tokens(reply, max_tokens)):
        note(line)


def note_unenforced(reply: Reply) -> None:
    """Note on stderr which parts of a JSON schema were not enforced."""
    if line := unenforced_line(reply):
        note(line)


def text_writer(*, err: bool) -> Callable[[str, str | None], None]:
    """A function that writes text in a colour to stdout or stderr.

    On a terminal lines are wrapped between words, so a word is written once it is complete.
    Elsewhere the text is written unchanged and without colour.
    """
    if not _is_terminal(sys.stderr if err else sys.stdout):
        return lambda text, _colour: click.echo(text, nl=False, err=err)
    # Imported here: a pipe does not need the library that knows how wide characters are.
    from localspec.cli.terminal.wrapping import Style, terminal_writer

    out = terminal_writer(err=err)
    return lambda text, colour: out.lines(text, Style(colour=colour))


def _is_terminal(file: TextIO | None) -> bool:
    return file is not None and file.isatty()
