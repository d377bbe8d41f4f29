"""Text files and pictures that go with a question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.chat.media import is_readable_picture, refuse_media
from localspec.chat.text_file import text_of
from localspec.errors import OptionError
from localspec.pictures.picture import Picture

MAX_ATTACHED_BYTES = 8_000_000  # of one file: more than any context holds
# A file as `attached` writes it: no line of its text has as many backticks.
_ATTACHED = re.compile(r"[^\n]+:\n(?P<fence>`{3,})\n(?:.*?\n)?(?P=fence)\n\n", re.DOTALL)


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
    try:
        if not path.is_file():
            reason = "is not a file" if path.exists() else "does not exist"
            raise OptionError(f"{path} {reason}", "Give the path of a text file.")
        with path.open("rb") as file:
            data = file.read(MAX_ATTACHED_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"{path} cannot be read: {reason}", "Check the path.") from error
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
    """The pictures among them."""
    return [each.picture for each in attachments if each.picture is not None]


def as_attachment(picture: Picture) -> Attachment:
    """A picture whose file is not known."""
    return Attachment(f"image of {picture.width} by {picture.height} pixels", picture=picture)


def require_sight(attachments: Sequence[Attachment]) -> None:
    """Raise OptionError where there is a picture among them, for a model that reads text."""
    for each in attachments:
        if each.picture is not None:
            raise OptionError(
                f"{each.name} is an image; this model reads text",
                "Give the model's projector (mmproj=…), describe the image, or give the text "
                "that stands in it.",
            )
