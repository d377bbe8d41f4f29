"""The library's warnings as notes on stderr. A fact about a pair is shown only once."""

from __future__ import annotations

import contextlib
import logging
import sys

import platformdirs

from localspec.cli.screen import note, printable
from localspec.cli.waiting import line_gone


class WarningNotes(logging.Handler):
    """Shows warnings if no other handler does, as `logging.lastResort`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Show it, unless it is about the pair and a person has seen it before."""
        text = printable(record.getMessage())
        if not (getattr(record, "is_of_pair", False) and _was_seen(text)):
            with line_gone():
                note(text)


def _was_seen(text: str) -> bool:
    """Whether it was shown on a terminal before; showing it on one now counts, too."""
    path = platformdirs.user_state_path("localspec", appauthor=False) / "seen_warnings"
    line = text.replace("\n", " ")
    with contextlib.suppress(OSError, UnicodeError):  # then it is shown again
        if path.exists() and line in path.read_text(encoding="utf-8").split("\n"):
            return True
        if sys.stderr is not None and sys.stderr.isatty():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    return False
