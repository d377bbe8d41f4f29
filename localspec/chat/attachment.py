"""Files that go with a question: texts in any encoding, and pictures; others are refused."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import OptionError
from localspec.pictures.picture import Picture, read_bytes

MAX_ATTACHED_BYTES = 8_000_000  # of one file: more than any context holds
# A file as `attached` writes it: no line of its text has as many backticks.
_ATTACHED = re.compile(r"[^\n]+:\n(?P<fence>`{3,})\n(?:.*?\n)?(?P=fence)\n\n", re.DOTALL)

_PICTURE = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP", re.DOTALL)
_PDF = re.compile(rb"%PDF-\d")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file, as it was when it was read: a text or a picture."""

    name: str
    text: str = ""
    """The text; empty for a picture."""

    picture: Picture | None = None


def read_attachment(path: Path) -> Attachment:
    """The file's text, or its picture.

    Raises OptionError for a file that is missing, too large or neither.
    """
    data = read_bytes(path, MAX_ATTACHED_BYTES)
    if _PICTURE.match(data) and b"\0" in data:  # a text may begin like a picture
        return Attachment(path.name, picture=Picture.read(path))
    if len(data) > MAX_ATTACHED_BYTES:
        raise OptionError(
            f"{path} has more than {MAX_ATTACHED_BYTES} bytes",
            "Attach the part that matters.",
        )
    if _PDF.match(data):  # some consist of text characters only
        raise OptionError(f"{path} is a PDF", "Convert it to text first, with pdftotext, say.")
    try:
        return Attachment(path.name, text_of(data))
    except ValueError as error:
        raise OptionError(
            f"{path} is not text: {error}",
            "Convert it to text first, preferably in UTF-8.",
        ) from error


def without_files(question: str) -> tuple[str, str]:
    """The text that `attached` has put before a question, and the question alone."""
    at = 0
    found = _ATTACHED.match(question)
    while found is not None:
        at = found.end()
        found = _ATTACHED.match(question, at)
    return question[:at], question[at:]


def attached(question: str, attachments: Sequence[Attachment]) -> str:
    """The attached texts, and the question after them.

    Each text has its name, and a fence that is longer than any fence in it.
    """
    parts = []
    for attachment in attachments:
        if attachment.picture is not None:
            continue
        text = attachment.text
        fences = re.findall("`{3,}", text)
        longest = max(map(len, fences), default=2)
        fence = "`" * (longest + 1)
        parts.append(f"{attachment.name}:\n{fence}\n{text.rstrip()}\n{fence}")
    return "\n\n".join([*parts, question])


def pictures_in(attachments: Sequence[Attachment]) -> list[Picture]:
    """The pictures among the attachments."""
    pictures = [attachment.picture for attachment in attachments]
    return [picture for picture in pictures if picture is not None]


# Longer marks first: the mark of UTF-32 begins with that of UTF-16.
_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
WIDE_MARKS = tuple(_ENCODINGS)[1:]
ONE_BYTE = "cp1252"  # all of Latin-1's letters, and the quotes and dashes of Windows
# Bytes that occur in no text, whatever its encoding. Escapes and form feeds do occur.
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MULTIBYTE = re.compile("[^\x00-\x7f\ufffd]")


def read_text_file(path: Path) -> str:
    """The text of a file. Raises OSError, and ValueError as `text_of` does."""
    return text_of(path.read_bytes())


def text_of(data: bytes, *, otherwise: str = ONE_BYTE) -> str:
    r"""The decoded text, with "\n" as its newlines.

    The encoding is UTF-8 or the one that a byte order mark names. Bytes that are neither, and
    hold no control characters, are read in an encoding of one byte a character. Raises
    ValueError, in words, for bytes that are not text.

    Args:
        data: The bytes.
        otherwise: The encoding of such bytes; by default the one of Windows, which has the
            letters of Latin-1.
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
    """The text in an encoding. Raises ValueError, in words."""
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
