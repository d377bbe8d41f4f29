"""Calls behind an opening mark, as most families write them."""

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
    """Reads the calls behind an opening.

    Where a grammar keeps the calls to their form, a call is known by its name, and its
    arguments come while they are written:

        NAME      -> ARGUMENTS  when the name of a tool was read
        ARGUMENTS -> NAME       when they are whole: another call may follow
        NAME      -> CLOSING    when another name was read, since no grammar kept that

    Elsewhere calls are known when they are whole, and anything else stays text:

        CLOSING   -> over       when a closing mark comes, and what stands before it is calls
        any state -> over       when no more text follows

    Args:
        calls: of the answer.
        front: the opening mark, and blank space before it: text if this is no call.
        is_kept: whether a grammar keeps these to their form, if it keeps the answer's calls.
    """

    def __init__(self, calls: AnswerCalls, front: str, *, is_kept: bool) -> None:
        super().__init__(calls)
        self._front = front
        self._state = _MarkedState.NAME if is_kept and calls.is_kept else _MarkedState.CLOSING
        self._text = ""  # that is not a part yet
        self._closing_from = 0  # the first position in it at which a closing may end calls
        self._name = calls.form.first_pattern(front.strip())
        self._call: CallPiece  # whose arguments come, and
        self._arguments: ArgumentReader  # who reads them

    @property
    def is_kept(self) -> bool:
        """Whether a grammar keeps what comes next to the form."""
        return self._state is not _MarkedState.CLOSING

    def push(self, text: str) -> list[Part]:
        self._text += text
        if self._state is _MarkedState.NAME:
            return self._read_name()
        if self._state is _MarkedState.ARGUMENTS:
            return self._read_arguments()
        return self._read_to_closing()

    def finish(self, *, is_cut: bool) -> list[Part]:
        form = self._calls.form
        may_be_call = form.may_begin(self._front.lstrip(), self._text)
        if self._state is not _MarkedState.CLOSING or (is_cut and may_be_call):
            return []
        written = calls_in(self._text, self._calls.tools, form.read)
        if is_cut or written is None:
            return self._calls.say_last(self._front + self._text, is_cut=False)
        return self._calls.call(written)

    def _read_name(self) -> list[Part]:
        found = self._name.search(self._text)
        if found is None:
            return []
        tool = self._calls.tools.get(found["name"])
        if tool is None:
            self._state = _MarkedState.CLOSING
            return self._read_to_closing()
        self._state = _MarkedState.ARGUMENTS
        self._text = self._text[found.end() :]
        self._call = self._calls.start_call(tool.name)
        self._arguments = self._calls.form.reader(tool, is_kept=True)
        return [Part("", is_thought=False, call=self._call), *self._read_arguments()]

    def _read_arguments(self) -> list[Part]:
        arguments = self._arguments
        json = arguments.push(self._text)
        piece = self._call._replace(json=json, is_last=arguments.is_over)
        parts = [Part("", is_thought=False, call=piece)] if json else []
        self._text = ""
        if arguments.is_over:
            self._state = _MarkedState.NAME
            self._name = self._calls.form.further_pattern()
            parts += self.push(arguments.rest)
        return parts

    def _read_to_closing(self) -> list[Part]:
        """The calls up to the first closing that ends calls: one may stand within a text."""
        form = self._calls.form
        while form.closing:
            at = self._text.find(form.closing, self._closing_from)
            if at < 0:
                break
            written = calls_in(self._text[:at], self._calls.tools, form.read)
            if written is not None:
                self.rest = self._text[at + len(form.closing) :]
                return self._calls.call(written)
            self._closing_from = at + 1
        return []
