"""The interface of the readers of an answer's calls, and the state that they share."""

from __future__ import annotations

import abc
from collections.abc import Collection

from localspec.streaming.thinking import Part
from localspec.tools.grammar import Calls
from localspec.tools.partial_text import num_unfinished
from localspec.tools.tool import CallPiece, ToolCall


class AnswerCalls:
    """Makes the parts of an answer's calls and of its text, and knows how calls begin."""

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
        """The texts with which calls begin: the form's opening marks, and if models forget a
        mark, the text that would follow it."""

        self.is_enforced = calls.grammar is not None
        """Whether a grammar enforces the form of calls."""

        self.num_calls = 0
        """How many calls have begun."""

        self.has_text = False
        """Whether there was text that is not blank."""

        self.has_ended = False
        """Whether the only allowed call has come, where no grammar enforces that."""

        self._is_after_call = False  # whether the last part was a call
        self._is_limited_to_one = calls.form.is_single or not calls.use.is_parallel
        self._id_of = calls.id_of

    @property
    def is_at_start(self) -> bool:
        """Whether there was no text and no call yet."""
        return not self.has_text and not self.num_calls

    @property
    def _may_be_bare(self) -> bool:
        """Whether a call may begin here without an opening."""
        return self.form.is_bare and self.is_at_start

    def is_bare_call(self, text: str) -> bool:
        """Whether a text at the answer's beginning begins a call without an opening."""
        without_space = "".join(text.split())
        return self._may_be_bare and without_space.startswith(self.form.sign)

    def num_waiting(self, text: str, marks: Collection[str]) -> int:
        """How many characters at a text's end may begin a call or one of the marks."""
        without_space = "".join(text.split())
        if self._may_be_bare and self.form.sign.startswith(without_space):
            return len(text)
        return num_unfinished(marks, text)

    def add_text(self, text: str) -> list[Part]:
        """Make the part of a text of the answer; none if it is blank space after a call."""
        if self._is_after_call:
            text = text.lstrip()
        if not text:
            return []
        self._is_after_call = False
        if not text.isspace():
            self.has_text = True
        return [Part(text, is_thought=False)]

    def add_last_text(self, text: str, *, is_cut: bool) -> list[Part]:
        """Make the part of the last text of the answer or a message; none if it is empty.

        Args:
            text: The text.
            is_cut: Whether the answer was cut off. Then an incomplete opening is left out.
        """
        num_waiting = self.num_waiting(text, self.openings)
        if is_cut and num_waiting:
            text = text[:-num_waiting].rstrip()
        if self.num_calls:
            text = text.rstrip()
        return self.add_text(text)

    def start_call(self, name: str, call_id: str = "") -> CallPiece:
        """Make the first piece of the next call.

        Args:
            name: The tool's name.
            call_id: The id that the model wrote; "" if it wrote none.
        """
        number = self.num_calls
        self.num_calls += 1
        return CallPiece(
            number,
            call_id or self._id_of(number),
            name,
            "",
            is_last=False,
        )

    def add_calls(self, calls: list[ToolCall]) -> list[Part]:
        """Make a part for each complete call; if only one is allowed, for the first alone.

        Args:
            calls: Calls that the model wrote where no grammar limits their number.
        """
        parts = []
        for call in calls:
            first_piece = self.start_call(call.name, call.id)
            piece = first_piece._replace(json=call.json, is_last=True)
            parts.append(Part("", is_thought=False, call=piece))
            self._is_after_call = True
            if self._is_limited_to_one:
                self.has_ended = True
                break
        return parts


class CallReader(abc.ABC):
    """Reads calls of one notation, from their beginning.

    Args:
        calls: The answer's calls.
    """

    def __init__(self, calls: AnswerCalls) -> None:
        self.text_after: str | None = None
        """None until the reader has finished; then the text after its calls, which is all text
        if there was no call."""

        self._calls = calls

    @abc.abstractmethod
    def push(self, text: str) -> list[Part]:
        """Add a text. Returns the parts that became certain, in order."""

    @abc.abstractmethod
    def finish(self, *, is_cut: bool) -> list[Part]:
        """End the text: no more follows. Returns the parts that waited inside.

        Args:
            is_cut: Whether the answer was cut off. Then an incomplete call is left out.
        """
