"""Calls that a model writes as JSON alone, without the marks of its family."""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.tools.partial_text import ObjectEnd
from localspec.tools.tool import Tool
from localspec.tools.written import Written, read_unmarked

STARTS = ("```", "<tools>")  # with which calls may begin behind a text
_FENCES = ("```json", "<tools>", "</tools>")
_CLOSINGS = ("```", "</tools>")
_WHOLE_FENCES = re.compile(r"\A(?:```json|```(?!j)|</?tools>)*")
# How objects begin that name a tool, without blank space.
_BEGINS = (
    '{"name":"NAME"',
    '{"type":"function","name":"NAME"',
    '{"function":{"name":"NAME"',
    '{"type":"function","function":{"name":"NAME"',
    '{"arguments":{',
    '{"parameters":{',
)


class UnmarkedCalls:
    """Watches an answer from its beginning for whether it begins with such calls.

    They are objects with the name of a tool and arguments that fit, or lists of such, perhaps
    in a fence each; an object may begin with two braces. Behind a fence anything may follow,
    as an explanation; behind an object alone only others.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self._begins = [
            opening + begin.replace("NAME", tool.name)
            for tool in tools
            for begin in _BEGINS
            for opening in ("", "[", "{")
        ]
        self._text = ""
        self._begin = ""  # of the next value, with its fence, without blank space
        self._end: ObjectEnd | None = None  # of the value that is written
        self._closing = ""  # of the first of two braces
        self._has_value = False  # in a fence
        self._num_closed = 0  # characters up to the end of the last fence with calls
        self.is_possible = True

    @property
    def is_within(self) -> bool:
        """Whether an object that names a tool is being written."""
        return self.is_possible and self._end is not None

    def push(self, text: str) -> None:
        """More of the answer. Sets `is_possible` to whether it may still be calls."""
        self._text += text
        at = 0
        while self.is_possible and at < len(text):
            before = len(self._text) - len(text)
            if self._end is None:
                self._read_start(text[at])
                at += 1
                if self._has_value and self._begin.lower() in _CLOSINGS:
                    self._num_closed = before + at
                continue
            at += self._end.push(text[at:])
            if self._end.is_over:
                self._begin, self._end = "", None
                so_far = self._text[: before + at]
                self.is_possible = read_unmarked(so_far, self._tools) is not None
                self._has_value = so_far.lstrip().startswith(STARTS)

    def _read_start(self, character: str) -> None:
        """Look at the next character in front of a value, or of its beginning."""
        if character == self._closing and not self._begin:
            self._closing = ""
            return
        self._begin += character.strip()
        at = next((at for at, each in enumerate(self._begin) if each in "{["), None)
        fence, value = self._begin[:at].lower(), self._begin[len(self._begin[:at]) :]
        unfinished = _WHOLE_FENCES.sub("", fence)
        if not value:
            self.is_possible = any(each.startswith(unfinished) for each in _FENCES)
            return
        if any(value.startswith(each) for each in self._begins):
            self._end, self._closing = ObjectEnd(), "}" * value.startswith("{{")
            self._end.push(value[len(self._closing) :])
        is_begin = any(each.startswith(value) for each in self._begins)
        self.is_possible = not unfinished and (is_begin or self._end is not None)

    def read(self, *, is_last: bool) -> tuple[list[Written], str] | None:
        """The calls so far and the text behind them; None if the text begins otherwise.

        is_last: nothing follows, so that an object needs no fence.
        """
        calls = read_unmarked(self._text, self._tools) if is_last else None
        if calls is not None:
            return calls, ""
        calls = read_unmarked(self._text[: self._num_closed], self._tools)
        if calls is None:
            return None
        return calls, "" if self.is_within and not is_last else self._text[self._num_closed :]
