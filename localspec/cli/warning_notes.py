"""The library's warnings as notes on stderr. What is so of a pair is said once, not always."""

from __future__ import annotations

import contextlib
import logging
import sys

import platformdirs

from localspec.cli.screen import note, printable
from localspec.cli.waiting import line_gone


class WarningNotes(logging.Handler):
    """Says warnings where no other handler does, as `logging.lastResort`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, unless it is the same at every load and a person has seen it."""
        text = printable(record.getMessage())
        if not (getattr(record, "is_of_pair", False) and _was_seen(text)):
            with line_gone():
                note(text)


def _was_seen(text: str) -> bool:
    """Whether it stood on a terminal before; it counts as seen if it will stand on one now."""
    path = platformdirs.user_state_path("localspec", appauthor=False) / "seen_warnings"
    line = text.replace("\n", " ")
    with contextlib.suppress(OSError, UnicodeError):  # then it is said again
        if path.exists() and line in path.read_text(encoding="utf-8").split("\n"):
            return True
        if sys.stderr is not None and sys.stderr.isatty():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    return False
