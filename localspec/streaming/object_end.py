"""JSON that comes piece by piece: where an object ends, and its numbers."""

from __future__ import annotations

import json

from localspec.tools.tool import json_value


class ObjectEnd:
    """Finds the end of a JSON object, or list.

    is_over: whether it was found. has_begun: whether the object has.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.has_begun = False
        self._depth = 0
        self._is_string = False
        self._is_escaped = False

    def push(self, text: str) -> int:
        """How many of the characters belong to it."""
        for at, each in enumerate(text):
            if self._is_string:
                is_escape = each == "\\" and not self._is_escaped
                self._is_string = each != '"' or self._is_escaped
                self._is_escaped = is_escape
            elif each == '"':
                self._is_string = True
            elif each in "{[":
                self._depth += 1
                self.has_begun = True
            elif each in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_over = True
                    return at + 1
        return len(text)


class FiniteNumbers:
    """Writes JSON as it is, but for numbers that no float can hold: the largest in their place.

    A number waits until it has ended.
    """

    def __init__(self) -> None:
        self._number = ""
        self._is_string = False
        self._is_escaped = False

    def push(self, text: str) -> str:
        """What is written of the text, and of a number before it."""
        found = []
        for each in text:
            if not self._is_string and each in ("+-.0123456789eE" if self._number else _BEGINS):
                self._number += each
                continue
            found.append(self._written())
            found.append(each)
            self._is_string ^= each == '"' and not self._is_escaped
            self._is_escaped = each == "\\" and self._is_string and not self._is_escaped
        return "".join(found)

    def _written(self) -> str:
        number, self._number = self._number, ""
        if len(number) < _LONG or number.lstrip("-").isdecimal():
            return number
        return number if abs(float(number)) < _INFINITE else json.dumps(json_value(number))


_BEGINS = "-0123456789"
_LONG = 5  # characters of the shortest number that no float can hold: 1e309
_INFINITE = float("inf")
