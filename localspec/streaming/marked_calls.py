"""Calls after an opening mark, as most families write them."""

from __future__ import annotations

import enum

from localspec.streaming.call_reader import AnswerCalls, CallReader
from localspec.streaming.thinking import Part
from localspec.tools.arguments import ArgumentReader
from localspec.tools.call_form import calls_in
from localspec.tools.tool import CallPiece


class _MarkedState(enum.Enum):
    """States of `MarkedCalls`, which draws them."""

    NAME = enum.auto()
    ARGUMENTS = enum.auto()
    CLOSING = enum.auto()


class MarkedCalls(CallReader):
    """Reads the calls after an opening mark.

    If a grammar enforces the form of the calls, a call is known by its name, and its arguments
    come while they are written:

        NAME      -> ARGUMENTS  when the name of a tool was read
        ARGUMENTS -> NAME       when the arguments are whole: another call may follow
        NAME      -> CLOSING    when another name was read: so the grammar is not in force

    Otherwise calls are known when they are whole, and everything else stays text:

        CLOSING   -> over       when a closing mark comes, and the text before it is calls
        any state -> over       when no more text follows

    Args:
        calls: The answer's calls.
        front: The opening mark with the blank space before it: text if no call follows.
        is_enforced: Whether the answer's grammar, if it has one, was in force at the opening.
    """

    def __init__(self, calls: AnswerCalls, front: str, *, is_enforced: bool) -> None:
        super().__init__(calls)
        self._front = front
        self._state = _MarkedState.CLOSING
        if is_enforced and calls.is_enforced:
            self._state = _MarkedState.NAME
        self._text = ""  # text that is not a part yet
        # The first position in the text at which a closing mark may still end the calls.
        self._closing_from = 0
        self._name_pattern = calls.form.first_pattern(front.strip())
        self._call: CallPiece  # the first piece of the call whose arguments come
        self._arguments: ArgumentReader  # reads them

    @property
    def is_enforced(self) -> bool:
        """Whether a grammar enforces the form of the following text."""
        return self._state is not _MarkedState.CLOSING

    def push(self, text: str) -> list[Part]:
        self._text += text
        if self._state is _MarkedState.NAME:
            return self._read_name()
        if self._state is _MarkedState.ARGUMENTS:
            return self._read_arguments()
        return self._read_to_closing()

    def finish(self, *, is_cut: bool) -> list[Part]:
        if self._state is not _MarkedState.CLOSING:
            return []  # the pieces of the calls have come; an incomplete name is left out
        form = self._calls.form
        if is_cut and form.may_begin(self._front.lstrip(), self._text):
            return []  # an incomplete call is left out
        calls = calls_in(self._text, self._calls.tools, form.read)
        if is_cut or calls is None:
            return self._calls.add_last_text(self._front + self._text, is_cut=False)
        return self._calls.add_calls(calls)

    def _read_name(self) -> list[Part]:
        """Read up to a call's name. Returns its first piece, and the pieces of its arguments.

        After the name of no tool, the text is read as if no grammar were in force.
        """
        match = self._name_pattern.search(self._text)
        if match is None:
            return []
        tool = self._calls.tools.get(match["name"])
        if tool is None:
            self._state = _MarkedState.CLOSING
            return self._read_to_closing()
        self._state = _MarkedState.ARGUMENTS
        self._text = self._text[match.end() :]
        self._call = self._calls.start_call(tool.name)
        self._arguments = self._calls.form.reader(tool, is_enforced=True)
        first_part = Part("", is_thought=False, call=self._call)
        return [first_part, *self._read_arguments()]

    def _read_arguments(self) -> list[Part]:
        """Read arguments. Returns the pieces of their JSON, and of calls after their end."""
        arguments = self._arguments
        json = arguments.push(self._text)
        parts = []
        if json:
            piece = self._call._replace(json=json, is_last=arguments.is_over)
            parts.append(Part("", is_thought=False, call=piece))
        self._text = ""
        if arguments.is_over:
            self._state = _MarkedState.NAME
            self._name_pattern = self._calls.form.further_pattern()
            parts += self.push(arguments.rest)
        return parts

    def _read_to_closing(self) -> list[Part]:
        """The calls before a closing mark, once there is one that ends them.

        A closing mark in a string of a call does not end the calls.
        """
        form = self._calls.form
        while form.closing:
            closing_at = self._text.find(form.closing, self._closing_from)
            if closing_at < 0:
                break
            calls = calls_in(self._text[:closing_at], self._calls.tools, form.read)
            if calls is not None:
                self.text_after = self._text[closing_at + len(form.closing) :]
                return self._calls.add_calls(calls)
            self._closing_from = closing_at + 1
        return []
