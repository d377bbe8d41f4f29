"""What a person types or a pipe brings, within bounds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click

with contextlib.suppress(ImportError):  # not on Windows, whose console edits lines itself
    import readline  # noqa: F401  importing it gives input() line editing

MAX_CHARACTERS = 64_000_000  # of one message: more than any context holds


def on_terminal() -> bool:
    """Whether a person types the input. A closed one is an empty pipe."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_text() -> str:
    """All of the input. Raises click.UsageError if it is beyond bounds."""
    return "" if sys.stdin is None else _bounded(sys.stdin.read(MAX_CHARACTERS + 1))


def typed_lines() -> Iterator[str]:
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


def piped_lines() -> Iterator[str]:
    """One message a line. Raises click.UsageError for a line beyond bounds."""
    while sys.stdin is not None and (line := sys.stdin.readline(MAX_CHARACTERS + 1)):
        if text := _bounded(line).strip():
            yield text


def _bounded(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise click.UsageError(f"The input is longer than {MAX_CHARACTERS} characters.")
    return text
