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
# A file as `attached` writes it: the fence is longer than any run of backticks in the text.
_ATTACHED = re.compile(r"[^\n]+:\n(?P<fence>`{3,})\n(?:.*?\n)?(?P=fence)\n\n", re.DOTALL)

_PICTURE = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP", re.DOTALL)
_PDF = re.compile(rb"%PDF-\d")
_SHORTEST_FENCE = 3  # backticks, as Markdown has it


@dataclass(frozen=True, slots=True)
class Attachment:
    """The content of a file when it was read: a text or a picture."""

    name: str
    text: str = ""
    """The text; empty for a picture."""

    picture: Picture | None = None


def read_attachment(path: Path) -> Attachment:
    """Read a file, as a text or as a picture.

    Raises OptionError for a file that is missing or too large, and for one that is neither text
    nor a picture.
    """
    data = read_bytes(path, MAX_ATTACHED_BYTES)
    if _PICTURE.match(data) and b"\0" in data:  # a text may begin like a picture
        return Attachment(path.name, picture=Picture.read(path))
    if len(data) > MAX_ATTACHED_BYTES:
        raise OptionError(
            f"{path} has more than {MAX_ATTACHED_BYTES} bytes",
            "Attach the part that matters.",
        )
    if _PDF.match(data):  # checked before decoding: some PDFs decode as text
        raise OptionError(f"{path} is a PDF", "Convert it to text first, with pdftotext, say.")
    try:
        return Attachment(path.name, text_of(data))
    except ValueError as error:
        raise OptionError(
            f"{path} is not text: {error}",
            "Convert it to text first, preferably in UTF-8.",
        ) from error


def without_files(question: str) -> tuple[str, str]:
    """Split a question that `attached` has made.

    Returns the attached texts ("" if there are none), and the question without them.
    """
    files_end = 0
    file = _ATTACHED.match(question)
    while file is not None:
        files_end = file.end()
        file = _ATTACHED.match(question, files_end)
    return question[:files_end], question[files_end:]


def attached(question: str, attachments: Sequence[Attachment]) -> str:
    """The question with the attached texts before it. Pictures are left out.

    Before each text stands the name of its file. The text is fenced with three backticks, or
    with one more than the longest fence in it has.
    """
    parts = []
    for attachment in attachments:
        if attachment.picture is not None:
            continue
        text = attachment.text
        fence_length = _SHORTEST_FENCE
        for inner_fence in re.findall("`{3,}", text):
            fence_length = max(fence_length, len(inner_fence) + 1)
        fence = "`" * fence_length
        parts.append(f"{attachment.name}:\n{fence}\n{text.rstrip()}\n{fence}")
    parts.append(question)
    return "\n\n".join(parts)


def pictures_in(attachments: Sequence[Attachment]) -> list[Picture]:
    """The pictures among the attachments."""
    pictures = [attachment.picture for attachment in attachments]
    return [picture for picture in pictures if picture is not None]


# Encodings by their byte order marks. UTF-32 first: its mark begins with the one of UTF-16.
_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
WIDE_MARKS = tuple(_ENCODINGS)[1:]
ONE_BYTE = "cp1252"  # all of Latin-1's letters, and the quotes and dashes of Windows
# Control characters that no text has. Escapes and form feeds occur in texts.
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_REPLACEMENT = "\ufffd"  # what Python decodes invalid bytes to
_MULTIBYTE = re.compile(f"[^\x00-\x7f{_REPLACEMENT}]")


def read_text_file(path: Path) -> str:
    """The text of a file. Raises OSError, and ValueError if it is not text: see `text_of`."""
    return text_of(path.read_bytes())


def text_of(data: bytes, *, otherwise: str = ONE_BYTE) -> str:
    r"""Decode the bytes of a text file; "\r\n" becomes "\n".

    The encoding is the one of the byte order mark, or else UTF-8. Bytes that are not UTF-8 are
    decoded by `otherwise`, unless they are damaged UTF-8 or no text.

    Args:
        data: The bytes.
        otherwise: An encoding in which each byte is one character; by default Windows-1252,
            which has the letters of Latin-1.

    Raises:
        ValueError: The bytes are not text. The message says why.
    """
    text = _decoded_file(data, otherwise)
    if "\0" in text:
        raise ValueError("it has zero bytes")
    return text.replace("\r\n", "\n")


def _decoded_file(data: bytes, otherwise: str) -> str:
    """The text of a file, with its newlines and zero characters as they are.

    Arguments and errors as for `text_of`.
    """
    for mark, encoding in _ENCODINGS.items():
        if data.startswith(mark):
            return _decoded(data[len(mark) :], encoding)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        _refuse_damaged_or_binary(data, error)
        return _decoded(data, otherwise)


def _decoded(data: bytes, encoding: str) -> str:
    """Decode bytes. Raises ValueError that names the first byte which is not valid."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not {encoding.upper()}") from error


def _refuse_damaged_or_binary(data: bytes, error: UnicodeDecodeError) -> None:
    """Raise ValueError for bytes that are not text, or are damaged UTF-8.

    Bytes are taken for damaged UTF-8, and not for another encoding, if they have more valid
    than invalid characters of several bytes.

    Args:
        data: The bytes, which are not valid UTF-8.
        error: The error of decoding them as UTF-8.
    """
    text = data.decode(errors="replace")
    num_valid = len(_MULTIBYTE.findall(text))
    is_damaged = num_valid > text.count(_REPLACEMENT)
    if is_damaged or _CONTROLS.search(data):
        raise ValueError(f"byte {error.start} is not UTF-8") from error
