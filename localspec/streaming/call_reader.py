"""The readers of an answer's calls: their interface, and all that they share."""

from __future__ import annotations

import abc
from collections.abc import Collection

from localspec.streaming.thinking import Part
from localspec.tools.grammar import Calls
from localspec.tools.partial_text import num_unfinished
from localspec.tools.tool import CallPiece, ToolCall


class AnswerCalls:
    """Makes parts of an answer's calls and of its text, and knows how calls begin.

    form, tools: how calls are written, and of which tools, by name. openings: the texts with
    which they begin: the form's marks, and what follows one that models forget. is_kept:
    whether a grammar keeps them to the form. num_calls: that have begun. has_spoken: whether
    there was text that is not blank. has_ended: whether there was the only call that there may
    be, which no grammar sees to.
    """

    def __init__(self, calls: Calls) -> None:
        self.form = calls.form
        self.tools = {tool.name: tool for tool in calls.use.callable}
        forgotten = [self.form.forgets.replace("NAME", name) for name in self.tools]
        self.openings = (*self.form.openings, *filter(None, forgotten))
        self.is_kept = calls.grammar is not None
        self.num_calls = 0
        self.has_spoken = False
        self.has_ended = False
        self._is_behind_call = False
        self._is_one = calls.form.is_single or not calls.use.is_parallel
        self._id_of = calls.id_of

    @property
    def is_at_start(self) -> bool:
        """Whether nothing was said yet, nor called."""
        return not self.has_spoken and not self.num_calls

    @property
    def _may_be_bare(self) -> bool:
        return self.form.is_bare and self.is_at_start

    def is_bare_call(self, text: str) -> bool:
        """Whether the answer begins with this text, which is a call without an opening."""
        return self._may_be_bare and "".join(text.split()).startswith(self.form.sign)

    def num_waiting(self, text: str, marks: Collection[str]) -> int:
        """Characters at the end of a text with which a call or one of the marks may begin."""
        if self._may_be_bare and self.form.sign.startswith("".join(text.split())):
            return len(text)
        return num_unfinished(marks, text)

    def say(self, text: str) -> list[Part]:
        """A text, without the blank space behind a call."""
        if self._is_behind_call:
            text = text.lstrip()
        if not text:
            return []
        self._is_behind_call = False
        if not text.isspace():
            self.has_spoken = True
        return [Part(text, is_thought=False)]

    def say_last(self, text: str, *, is_cut: bool) -> list[Part]:
        """A text with which the answer ends, or a part of it.

        Args:
            is_cut: The answer was cut off, so that half an opening is no text.
        """
        num_waiting = self.num_waiting(text, self.openings)
        if is_cut and num_waiting:
            text = text[:-num_waiting].rstrip()
        return self.say(text.rstrip() if self.num_calls else text)

    def start_call(self, name: str, own_id: str = "") -> CallPiece:
        """The first piece of the next call."""
        number = self.num_calls
        self.num_calls += 1
        return CallPiece(number, own_id or self._id_of(number), name, "", is_last=False)

    def call(self, written: list[ToolCall]) -> list[Part]:
        """Calls that are whole, and that no grammar kept."""
        parts = []
        for each in written:
            piece = self.start_call(each.name, each.id)._replace(json=each.json, is_last=True)
            parts.append(Part("", is_thought=False, call=piece))
            self._is_behind_call = True
            if self._is_one:
                self.has_ended = True
                break
        return parts


class CallReader(abc.ABC):
    """Reads calls that are written in one way, from where they begin.

    rest: None while they are read; then the text behind them, or all of it if they were none.

    Args:
        calls: of the answer.
    """

    def __init__(self, calls: AnswerCalls) -> None:
        self.rest: str | None = None
        self._calls = calls

    @abc.abstractmethod
    def push(self, text: str) -> list[Part]:
        """The parts that are certain now, in order."""

    @abc.abstractmethod
    def finish(self, *, is_cut: bool) -> list[Part]:
        """The parts that waited; no more text follows.

        Args:
            is_cut: The answer was cut off, so that an incomplete call is not a call.
        """
