"""`localspec chat`"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click

from localspec.cli.answer import write_answer
from localspec.cli.options import PairOptions, pair_options
from localspec.cli.screen import error_lines, legend, status_line, use_colour
from localspec.errors import ContextError

with contextlib.suppress(ImportError):  # not on Windows, whose console edits lines itself
    import readline  # noqa: F401  importing it gives input() line editing


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
    on_terminal = sys.stdin.isatty()
    with options.open_engine() as engine:
        conversation = engine.chat(system=options.system, template=options.template())
        sampling = options.sampling(engine.sampling)
        if on_terminal:
            _note(f"{engine.description}. Ctrl-C stops an answer, Ctrl-D leaves.")
        if options.show_draft:
            click.echo(legend(), err=True, color=use_colour())
        num_forgotten = 0
        for text in _typed_lines() if on_terminal else _piped_lines():
            try:
                stream = conversation.stream(
                    text,
                    sampling=sampling,
                    seed=options.seed,
                    max_tokens=options.max_tokens,
                )
            except ContextError as error:
                # A message that is too long ends neither conversation nor input.
                click.echo(error_lines(error), err=True)
                continue
            if conversation.num_forgotten and not num_forgotten:
                _note("The context is full: the oldest turns are forgotten from here on.")
            num_forgotten = conversation.num_forgotten
            reply = write_answer(engine, stream, show_draft=options.show_draft)
            if reply.finish_reason == "cancelled":
                _note("(stopped)")
            if on_terminal:
                _note(status_line(reply.stats, engine.context_length))


def _note(text: str) -> None:
    """Something of ours, told apart from what the model says."""
    click.echo(click.style(text, dim=True), err=True, color=use_colour())


def _typed_lines() -> Iterator[str]:
    """Messages from a person, until Ctrl-D. Ctrl-C empties the line."""
    while True:
        try:
            text = input("\n> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            continue
        if text.strip():
            yield text


def _piped_lines() -> Iterator[str]:
    for line in sys.stdin:
        if text := line.rstrip("\r\n"):
            yield text
