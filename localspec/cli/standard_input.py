"""What a person types or a pipe brings, within bounds."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

MAX_CHARACTERS = 64_000_000  # of one message: more than any context holds


def on_terminal() -> bool:
    """Whether a person types the input. A closed one is an empty pipe."""
    return sys.stdin is not None and sys.stdin.isatty()


def holds_conversation() -> bool:
    """Whether a person types the input and sees the output."""
    return on_terminal() and sys.stdout is not None and sys.stdout.isatty()


def read_text() -> str:
    """All of the input. Raises click.UsageError if it is beyond bounds."""
    return "" if sys.stdin is None else _bounded(sys.stdin.read(MAX_CHARACTERS + 1))


def piped_lines() -> Iterator[str]:
    """One message a line. Raises click.UsageError for a line beyond bounds."""
    while sys.stdin is not None and (line := sys.stdin.readline(MAX_CHARACTERS + 1)):
        if text := _bounded(line).strip():
            yield text


def _bounded(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise click.UsageError(f"The input is longer than {MAX_CHARACTERS} characters.")
    return text
