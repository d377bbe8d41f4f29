"""Text in files, in the encodings that programs write it in."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

# Longer marks first: that of UTF-32 begins as that of UTF-16 does.
_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
WIDE_MARKS = tuple(_ENCODINGS)[1:]
ONE_BYTE = "cp1252"  # all of Latin-1's letters, and the quotes and dashes of Windows
# Bytes that no text has, whatever its encoding; escapes and form feeds some have.
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MULTIBYTE = re.compile("[^\x00-\x7f\ufffd]")


def read_text_file(path: Path) -> str:
    """The text of a file. Raises OSError, and ValueError as `text_of` does."""
    return text_of(path.read_bytes())


def text_of(data: bytes, *, otherwise: str = ONE_BYTE) -> str:
    """The decoded text, with "\\n" as its newlines.

    The encoding is UTF-8 or the one that a byte order mark names. Bytes that are neither, and
    hold no control characters, are read in an encoding of one byte a character. otherwise: that
    encoding; by default the one of Windows, which has the letters of Latin-1. Raises
    ValueError, in words, for bytes that are not text.
    """
    for mark, encoding in _ENCODINGS.items():
        if data.startswith(mark):
            text = _decoded(data[len(mark) :], encoding)
            break
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            _check_no_utf8(data, error)
            text = _decoded(data, otherwise)
    if "\0" in text:
        raise ValueError("it has zero bytes")
    return text.replace("\r\n", "\n")


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not {encoding.upper()}") from error


def _check_no_utf8(data: bytes, error: UnicodeDecodeError) -> None:
    """Raise ValueError for bytes that are not text, or damaged UTF-8."""
    read = data.decode(errors="replace")
    is_damaged = len(_MULTIBYTE.findall(read)) > read.count("\ufffd")
    if is_damaged or _CONTROLS.search(data):
        raise ValueError(f"byte {error.start} is not UTF-8") from error
