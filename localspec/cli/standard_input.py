"""What a person types or a pipe brings, within bounds."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator

import click

from localspec.chat.text_file import ONE_BYTE, WIDE_MARKS, text_of

MAX_BYTES = 64_000_000  # of one message: more than any context holds


def on_terminal() -> bool:
    """Whether a person types the input. A closed one is an empty pipe."""
    return sys.stdin is not None and sys.stdin.isatty()


def holds_conversation() -> bool:
    """Whether a person types the input and sees the output."""
    return on_terminal() and sys.stdout is not None and sys.stdout.isatty()


def read_text() -> str:
    """All of the input, in the encodings of files.

    Raises click.UsageError for what is no text, or beyond bounds.
    """
    return "" if sys.stdin is None else _text(sys.stdin.buffer.read(MAX_BYTES + 1))


def piped_lines() -> Iterator[str]:
    """One message a line. Raises click.UsageError as `read_text` does."""
    while sys.stdin is not None and (data := sys.stdin.buffer.readline(MAX_BYTES + 1)):
        if data.startswith(WIDE_MARKS):  # lines of such text end in more than a byte
            data += sys.stdin.buffer.read(MAX_BYTES + 1)
        for line in _text(data).replace("\r", "\n").split("\n"):
            if text := line.strip():
                yield text


def _text(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise click.UsageError(f"The input is longer than {MAX_BYTES} bytes.")
    stated = codecs.lookup(sys.stdin.encoding).name
    try:
        # What is not UTF-8 is what the system writes, where that is something else.
        return text_of(data, otherwise=ONE_BYTE if stated in ("utf-8", "ascii") else stated)
    except ValueError as error:
        raise click.UsageError(f"The input is no text: {error}.") from error
