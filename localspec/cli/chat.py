"""`localspec chat`"""

from __future__ import annotations

import functools

import click

from localspec.chat import Chat
from localspec.cli import exit_codes
from localspec.cli.answer import write_answer
from localspec.cli.options import PairOptions, pair_options
from localspec.cli.screen import error_lines, legend, status_line, use_colour
from localspec.cli.standard_input import on_terminal, piped_lines, typed_lines
from localspec.engine import Engine
from localspec.errors import LocalspecError, OptionError
from localspec.stream import Stream


@click.command()
@pair_options
def chat(options: PairOptions) -> None:
    """Hold a conversation.

    On a terminal, Ctrl-C stops an answer and Ctrl-D leaves. On a pipe, every line of the
    input is a message.

    \b
    localspec chat
    localspec chat --system "You are terse." --temperature 0.3
    localspec chat --target big.gguf --draft small.gguf --show-draft
    """
    with options.open_engine() as engine:
        conversation = engine.chat(system=options.system, template=options.template())
        if on_terminal():
            _note(f"{engine.description}. Ctrl-C stops an answer, Ctrl-D leaves.")
        if options.show_draft:
            click.echo(legend(), err=True, color=use_colour())
        ask = functools.partial(
            conversation.stream,
            sampling=options.sampling(engine),
            seed=options.seed,
            verify=options.verify,
            max_tokens=options.max_tokens,
        )
        num_failed = 0
        for text in typed_lines() if on_terminal() else piped_lines():
            try:
                _write_turn(engine, conversation, ask(text), show_draft=options.show_draft)
            except OptionError:
                raise
            except LocalspecError as error:
                # A message that cannot be answered ends neither conversation nor input.
                click.echo(error_lines(error), err=True)
                num_failed += 1
    if num_failed and not on_terminal():
        raise click.exceptions.Exit(exit_codes.FAILED)


def _write_turn(
    engine: Engine, conversation: Chat, stream: Stream, *, show_draft: bool
) -> None:
    num_forgotten = conversation.num_forgotten
    reply = write_answer(engine, stream, show_draft=show_draft)
    if reply.finish_reason == "cancelled":
        if not on_terminal():
            raise click.Abort
        _note("(stopped)")
    if num_forgotten == 0 and conversation.num_forgotten:
        _note("The context is full: from here on the oldest turns are forgotten.")
    if on_terminal():
        _note(status_line(reply.stats, engine.context_length))


def _note(text: str) -> None:
    """Something of ours, told apart from what the model says."""
    click.echo(click.style(text, dim=True), err=True, color=use_colour())
