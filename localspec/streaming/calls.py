"""Splits an answer into text and calls of tools."""

from __future__ import annotations

from localspec.streaming.bare_calls import FENCES, BareCalls
from localspec.streaming.call_reader import AnswerCalls, CallReader
from localspec.streaming.marked_calls import MarkedCalls
from localspec.streaming.message_calls import MessageCalls, match_tool
from localspec.streaming.thinking import Part
from localspec.tools.grammar import Calls
from localspec.tools.partial_text import first_of, num_unfinished


class CallStream:
    """Splits an answer's parts into text and calls while the answer comes.

    If a grammar enforces the form of calls, a call is known by its name, and its arguments come
    while they are written. Otherwise a call is known when it is whole, and everything else
    stays text. The form's marks and the blank space around calls are not text. Thoughts contain
    no calls, unless they never end. If the model may choose whether to call, JSON objects with
    a tool's name and arguments are calls, too, in a fence or at the end of an answer. Their
    text waits inside as long as they may be calls.

    New text is speech, or goes to one of the readers:

        speech -> BareCalls     at the beginning of an answer, and at a fence
        speech -> MarkedCalls   at an opening mark
        speech -> MessageCalls  at the head of a message to a tool
        any reader -> speech    when the reader has finished, with the text after its calls
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = AnswerCalls(calls)
        is_free = not calls.use.must and calls.use.answer_schema is None
        # Fences at which calls without marks may begin; empty once a call had a mark.
        self._fences: tuple[str, ...] = ()
        if is_free:
            self._fences = FENCES
        # The end of the thoughts from an opening mark on: a call, if the thoughts never end.
        self._held_thought = ""
        self._held = ""  # the end of the speech, with which a call may begin
        self._num_searched = 0  # characters of it at which no call begins
        self._reader: CallReader | None = None  # reads the present calls; None in speech

    @property
    def is_calling(self) -> bool:
        """Whether the present text is read as calls of the form, or as a message to a tool.

        It may turn out to be no call. Text that `BareCalls` reads does not count.
        """
        return isinstance(self._reader, MarkedCalls)

    @property
    def is_enforced(self) -> bool:
        """Whether a grammar enforces that only calls follow."""
        reader = self._reader
        is_message = isinstance(reader, MessageCalls)  # another message may follow
        return isinstance(reader, MarkedCalls) and not is_message and reader.is_enforced

    @property
    def has_ended(self) -> bool:
        """Whether the only allowed call has come, where no grammar enforces that."""
        return self._calls.has_ended

    def is_call_head(self, head: str) -> bool:
        """Whether the message with that head is a call of one of the tools."""
        return match_tool(head, self._calls) is not None

    def push(self, part: Part) -> list[Part]:
        """Add a part of the answer. Returns the parts that became certain, in order."""
        if self.has_ended:
            return []
        is_message = isinstance(self._reader, MessageCalls)
        if part.text and part.is_thought and not is_message:
            parts = []
            if not self.is_calling:
                parts = self._end_speech(is_cut=False)
            return [*parts, *self._push_thought(part.text)]
        parts = self._release_thought()
        if part.text:
            return [*parts, *self._push_speech(part.text)]
        # A mark ends speech and messages, but not calls after an opening mark.
        if is_message or not self.is_calling:
            parts += self._end_speech(is_cut=False)
        match = match_tool(part.head, self._calls)
        if match is not None:
            name = match["name"]
            self._reader = MessageCalls(self._calls, match)
            parts += self._push_speech(f"{name}\n")
        return parts

    def finish(self, *, is_cut: bool) -> list[Part]:
        """End the answer: no more text follows. Returns the parts that waited inside.

        Args:
            is_cut: Whether the answer was cut off. Then an incomplete call is left out.
        """
        if self.has_ended:
            return []
        if self._held_thought and not is_cut:
            return self._read_held_thought()
        return [*self._release_thought(), *self._end_speech(is_cut=is_cut)]

    def _push_thought(self, text: str) -> list[Part]:
        """Add a thought. Returns the thoughts before an opening mark, and holds the others."""
        text = self._held_thought + text
        opening = first_of(self._calls.openings, text)
        if opening is None:
            size = len(text) - num_unfinished(self._calls.openings, text)
        else:
            size = text.find(opening)
        self._held_thought = text[size:]
        if size:
            return [Part(text[:size], is_thought=True)]
        return []

    def _release_thought(self) -> list[Part]:
        """The held thought, which is no call, since the thoughts have ended."""
        text = self._held_thought
        self._held_thought = ""
        if text:
            return [Part(text, is_thought=True)]
        return []

    def _read_held_thought(self) -> list[Part]:
        """Read the end of thoughts that never ended. Text that is no call stays a thought."""
        self._calls.is_enforced = False  # the grammar begins only after the thoughts
        parts = self._push_speech(self._held_thought)
        self._held_thought = ""
        parts += self.finish(is_cut=False)
        marked = []
        for part in parts:
            if part.call is None:
                part = part._replace(is_thought=True)
            marked.append(part)
        return marked

    def _push_speech(self, text: str) -> list[Part]:
        """Add speech. Returns the text and the calls that became certain.

        After one reader has finished, speech or another reader gets the text after its calls.
        """
        is_first = self._calls.is_at_start and not (self._held or self._reader)
        if is_first and self._fences:
            self._reader = BareCalls(self._calls)
        self._held += text
        parts: list[Part] = []
        while not self.has_ended:
            if self._reader is None:
                parts += self._read_speech()
            if self._reader is None:
                break
            read_parts = self._reader.push(self._held)
            parts += read_parts
            self._held = self._reader.text_after or ""
            if self._reader.text_after is None:
                break
            self._reader = None
            without_space = self._held.lstrip()
            if not read_parts and without_space.startswith(FENCES):
                # No call begins at that fence, but another fence may begin within it.
                self._num_searched = len(self._held) - len(without_space) + 1
        return parts

    def _read_speech(self) -> list[Part]:
        """Read the held speech up to a call. Returns its text; sets `_reader` at a call."""
        held = self._held
        marks = (*self._calls.openings, *self._fences)
        mark = first_of(marks, held[self._num_searched :])
        if self._calls.is_bare_call(held):
            mark = ""  # the call begins at once, without a mark
        if mark is None:
            end = len(held) - self._calls.num_waiting(held, marks)
        else:
            end = held.find(mark, self._num_searched)
        self._num_searched = 0
        text = held[:end].rstrip()  # the blank space before a call belongs to it
        self._held = held[len(text) :]
        if mark in FENCES:
            self._reader = BareCalls(self._calls)
        elif mark is not None:
            front = held[len(text) : end]
            is_opening = mark in self._calls.form.openings
            if is_opening:
                front += mark
            self._held = self._held[len(front) :]
            # Where the model forgot the opening, the mark is the beginning of the call itself,
            # and the grammar did not see that a call has begun.
            is_enforced = is_opening or mark == ""
            self._reader = MarkedCalls(self._calls, front, is_enforced=is_enforced)
            self._fences = ()
        return self._calls.add_text(text)

    def _end_speech(self, *, is_cut: bool) -> list[Part]:
        """End the speech, or the calls in it, for now. Returns the parts that waited inside."""
        if self._reader is None:
            parts = self._calls.add_last_text(self._held, is_cut=is_cut)
        else:
            parts = self._reader.finish(is_cut=is_cut)
        self._held = ""
        self._reader = None
        return parts
