"""Splits an answer into the model's thoughts and its speech."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from localspec.streaming.thought_families import Family, Following
from localspec.tools.partial_text import ObjectEnd, first_of, num_unfinished
from localspec.tools.tool import CallPiece

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

_MAX_HEAD = 200  # characters; a longer text is not the head of a message


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How to tell the thoughts of an answer from its speech; by default all of it is speech."""

    families: tuple[Family, ...] = ()
    """The possible families of the model."""

    opened: Following | None = None
    """What the prompt has opened at its end; None if nothing."""

    head: str = ""
    """The head of the message that the prompt has opened."""

    shown: frozenset[int] = frozenset()
    """Ids of control tokens that are among the marks, and are rendered as text."""

    are_over: bool = False
    """The prompt has closed the thoughts already."""

    def after(self, prompt: str) -> Thoughts:
        """Thoughts of an answer to the prompt, which may end in open thoughts or a head."""
        last: tuple[Family, Following] | None = None
        last_end = 0
        last_length = 0
        for family in self.families:
            for mark, following in family.marks.items():
                begin = prompt.rfind(mark)
                if begin < 0:
                    continue
                end = begin + len(mark)
                # Of two marks with the same end, the longer one counts.
                if last is None or (end, len(mark)) > (last_end, last_length):
                    last = (family, following)
                    last_end = end
                    last_length = len(mark)
        if last is None:
            return self
        family, following = last
        rest = prompt[last_end:]
        is_at_end = not rest.strip()
        if following is Following.HEAD or (following is Following.THOUGHT and is_at_end):
            return Thoughts((family,), following, rest, self.shown)
        return replace(self, are_over=following is Following.SPEECH and is_at_end)

    def without(self, texts: Collection[str]) -> Thoughts:
        """Thoughts that do not begin with these texts, which begin calls."""
        families = []
        for family in self.families:
            marks = {}
            for mark, following in family.marks.items():
                if mark not in texts:
                    marks[mark] = following
            families.append(replace(family, marks=marks))
        return replace(self, families=tuple(families))

    def marks(self, *following: Following) -> tuple[str, ...]:
        """The families' marks that one of these follows; by default all marks."""
        marks = []
        for family in self.families:
            for mark, after in family.marks.items():
                if not following or after in following:
                    marks.append(mark)
        return tuple(marks)

    @property
    def openings(self) -> tuple[str, ...]:
        """Marks with which the answer's thoughts may begin; none if they have begun already."""
        if self.opened is not None or self.are_over:
            return ()
        return self.marks(Following.THOUGHT, Following.HEAD)


class Part(NamedTuple):
    """Text that became certain. A part without text stands where a mark was."""

    text: str
    is_thought: bool
    head: str = ""
    """The head of the message that begins at this mark."""

    call: CallPiece | None = None
    """More of a call, instead of text."""

    is_again: bool = False
    """Whether it was shown when the answer was cut after it, and is certain only now."""


