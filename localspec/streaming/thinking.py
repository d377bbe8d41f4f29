"""Splits what a model thinks before it speaks from what it says."""

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
    """What the end of the prompt has opened, if anything."""

    head: str = ""
    """The head of the message that the prompt has opened."""

    shown: frozenset[int] = frozenset()
    """Ids of control tokens that are among the marks, and are rendered as text."""

    are_over: bool = False
    """The prompt has closed the thoughts already."""

    def after(self, prompt: str) -> Thoughts:
        """Thoughts of an answer to the prompt, which may end in open thoughts or a head."""
        found = (
            (prompt.rfind(mark) + len(mark), len(mark), family, after)
            for family in self.families
            for mark, after in family.marks.items()
            if mark in prompt
        )
        last = max(found, key=lambda each: each[:2], default=None)
        if last is None:
            return self
        end, _, family, after = last
        rest = prompt[end:]
        if after is Following.HEAD or (after is Following.THOUGHT and not rest.strip()):
            return Thoughts((family,), after, rest, self.shown)
        return replace(self, are_over=after is Following.SPEECH and not rest.strip())

    def without(self, texts: Collection[str]) -> Thoughts:
        """Thoughts that these texts do not begin: they begin calls."""
        families = [
            replace(each, marks={m: each.marks[m] for m in each.marks if m not in texts})
            for each in self.families
        ]
        return replace(self, families=tuple(families))

    def marks(self, *following: Following) -> tuple[str, ...]:
        """The marks of the families in front of one of these; by default all."""
        return tuple(
            mark
            for family in self.families
            for mark, after in family.marks.items()
            if not following or after in following
        )

    @property
    def openings(self) -> tuple[str, ...]:
        """Marks that the answer's thoughts may begin with; none if they have begun already."""
        if self.opened is not None or self.are_over:
            return ()
        return self.marks(Following.THOUGHT, Following.HEAD)


class Part(NamedTuple):
    """Text that became certain. One without text stands where a mark was."""

    text: str
    is_thought: bool
    head: str = ""
    """The head of the message that begins at this mark."""

    call: CallPiece | None = None
    """Instead of text, more of a call."""

    is_again: bool = False
    """It was shown before, when the answer was cut behind it, and is certain only now."""


class ThoughtStream:
    """Splits an answer into thoughts and speech while it comes.

    Marks, the heads of messages, and the blank space between a mark and speech belong to
    neither. In the JSON object of a message to a tool no mark means anything.

    held: what waits, because it may be the beginning of a mark.
    """

    def __init__(self, thoughts: Thoughts, max_head: float = _MAX_HEAD) -> None:
        self._max_head = max_head
        self._families = thoughts.families
        self._following = thoughts.opened  # None: speech or a mark may begin here
        self._named = thoughts.head
        self._head = ""
        self.held = ""
        self._has_marks = False
        self._object: ObjectEnd | None = None  # that is written to a tool

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is not for the user, unless a mark ends it."""
        return self._following not in (None, Following.SPEECH)

    @property
    def head(self) -> str | None:
        """The head of a message as far as it has come; None outside of a head."""
        if self._following is Following.HEAD:
            return self._named + self._head
        return None

    @property
    def speaks(self) -> bool:
        """Whether speech follows, directly or behind another mark."""
        return self._has_marks and not self.is_thinking

    def push(self, text: str) -> list[Part]:
        """The parts that are certain now, in order. An unfinished mark waits inside."""
        self.held += text
        return self._parts(is_whole=False)

    def copy(self) -> ThoughtStream:
        """A stream that goes on by itself from here."""
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
            waits = 0 if is_whole else num_unfinished(marks, self.held)
            end = len(self.held) - waits
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
            elif waits:
                break
        return parts

    def _of_object(self, end: ObjectEnd) -> list[Part]:
        """The part of the text that belongs to an object. Other text ends it."""
        may_be = end.has_begun or self.held.lstrip()[:1] in ("", "{")
        size = end.push(self.held) if may_be else 0
        text = self.held[:size]
        self.held = self.held[size:]
        if end.is_over or not size:
            self._object = None
        return self._parts_of(text)

    def _enter_first_part(self, *, is_whole: bool) -> bool:
        """Enter the mark that speech or thoughts begin with, or speech. False: wait."""
        begin = self.held.lstrip()
        marks = self._marks()
        mark = next((each for each in marks if begin.startswith(each)), "")
        if not is_whole and any(each.startswith(begin) for each in marks if each != mark):
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
        """The marks that mean something where the answer is, the longest first."""
        marks = [
            mark
            for family in self._families
            for mark, after in family.marks.items()
            if self._counts(family, after)
        ]
        return sorted(marks, key=len, reverse=True)

    def _counts(self, family: Family, after: Following) -> bool:
        if self._following is Following.THOUGHT:
            return after is not Following.THOUGHT
        if self._following is Following.SPEECH:
            return family.are_tokens or (self._has_marks and after is Following.NOTHING)
        return True

    def _parts_of(self, text: str) -> list[Part]:
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
        """The head of the message whose body begins there, else ""."""
        family = next(each for each in self._families if mark in each.marks)
        after = family.marks[mark]
        head = ""
        if after is Following.BODY:
            head = self._named + self._head
            is_thought = re.search(family.thoughtful, head)
            self._object = ObjectEnd() if " to=functions." in head else None
            after = Following.THOUGHT if is_thought else Following.SPEECH
        if after is Following.HEAD:
            self._head += " "  # so that what stands before the mark can be told from the rest
        else:
            self._named = self._head = ""
        self._families = (family,)
        self._has_marks = True
        self._following = None if after is Following.SPEECH else after
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
        # A head may be of any length here: it never turns into speech, which would have to fit.
        super().__init__(ThoughtStream(thoughts, math.inf))

    @property
    def held(self) -> str:
        return self._stream.held

    def push(self, text: str) -> str | None:
        """The speech after the thoughts, without blank space between; None if they go on."""
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
        self._last = {text[-1] for text in texts}

    @property
    def held(self) -> str:
        return self._stream.head or self._stream.held

    def push(self, text: str) -> str | None:
        """The text after the trigger; None if that has not come."""
        begin = 0
        for end in (at + 1 for at, each in enumerate(text) if each in self._last):
            self._stream.push(text[begin:end])
            if (self._stream.head or "").endswith(self._texts):
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
