"""Writes an answer to stdout while it is generated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from localspec.cli.interrupt import cancel_on_interrupt
from localspec.cli.screen import mark, note, printable
from localspec.cli.standard_streams import is_terminal

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
    are_one = is_terminal(sys.stdout) and is_terminal(sys.stderr)
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


def note_limits(reply: Reply, max_tokens: int | None, engine: BaseEngine) -> None:
    """Note that an answer was cut off, and which parts of its JSON schema were not enforced.

    On a pipe there is no note at --max-tokens: the limit was asked for.
    """
    is_full = max_tokens is not None and len(reply.token_ids) >= max_tokens
    if reply.finish_reason == "length" and not is_full:
        trained = engine.trained_context_length
        more = "The model was trained for no longer context."
        if engine.context_length < trained:
            more = f"For more: --ctx, up to {trained}."
        note(f"Cut off: the context of {engine.context_length} tokens is full. {more}")
    elif reply.finish_reason == "length" and is_terminal(sys.stderr):
        more = "--max-tokens; in a chat /continue, or /set max_tokens"
        note(f"Cut off after {max_tokens} tokens. For more: {more}.")
    if reply.not_kept:
        parts = ", ".join(reply.not_kept)
        note(
            f"Parts of the JSON schema that are not enforced: {parts}. --strict makes this an "
            "error."
        )


def text_writer(*, err: bool) -> Callable[[str, str | None], None]:
    """A function that writes text in a colour to stdout or stderr.

    On a terminal lines are wrapped between words, so a word is written once it is complete.
    Elsewhere the text is written unchanged and without colour.
    """
    if not is_terminal(sys.stderr if err else sys.stdout):
        return lambda text, _colour: click.echo(text, nl=False, err=err)
    # Imported here: a pipe does not need the library that knows how wide characters are.
    from localspec.cli.terminal.wrapping import Style, terminal_writer

    out = terminal_writer(err=err)
    return lambda text, colour: out.lines(text, Style(color=colour))
