"""Writes an answer to stdout while it is produced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from localspec.cli.interrupt import cancel_on_interrupt
from localspec.cli.screen import marked, printable, use_colour

if TYPE_CHECKING:
    from localspec.streaming.stream import Reply, Stream


def write_answer(stream: Stream, *, show_draft: bool) -> Reply:
    """Print an answer, harmless to a terminal; its thoughts go to stderr.

    Ctrl-C stops it and keeps what was said.
    """
    was_thought = False
    with cancel_on_interrupt(stream), stream:
        for piece in stream:
            if not piece.text:
                continue
            if was_thought and not piece.is_thought:
                click.echo(err=True)
            was_thought = piece.is_thought
            text = marked(piece) if show_draft else printable(piece.text)
            click.echo(text, nl=False, err=piece.is_thought, color=use_colour())
    click.echo()
    return stream.reply
