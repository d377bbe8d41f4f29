"""The standard streams: whether they are terminals, their colours, and the text of stdin."""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TextIO

import click

from localspec.chat.attachment import ONE_BYTE, WIDE_MARKS, text_of

MAX_INPUT_BYTES = 64_000_000  # of a message; no context holds as much


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. A closed stream, None, counts as a pipe."""
    return stream is not None and stream.isatty()


def num_columns(*, err: bool) -> int:
    """The width of the terminal on stdout or stderr; COLUMNS takes precedence."""
    with contextlib.suppress(OSError):
        if err and "COLUMNS" not in os.environ:  # shutil asks stdout, which may be a pipe
            return os.get_terminal_size(sys.stderr.fileno()).columns
    return shutil.get_terminal_size().columns


def use_colour() -> bool | None:
    """False with NO_COLOR or on a dumb terminal, else None.

    None leaves it to click: colour on a terminal, no colour elsewhere.
    """
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_plain:
        return False
    return None


@contextlib.contextmanager
def echo_off() -> Iterator[None]:
    """Let the terminal not show typed text, which would mix with the output.

    The text is not lost: the next read gets it. This does nothing on the Windows console, which
    shows nothing unless a program does, in the background, and if stdin is no terminal.
    """
    if sys.platform == "win32" or not _is_in_front():
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    modes = termios.tcgetattr(terminal)
    silent = termios.tcgetattr(terminal)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        if _is_in_front():  # a background process that changes modes is stopped
            with contextlib.suppress(termios.error):  # the terminal may have gone
                termios.tcsetattr(terminal, termios.TCSANOW, modes)


def _is_in_front() -> bool:
    if sys.platform == "win32" or not is_terminal(sys.stdin):
        return False
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False


def read_input() -> str:
    """All of stdin, decoded as files are.

    Raises click.UsageError for input that is not text, or too long.
    """
    if sys.stdin is None:
        return ""
    return _text(sys.stdin.buffer.read(MAX_INPUT_BYTES + 1))


def piped_lines() -> Iterator[str]:
    """Read stdin line by line. Raises click.UsageError as `read_input` does."""
    if sys.stdin is None:
        return
    while True:
        data = sys.stdin.buffer.readline(MAX_INPUT_BYTES + 1)
        if not data:
            return
        if data.startswith(WIDE_MARKS):  # a line end takes several bytes
            data += sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        text = _text(data).replace("\r", "\n")
        yield from text.removesuffix("\n").split("\n")


def _text(data: bytes) -> str:
    if len(data) > MAX_INPUT_BYTES:
        raise click.UsageError(f"The input is longer than {MAX_INPUT_BYTES} bytes.")
    # Text that is not UTF-8 is in the system's encoding, if that is another one.
    otherwise = codecs.lookup(sys.stdin.encoding).name
    if otherwise in ("utf-8", "ascii"):
        otherwise = ONE_BYTE
    try:
        return text_of(data, otherwise=otherwise)
    except ValueError as error:
        raise click.UsageError(f"The input is not text: {error}.") from error
