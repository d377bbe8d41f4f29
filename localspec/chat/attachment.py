"""Text files that go with a question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.chat.media import refuse_media
from localspec.chat.text_file import text_of
from localspec.errors import OptionError

MAX_ATTACHED_BYTES = 8_000_000  # of one file: more than any context holds
# A file as `attached` writes it: no line of its text has as many backticks.
_ATTACHED = re.compile(r"[^\n]+:\n(?P<fence>`{3,})\n(?:.*?\n)?(?P=fence)\n\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file, as it was when it was read."""

    name: str
    text: str


def read_attachment(path: Path) -> Attachment:
    """The file's text.

    Raises OptionError for a file that is missing, too large or not text; for images, audio,
    videos and PDFs the error names the kind of file.
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
    """The question after the files: each has its name and a fence longer than any in it."""
    parts = []
    for each in attachments:
        longest = max(map(len, re.findall("`{3,}", each.text)), default=2)
        fence = "`" * (longest + 1)
        parts.append(f"{each.name}:\n{fence}\n{each.text.rstrip()}\n{fence}")
    return "\n\n".join([*parts, question])
