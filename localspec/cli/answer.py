"""Writes an answer to stdout while it is produced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import click

from localspec.cli.bars import shows_bars
from localspec.cli.interrupt import cancel_on_interrupt
from localspec.cli.screen import cut_line, has_all_tokens, mark, not_kept_line, note, printable

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine
    from localspec.streaming.answer import Answer
    from localspec.streaming.reply import Reply


def write_answer(answer: Answer, *, show_draft: bool) -> Reply:
    """Print an answer, harmless to a terminal; its thoughts go to stderr.

    Ctrl-C stops it and keeps what was said.
    """
    said = text_writer(err=False)
    # What stands on one terminal is wrapped by one writer.
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


def tell_cut(reply: Reply, max_tokens: int | None, engine: BaseEngine) -> None:
    """Say on stderr that an answer was cut off. A pipe is not told of what it asked for."""
    line = cut_line(reply, max_tokens, engine)
    if line and (shows_bars() or not has_all_tokens(reply, max_tokens)):
        note(line)


def tell_not_kept(reply: Reply) -> None:
    """Say on stderr what of a JSON schema an answer was not kept to."""
    if line := not_kept_line(reply):
        note(line)


def text_writer(*, err: bool) -> Callable[[str, str | None], None]:
    """What writes text in a colour to stdout, or to stderr.

    On a terminal lines end between words, the last of which is written with what follows it.
    Elsewhere the text is as it is, without colour.
    """
    if not _is_terminal(sys.stderr if err else sys.stdout):
        return lambda text, _colour: click.echo(text, nl=False, err=err)
    # Here, so that a pipe does without the library that knows how wide characters are.
    from localspec.cli.terminal.wrapping import Style, terminal_writer

    out = terminal_writer(err=err)
    return lambda text, colour: out.lines(text, Style(colour=colour))


def _is_terminal(file: TextIO | None) -> bool:
    return file is not None and file.isatty()
