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
_LOCAL_MODES = 3  # the index of the local modes in the list that termios.tcgetattr returns


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. A closed stream, None, counts as a pipe."""
    return stream is not None and stream.isatty()


def num_columns(*, err: bool) -> int:
    """The width in columns of the terminal on stdout or stderr; COLUMNS takes precedence."""
    with contextlib.suppress(OSError):
        if err and "COLUMNS" not in os.environ:  # shutil asks stdout, which may be a pipe
            return os.get_terminal_size(sys.stderr.fileno()).columns
    return shutil.get_terminal_size().columns


def use_colour() -> bool | None:
    """click's argument `color`: False with NO_COLOR or on a dumb terminal, else None.

    None leaves the decision to click: colour on a terminal, no colour elsewhere.
    """
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_plain:
        return False
    return None


@contextlib.contextmanager
def echo_off() -> Iterator[None]:
    """Stop the terminal from showing typed text while the body runs.

    It would mix with the output. The text is not lost: the next read gets it. This does nothing
    on Windows (whose console shows typed text only during a read), if stdin is no terminal, and
    if this process is in the background.
    """
    if sys.platform == "win32" or not _is_in_foreground():
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    modes = termios.tcgetattr(terminal)
    silent = termios.tcgetattr(terminal)
    silent[_LOCAL_MODES] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        if _is_in_foreground():  # a background process that changes modes is stopped
            with contextlib.suppress(termios.error):  # the terminal may have gone
                termios.tcsetattr(terminal, termios.TCSANOW, modes)


def _is_in_foreground() -> bool:
    """Whether stdin is a terminal and this process may change its modes."""
    if sys.platform == "win32" or not is_terminal(sys.stdin):
        return False
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False


def read_input() -> str:
    """All of stdin, decoded; "" if stdin is closed.

    Raises click.UsageError for input that is not text, or too long.
    """
    if sys.stdin is None:
        return ""
    return _decoded(sys.stdin.buffer.read(MAX_INPUT_BYTES + 1))


def piped_lines() -> Iterator[str]:
    """The lines of stdin, as they come. Raises click.UsageError as `read_input` does."""
    if sys.stdin is None:
        return
    while True:
        data = sys.stdin.buffer.readline(MAX_INPUT_BYTES + 1)
        if not data:
            return
        if data.startswith(WIDE_MARKS):
            # In UTF-16 and UTF-32 a line end takes several bytes: all lines are read at once.
            data += sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        text = _decoded(data).replace("\r", "\n")
        yield from text.removesuffix("\n").split("\n")


def _decoded(data: bytes) -> str:
    """The text of some input. Raises click.UsageError if it is not text, or too long."""
    if len(data) > MAX_INPUT_BYTES:
        raise click.UsageError(f"The input is longer than {MAX_INPUT_BYTES} bytes.")
    # Text that is not UTF-8 is in the system's encoding, if that is another one.
    encoding = codecs.lookup(sys.stdin.encoding).name
    if encoding in ("utf-8", "ascii"):
        encoding = ONE_BYTE
    try:
        return text_of(data, otherwise=encoding)
    except ValueError as error:
        raise click.UsageError(f"The input is not text: {error}.") from error
