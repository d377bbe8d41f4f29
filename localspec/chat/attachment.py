"""Text files and pictures that go with a question; other media are known and refused."""

from __future__ import annotations

import codecs
import contextlib
import mimetypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.chat.text_file import text_of
from localspec.errors import OptionError
from localspec.pictures.picture import Picture, read_bytes
from localspec.pictures.vision import Vision

MAX_ATTACHED_BYTES = 8_000_000  # of one file: more than any context holds
# A file as `attached` writes it: no line of its text has as many backticks.
_ATTACHED = re.compile(r"[^\n]+:\n(?P<fence>`{3,})\n(?:.*?\n)?(?P=fence)\n\n", re.DOTALL)

FIRST_BYTES = 4096  # of a file: enough to know it by
_READABLE = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP", re.DOTALL)
# Some PDFs have characters of text alone, so text is searched, too.
_PDF = re.compile(rb"%PDF-\d")
_KINDS = {
    "application/pdf": ("a PDF", "Convert it to text first, with pdftotext, say."),
    "image": ("an image", "Describe it, or give the text that stands in it."),
    "audio": ("an audio file", "Give what is said in it as text."),
    "video": ("a video", "Give what is said in it as text."),
}


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file, as it was when it was read: a text, or a picture, whose text is empty."""

    name: str
    text: str = ""
    picture: Picture | None = None


def read_attachment(path: Path, *, sees: bool = False) -> Attachment:
    """The file's text, or its picture where the model sees.

    Raises OptionError for a file that is missing, too large or neither; for audio, videos and
    PDFs, and images that cannot be shown, the error names the kind of file.
    """
    data = read_bytes(path, MAX_ATTACHED_BYTES)
    if sees and is_readable_picture(data):
        return Attachment(path.name, picture=Picture.read(path))
    refuse_media(path, data)
    if len(data) > MAX_ATTACHED_BYTES:
        raise OptionError(
            f"{path} has more than {MAX_ATTACHED_BYTES} bytes", "Attach the part that matters."
        )
    try:
        return Attachment(path.name, text_of(data))
    except ValueError as error:
        raise OptionError(
            f"{path} is not text: {error}", "Convert it to text first, preferably in UTF-8."
        ) from error


def is_readable_picture(data: bytes) -> bool:
    """Whether a file that begins like this is a picture that `Picture.read` may read."""
    return _READABLE.match(data) is not None


def refuse_media(path: Path, data: bytes) -> None:
    """Raise OptionError for a file that is an image, audio, a video or a PDF.

    data: its first FIRST_BYTES bytes, or more. They tell PDFs and readable pictures; for other
    files that are not text, the ending of the name tells the kind.
    """
    kind = _kind(path, data[:FIRST_BYTES])
    if kind is not None:
        what, hint = _KINDS[kind]
        raise OptionError(f"{path.name} is {what}; this model reads text", hint)


def _kind(path: Path, first: bytes) -> str | None:
    if _PDF.match(first):
        return "application/pdf"
    if _is_utf8(first):
        return None
    if is_readable_picture(first):
        return "image"
    with contextlib.suppress(ValueError):  # a video's ending may be a text's, too
        text_of(first)
        return None
    guessed = mimetypes.guess_type(path.name)[0] or ""
    return next((kind for kind in _KINDS if guessed.startswith(kind)), None)


def _is_utf8(first: bytes) -> bool:
    """Whether the bytes are UTF-8, whose last character may be cut off."""
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(first)
    except UnicodeDecodeError:
        return False


def without_files(question: str) -> tuple[str, str]:
    """The text that `attached` has put before a question, and the question alone."""
    at = 0
    while found := _ATTACHED.match(question, at):
        at = found.end()
    return question[:at], question[at:]


def attached(question: str, attachments: Sequence[Attachment]) -> str:
    """The question after the texts: each has its name and a fence longer than any in it."""
    parts = []
    for each in attachments:
        if each.picture is not None:
            continue
        longest = max(map(len, re.findall("`{3,}", each.text)), default=2)
        fence = "`" * (longest + 1)
        parts.append(f"{each.name}:\n{fence}\n{each.text.rstrip()}\n{fence}")
    return "\n\n".join([*parts, question])


def pictures_in(attachments: Sequence[Attachment]) -> list[Picture]:
    """The pictures among the attachments."""
    return [each.picture for each in attachments if each.picture is not None]


def as_attachment(picture: Picture) -> Attachment:
    """An attachment for a picture whose file is not known."""
    return Attachment(f"image of {picture.width} by {picture.height} pixels", picture=picture)


def require_sight(attachments: Sequence[Attachment], vision: Vision | None) -> None:
    """Raise OptionError for a picture among attachments of a model without vision."""
    for each in attachments:
        if each.picture is not None and vision is None:
            raise OptionError(
                f"{each.name} is an image; this model reads text",
                "Give the model's projector (mmproj=…), describe the image, or give the text "
                "that stands in it.",
            )
