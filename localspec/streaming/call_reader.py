"""The interface of the readers of an answer's calls, and the state that they share."""

from __future__ import annotations

import abc
from collections.abc import Collection

from localspec.streaming.thinking import Part
from localspec.tools.grammar import Calls
from localspec.tools.partial_text import num_unfinished
from localspec.tools.tool import CallPiece, ToolCall


class AnswerCalls:
    """Makes the parts for an answer's calls and its text, and knows how calls begin."""

    def __init__(self, calls: Calls) -> None:
        self.form = calls.form
        """How calls are written."""

        self.tools = {tool.name: tool for tool in calls.use.callable}
        """The tools that may be called, by name."""

        openings = [*self.form.openings]
        if self.form.forgets:
            for name in self.tools:
                openings.append(self.form.forgets.replace("NAME", name))
        self.openings = tuple(openings)
        """The texts with which calls begin: the form's marks, and the text that follows a mark
        that models forget."""

        self.is_kept = calls.grammar is not None
        """Whether a grammar keeps calls to the form."""

        self.num_calls = 0
        """Calls that have begun."""

        self.has_spoken = False
        """Whether there was text that is not blank."""

        self.has_ended = False
        """Whether the only allowed call has come, where no grammar enforces that."""

        self._is_behind_call = False  # whether the last part was a call
        self._is_one = calls.form.is_single or not calls.use.is_parallel
        self._id_of = calls.id_of

    @property
    def is_at_start(self) -> bool:
        """Whether there was no text and no call yet."""
        return not self.has_spoken and not self.num_calls

    @property
    def _may_be_bare(self) -> bool:
        return self.form.is_bare and self.is_at_start

    def is_bare_call(self, text: str) -> bool:
        """Whether a text at the answer's beginning is a call without an opening."""
        without_space = "".join(text.split())
        return self._may_be_bare and without_space.startswith(self.form.sign)

    def num_waiting(self, text: str, marks: Collection[str]) -> int:
        """Characters at the end of a text with which a call or one of the marks may begin."""
        without_space = "".join(text.split())
        if self._may_be_bare and self.form.sign.startswith(without_space):
            return len(text)
        return num_unfinished(marks, text)

    def say(self, text: str) -> list[Part]:
        """The part of a text, without the blank space after a call."""
        if self._is_behind_call:
            text = text.lstrip()
        if not text:
            return []
        self._is_behind_call = False
        if not text.isspace():
            self.has_spoken = True
        return [Part(text, is_thought=False)]

    def say_last(self, text: str, *, is_cut: bool) -> list[Part]:
        """The part of the answer's last text.

        Args:
            text: The text.
            is_cut: The answer was cut off, so that half an opening is left out.
        """
        num_waiting = self.num_waiting(text, self.openings)
        if is_cut and num_waiting:
            text = text[:-num_waiting].rstrip()
        if self.num_calls:
            text = text.rstrip()
        return self.say(text)

    def start_call(self, name: str, own_id: str = "") -> CallPiece:
        """The first piece of the next call."""
        number = self.num_calls
        self.num_calls += 1
        return CallPiece(
            number,
            own_id or self._id_of(number),
            name,
            "",
            is_last=False,
        )

    def call(self, written: list[ToolCall]) -> list[Part]:
        """Note complete calls. Returns a part for each.

        Such calls come where no grammar keeps calls to the form. So more may come than are
        allowed: if only one is, the rest are left out.

        Args:
            written: The calls that the model wrote.
        """
        parts = []
        for call in written:
            piece = self.start_call(call.name, call.id)._replace(json=call.json, is_last=True)
            parts.append(Part("", is_thought=False, call=piece))
            self._is_behind_call = True
            if self._is_one:
                self.has_ended = True
                break
        return parts


class CallReader(abc.ABC):
    """Reads calls of one notation, from their beginning.

    Args:
        calls: The answer's calls.
    """

    def __init__(self, calls: AnswerCalls) -> None:
        self.rest: str | None = None
        """None while calls are read; then the text after them, or all if it was no call."""

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