class ThoughtStream:
    """Splits an answer into thoughts and speech while it comes.

    Marks, the heads of messages, and the blank space between a mark and speech belong to
    neither. In the JSON object of a message to a tool no mark counts.

    Args:
        thoughts: How to tell thoughts from speech.
        max_head: A longer text, in characters, is not the head of a message.
    """

    def __init__(self, thoughts: Thoughts, max_head: float = _MAX_HEAD) -> None:
        self._max_head = max_head
        self._families = thoughts.families
        self._following = thoughts.opened  # None: speech or a mark may begin here
        self._named = thoughts.head
        self._head = ""

        self.held = ""
        """Text that waits, because it may be the beginning of a mark."""

        self._has_marks = False  # whether there was a mark
        self._object: ObjectEnd | None = None  # finds the end of an object for a tool

    @property
    def is_thinking(self) -> bool:
        """Whether the following text is hidden from the user, unless a mark ends that."""
        return self._following not in (None, Following.SPEECH)

    @property
    def head(self) -> str | None:
        """The present part of a message's head; None outside of a head."""
        if self._following is Following.HEAD:
            return self._named + self._head
        return None

    @property
    def speaks(self) -> bool:
        """Whether speech follows, directly or after another mark."""
        return self._has_marks and not self.is_thinking

    def push(self, text: str) -> list[Part]:
        """The parts that are certain now, in order. An unfinished mark waits inside."""
        self.held += text
        return self._parts(is_whole=False)

    def copy(self) -> ThoughtStream:
        """An independent stream with the same state."""
        other = copy.copy(self)
        other._object = copy.copy(self._object)
        return other

    def finish(self) -> list[Part]:
        """The parts that waited; no more text follows."""
        parts = self._parts(is_whole=True)
        if self._head and not self._has_marks:
            # It could have been the head of a message, and was all that the model said.
            parts.append(Part(self._head, is_thought=False))
            self._head = ""
        return parts

    def _parts(self, *, is_whole: bool) -> list[Part]:
        parts = []
        while self.held:
            if self._following is None and not self._enter_first_part(is_whole=is_whole):
                break
            if self._following is None:
                continue
            if self._object is not None:
                parts += self._of_object(self._object)
                continue
            marks = self._marks()
            mark = first_of(marks, self.held) or ""
            at = self.held.find(mark)
            num_waiting = 0
            if not is_whole:
                num_waiting = num_unfinished(marks, self.held)
            end = len(self.held) - num_waiting
            if mark and at < end:
                text = self.held[:at]
                self.held = self.held[at + len(mark) :]
            else:
                mark = ""
                text = self.held[:end]
                self.held = self.held[end:]
            parts += self._parts_of(text)
            if mark:
                head = self._enter(mark)
                parts.append(Part("", self.is_thinking, head))
            elif num_waiting:
                break
        return parts

    def _of_object(self, end: ObjectEnd) -> list[Part]:
        """The part of the text that belongs to an object. Other text ends the object."""
        size = 0
        if end.has_begun or self.held.lstrip()[:1] in ("", "{"):
            size = end.push(self.held)
        text = self.held[:size]
        self.held = self.held[size:]
        if end.is_over or not size:
            self._object = None
        return self._parts_of(text)

    def _enter_first_part(self, *, is_whole: bool) -> bool:
        """Enter the mark at the beginning, or speech. Returns False if more text is needed."""
        begin = self.held.lstrip()
        mark = ""
        may_be_longer = False
        for other in self._marks():  # the longest first
            if not mark and begin.startswith(other):
                mark = other
            elif other != mark and other.startswith(begin):
                may_be_longer = True
        if may_be_longer and not is_whole:
            return False
        if mark:
            self.held = begin[len(mark) :]
            self._enter(mark)
            return True
        if self._has_marks:
            self.held = begin
        self._following = Following.SPEECH
        return True

    def _marks(self) -> list[str]:
        """The marks that count at the present place, the longest first."""
        marks = []
        for family in self._families:
            for mark, after in family.marks.items():
                if self._counts(family, after):
                    marks.append(mark)
        marks.sort(key=len, reverse=True)
        return marks

    def _counts(self, family: Family, after: Following) -> bool:
        """Whether a mark counts here. after: what follows it."""
        if self._following is Following.THOUGHT:
            return after is not Following.THOUGHT
        if self._following is Following.SPEECH:
            return family.are_tokens or (self._has_marks and after is Following.NOTHING)
        return True

    def _parts_of(self, text: str) -> list[Part]:
        """The part of a text before a mark."""
        if self._following is Following.HEAD:
            self._head += text
            if len(self._head) <= self._max_head:
                return []
            text = self._head
            self._head = ""
            self._following = Following.SPEECH
        if not text or self._following is Following.NOTHING:
            return []
        return [Part(text, self._following is Following.THOUGHT)]

    def _enter(self, mark: str) -> str:
        """Continue after a mark. Returns the head of the message whose body begins, else ""."""
        family = next(family for family in self._families if mark in family.marks)
        after = family.marks[mark]
        head = ""
        if after is Following.BODY:
            head = self._named + self._head
            self._object = None
            if " to=functions." in head:
                self._object = ObjectEnd()
            after = Following.SPEECH
            if re.search(family.thoughtful, head):
                after = Following.THOUGHT
        if after is Following.HEAD:
            self._head += " "  # separates the texts before and after the mark
        else:
            self._named = ""
            self._head = ""
        self._families = (family,)
        self._has_marks = True
        self._following = after
        if after is Following.SPEECH:
            self._following = None
        return head


class _StreamBoundary:
    """A `Boundary` of a constraint that reads the answer as a stream of thoughts and speech."""

    is_known_by_held = False

    def __init__(self, stream: ThoughtStream) -> None:
        self._stream = stream

    def copy(self) -> Self:
        other = copy.copy(self)
        other._stream = self._stream.copy()
        return other


class ThoughtsEnd(_StreamBoundary):
    """Watches an answer for the end of its thoughts."""

    def __init__(self, thoughts: Thoughts) -> None:
        # A head may have any length here: if it became speech, that would have to fit.
        super().__init__(ThoughtStream(thoughts, math.inf))

    @property
    def held(self) -> str:
        return self._stream.held

    def push(self, text: str) -> str | None:
        """The speech after the thoughts, without blank space between; None before that."""
        parts = self._stream.push(text)
        if not self._stream.speaks:
            return None
        parts += self._stream.finish()
        return "".join(part.text for part in parts if not part.is_thought)


class HeadTrigger(_StreamBoundary):
    """Watches an answer for the first of some texts in the head of a message."""

    def __init__(self, thoughts: Thoughts, texts: tuple[str, ...]) -> None:
        super().__init__(ThoughtStream(thoughts))
        self._texts = texts
        self._last = {text[-1] for text in texts}  # the triggers' last characters

    @property
    def held(self) -> str:
        return self._stream.head or self._stream.held

    def push(self, text: str) -> str | None:
        """The text after the trigger; None if that has not come."""
        begin = 0
        for end, character in enumerate(text, 1):
            if character not in self._last:
                continue
            self._stream.push(text[begin:end])
            head = self._stream.head or ""
            if head.endswith(self._texts):
                return text[end:]
            begin = end
        self._stream.push(text[begin:])
        return None


def without_thoughts(answer: str, families: tuple[Family, ...]) -> str:
    """An answer of another program, without the thoughts that it may begin with."""
    thoughts = Thoughts(families)
    if not answer.lstrip().startswith(thoughts.marks(Following.THOUGHT)):
        return answer
    stream = ThoughtStream(thoughts)
    parts = stream.push(answer) + stream.finish()
    return "".join(part.text for part in parts if not part.is_thought)
