"""Stop strings in text that comes piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from localspec.errors import OptionError
from localspec.tools.partial_text import first_of, num_unfinished


class StopSearch:
    """Looks for stop strings in text that comes piece by piece.

    `push` and `finish` return text that is final. What could still become part of a stop
    string waits inside. After a stop string there is nothing more.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.stopped_by: str | None = None
        self.passes = False  # over stop strings that are whole: text from before they were set

    @property
    def stopped(self) -> bool:
        """Whether there was a stop string."""
        return self.stopped_by is not None

    def push(self, text: str) -> str:
        """Text that is decided now. Sets `stopped_by` when a stop string is complete."""
        if self.stopped:
            return ""
        text = self._held + text
        found = first_of(self._stop, text)
        if found is not None and not self.passes:
            # The stop string and what follows it are not part of the answer.
            self.stopped_by, self._held = found, ""
            return text[: text.find(found)]
        end = len(text) - num_unfinished(self._stop, text)
        self._held = text[end:]
        return text[:end]

    def finish(self) -> str:
        """The text that waited; no more follows."""
        text, self._held = self._held, ""
        return text


def checked_stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """The stop strings: none, one or several, without empty ones, which would end everything.

    Raises OptionError for anything but texts.
    """
    try:
        texts = [stop] if isinstance(stop, str) else list(stop or ())
    except TypeError:
        texts = [stop]  # type: ignore[list-item]
    for text in texts:
        if not isinstance(text, str):
            raise OptionError(f"a stop string is {text!r}", "Give a str, or several.")
    return tuple(filter(None, texts))
