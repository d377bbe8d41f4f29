"""Text that comes piece by piece: marks in it, and JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def first_of(marks: Iterable[str], text: str) -> str | None:
    """The mark that comes first in the text; of several at one place, the first in `marks`.

    None if no mark is in the text.
    """
    return min(filter(text.__contains__, marks), key=text.find, default=None)


def num_unfinished(marks: Collection[str], text: str) -> int:
    """How many characters at the text's end are the beginning of a mark, but not all of it."""
    longest_mark = max(map(len, marks), default=1)
    max_size = min(len(text), longest_mark - 1)
    for size in range(max_size, 0, -1):
        if any(len(mark) > size and text.endswith(mark[:size]) for mark in marks):
            return size
    return 0


class JsonReader:
    """Reads JSON character by character, and knows which characters are in strings."""

    def __init__(self) -> None:
        self.is_string = False
        """Whether the next character is in a string, or ends it."""

        self._is_escaped = False

    def read_character(self, character: str) -> bool:
        """Read the next character. Returns whether it is in a string, or one of its quotes."""
        was_string = self.is_string
        was_escaped = self._is_escaped
        self.is_string ^= character == '"' and not was_escaped
        self._is_escaped = was_string and character == "\\" and not was_escaped
        return was_string or self.is_string


class ObjectEnd(JsonReader):
    """Finds the end of a JSON object, or of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False
        """Whether the end was found."""

        self.has_begun = False
        """Whether the beginning was found."""

        self._depth = 0

    def push(self, text: str) -> int:
        """Read more text. Returns how many of its characters belong to the object."""
        for size, character in enumerate(text, 1):
            is_quoted = self.read_character(character)
            if is_quoted:
                continue
            if character in "{[":
                self._depth += 1
                self.has_begun = True
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_over = True
                    return size
        return len(text)
