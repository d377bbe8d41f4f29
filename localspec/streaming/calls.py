"""Splits an answer into text and calls of tools."""

from __future__ import annotations

from localspec.streaming.bare_calls import STARTS, BareCalls
from localspec.streaming.call_reader import AnswerCalls, CallReader
from localspec.streaming.marked_calls import MarkedCalls
from localspec.streaming.message_calls import MessageCalls, named_by
from localspec.streaming.thinking import Part
from localspec.tools.grammar import Calls
from localspec.tools.partial_text import first_of, num_unfinished


class CallStream:
    """Splits an answer's parts into text and calls while it comes.

    If a grammar keeps the answer to the form, a call is known by its head, and its arguments
    come as they are written. Otherwise a call is known when it is whole, and everything else
    stays text. The form's marks and the blank space around calls are not text. Thoughts hold no
    calls, unless they never end. If the model may choose whether to call, objects with a tool's
    name and arguments are calls, too, in a fence or at the end of an answer. They are held as
    long as they may be calls.

    New text is speech, or goes to one of the readers:

        speech -> BareCalls     at the beginning of an answer, and at a fence
        speech -> MarkedCalls   at an opening mark
        speech -> MessageCalls  at the head of a message to a tool
        any of them -> speech   when it is over, with the text after its calls
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = AnswerCalls(calls)
        is_free = not calls.use.must and calls.use.answer_schema is None
        # Calls without marks may begin with these, as long as no call had a mark.
        self._starts: tuple[str, ...] = ()
        if is_free:
            self._starts = STARTS
        self._thought = ""  # the end of the thoughts: a call, if the thoughts never end
        self._held = ""  # speech whose end may begin a call
        self._num_plain = 0  # its first characters, in which no fence begins a call
        self._reader: CallReader | None = None  # reads the present calls; None in speech

    @property
    def is_calling(self) -> bool:
        """Whether the following text belongs to a call, unless that turns out to be none."""
        return isinstance(self._reader, MarkedCalls)

    @property
    def is_kept(self) -> bool:
        """Whether a grammar keeps the remaining answer to calls."""
        reader = self._reader
        is_message = isinstance(reader, MessageCalls)  # another message may follow
        return isinstance(reader, MarkedCalls) and not is_message and reader.is_kept

    @property
    def has_ended(self) -> bool:
        """Whether the only allowed call has come, where no grammar enforces that."""
        return self._calls.has_ended

    def takes(self, head: str) -> bool:
        """Whether the message with that head is a call of one of the tools."""
        return named_by(head, self._calls) is not None

    def push(self, part: Part) -> list[Part]:
        """The parts that are certain now, in order."""
        if self.has_ended:
            return []
        is_message = isinstance(self._reader, MessageCalls)
        if part.text and part.is_thought and not is_message:
            parts = []
            if not self.is_calling:
                parts = self._end(is_cut=False)
            return [*parts, *self._think(part.text)]
        parts = self._thoughts()
        if part.text:
            return [*parts, *self._say(part.text)]
        if is_message or not self.is_calling:
            parts += self._end(is_cut=False)
        named = named_by(part.head, self._calls)
        if named is not None:
            name = named["name"]
            self._reader = MessageCalls(self._calls, named)
            parts += self._say(f"{name}\n")
        return parts

    def finish(self, *, is_cut: bool) -> list[Part]:
        """The parts that waited; no more text follows.

        Args:
            is_cut: The answer was cut off, so that an incomplete call is not a call.
        """
        if self.has_ended:
            return []
        if self._thought and not is_cut:
            return self._calls_in_thoughts()
        return [*self._thoughts(), *self._end(is_cut=is_cut)]

    def _think(self, text: str) -> list[Part]:
        """The thoughts before a text that may be a call, which is held."""
        text = self._thought + text
        opening = first_of(self._calls.openings, text)
        if opening is None:
            size = len(text) - num_unfinished(self._calls.openings, text)
        else:
            size = text.find(opening)
        self._thought = text[size:]
        if size:
            return [Part(text[:size], is_thought=True)]
        return []

    def _thoughts(self) -> list[Part]:
        """The thoughts that were held, and are no call."""
        text = self._thought
        self._thought = ""
        if text:
            return [Part(text, is_thought=True)]
        return []

    def _calls_in_thoughts(self) -> list[Part]:
        """The calls at the end of thoughts that never ended, which no grammar kept."""
        self._calls.is_kept = False
        parts = self._say(self._thought)
        self._thought = ""
        parts += self.finish(is_cut=False)
        return [part if part.call else part._replace(is_thought=True) for part in parts]

    def _say(self, text: str) -> list[Part]:
        """The parts of more speech. Each reader gets the text that the last one left."""
        is_first = self._calls.is_at_start and not (self._held or self._reader)
        if is_first and self._starts:
            self._reader = BareCalls(self._calls)
        self._held += text
        parts: list[Part] = []
        while not self.has_ended:
            if self._reader is None:
                parts += self._speak()
            if self._reader is None:
                break
            read = self._reader.push(self._held)
            parts += read
            self._held = self._reader.rest or ""
            if self._reader.rest is None:
                break
            self._reader = None
            begun = self._held.lstrip()
            if not read and begun.startswith(STARTS):
                # No call begins with that fence, but one may begin within it.
                self._num_plain = len(self._held) - len(begun) + 1
        return parts

    def _speak(self) -> list[Part]:
        """The text before calls, if any; chooses their reader."""
        held = self._held
        marks = (*self._calls.openings, *self._starts)
        mark = first_of(marks, held[self._num_plain :])
        if self._calls.is_bare_call(held):
            mark = ""
        if mark is None:
            at = len(held) - self._calls.num_waiting(held, marks)
        else:
            at = held.find(mark, self._num_plain)
        self._num_plain = 0
        said = held[:at].rstrip()  # blank space before a call belongs to it
        self._held = held[len(said) :]
        if mark in STARTS:
            self._reader = BareCalls(self._calls)
        elif mark is not None:
            front = held[len(said) : at]
            is_opening = mark in self._calls.form.openings
            if is_opening:
                front += mark
            # If the model forgot the opening, the mark belongs to the call, and the grammar did
            # not see that the call has begun.
            self._held = self._held[len(front) :]
            is_kept = is_opening or mark == ""
            self._reader = MarkedCalls(self._calls, front, is_kept=is_kept)
            self._starts = ()
        return self._calls.say(said)

    def _end(self, *, is_cut: bool) -> list[Part]:
        """The parts that are held at the end of a stretch of speech."""
        if self._reader is None:
            parts = self._calls.say_last(self._held, is_cut=is_cut)
        else:
            parts = self._reader.finish(is_cut=is_cut)
        self._held = ""
        self._reader = None
        return parts
