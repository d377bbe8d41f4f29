"""Text that comes piece by piece: marks in it, and JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def first_of(marks: Iterable[str], text: str) -> str | None:
    """The mark that comes first in the text; `marks` decide among those at one position."""
    return min(filter(text.__contains__, marks), key=text.find, default=None)


def num_unfinished(marks: Collection[str], text: str) -> int:
    """Length of the longest end of the text with which a mark may begin."""
    longest = min(len(text), max(map(len, marks), default=1) - 1)
    for size in range(longest, 0, -1):
        if any(len(mark) > size and text.endswith(mark[:size]) for mark in marks):
            return size
    return 0


class JsonReader:
    """Reads JSON character by character, and knows its strings.

    is_string: whether the next character stands in a string, or ends it.
    """

    def __init__(self) -> None:
        self.is_string = False
        self._is_escaped = False

    def is_quoted(self, character: str) -> bool:
        """Whether the next character belongs to a string, or is one of its quotes."""
        was_string = self.is_string
        was_escaped = self._is_escaped
        self.is_string ^= character == '"' and not was_escaped
        self._is_escaped = was_string and character == "\\" and not was_escaped
        return was_string or self.is_string


class ObjectEnd(JsonReader):
    """Finds the end of a JSON object, or list.

    is_over: whether it was found. has_begun: whether the object has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False
        self.has_begun = False
        self._depth = 0

    def push(self, text: str) -> int:
        """How many of the characters belong to it."""
        for at, each in enumerate(text):
            if self.is_quoted(each):
                continue
            if each in "{[":
                self._depth += 1
                self.has_begun = True
            elif each in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_over = True
                    return at + 1
        return len(text)
