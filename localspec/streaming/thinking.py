"""What a model thinks before it speaks, told apart from what it says."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from localspec.streaming.object_end import ObjectEnd
from localspec.streaming.thought_families import Family, Following
from localspec.tools.calls import CallPiece

_MAX_HEAD = 200  # characters: what is longer is no head of a message
_LATE = 100  # of them: where a head is to end, if the answer is kept to something behind it


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What tells the thoughts of an answer from its speech; by default all of it is speech.

    families: those that it can be of. opened: what the prompt has begun, if it has. head: of
    the message that the prompt has begun. shown: ids of control tokens that are among the
    marks, and are rendered to be seen. are_over: the prompt has ended them, so that the answer
    is asked for none.
    """

    families: tuple[Family, ...] = ()
    opened: Following | None = None
    head: str = ""
    shown: frozenset[int] = frozenset()
    are_over: bool = False

    def after(self, prompt: str) -> Thoughts:
        """Those of an answer to the prompt, whose end can have opened thoughts or a message."""
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

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark of the families."""
        return tuple(mark for family in self.families for mark in family.marks)

    @property
    def speech_marks(self) -> tuple[str, ...]:
        """The marks behind which speech begins."""
        return tuple(
            mark
            for family in self.families
            for mark, after in family.marks.items()
            if after is Following.SPEECH
        )

    @property
    def body_marks(self) -> tuple[str, ...]:
        """The marks that end the head of a message."""
        return tuple(
            mark
            for family in self.families
            for mark, after in family.marks.items()
            if after is Following.BODY
        )

    @property
    def openings(self) -> tuple[str, ...]:
        """Marks that an answer may begin its thoughts with, unless some are begun or over."""
        if self.opened is not None or self.are_over:
            return ()
        return tuple(
            mark
            for family in self.families
            for mark, after in family.marks.items()
            if after in (Following.THOUGHT, Following.HEAD)
        )


class Part(NamedTuple):
    """Text that became certain. One without text stands where a mark was.

    head: of the message that begins at this mark. call: instead of text, more of a call.
    is_again: it was shown before, when the answer was cut behind it, and is certain only now.
    """

    text: str
    is_thought: bool
    head: str = ""
    call: CallPiece | None = None
    is_again: bool = False


class ThoughtStream:
    """Splits an answer into thoughts and speech while it comes.

    Marks, the heads of messages, and the blank space between a mark and speech belong to
    neither. In the JSON object of a message to a tool no mark means anything.
    """

    def __init__(self, thoughts: Thoughts, max_head: float = _MAX_HEAD) -> None:
        self._max_head = max_head
        self._families = thoughts.families
        self._following = thoughts.opened  # None: speech or a mark may begin here
        self._named = thoughts.head
        self._head = ""
        self._held = ""
        self._has_marks = False
        self._object: ObjectEnd | None = None  # that is written to a tool

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is not for the user, unless a mark ends it."""
        return self._following not in (None, Following.SPEECH)

    @property
    def head(self) -> str | None:
        """Of the message that begins, as far as it is there; None outside of one."""
        return self._named + self._head if self._following is Following.HEAD else None

    @property
    def speaks(self) -> bool:
        """Whether a mark was passed behind which speech begins, or begins with the next one."""
        return self._has_marks and not self.is_thinking

    @property
    def held(self) -> str:
        """What waits, because it may be the beginning of a mark."""
        return self._held

    def push(self, text: str) -> list[Part]:
        """What is certain now, in order. An unfinished mark waits inside."""
        self._held += text
        return self._parts(is_whole=False)

    def copy(self) -> ThoughtStream:
        """One that goes on by itself from here."""
        other = copy.copy(self)
        other._object = copy.copy(self._object)
        return other

    def finish(self) -> list[Part]:
        """Whatever waited: nothing more is coming."""
        parts = self._parts(is_whole=True)
        if self._head and not self._has_marks:
            # It could have been the head of a message, and was all that the model said.
            parts.append(Part(self._head, is_thought=False))
            self._head = ""
        return parts

    def _parts(self, *, is_whole: bool) -> list[Part]:
        parts = []
        while self._held:
            if self._following is None and not self._begin(is_whole=is_whole):
                break
            if self._following is None:
                continue
            if self._object is not None:
                parts += self._of_object(self._object)
                continue
            marks = self._marks()
            at, mark = _first(self._held, marks)
            waits = 0 if is_whole else _unfinished(self._held, marks)
            end = len(self._held) - waits
            if mark and at < end:
                text, self._held = self._held[:at], self._held[at + len(mark) :]
            else:
                mark, text, self._held = "", self._held[:end], self._held[end:]
            parts += self._taken(text)
            if mark:
                head = self._enter(mark)
                parts.append(Part("", self.is_thinking, head))
            elif waits:
                break
        return parts

    def _of_object(self, end: ObjectEnd) -> list[Part]:
        """What of the text belongs to an object; all else that may be one is none."""
        size = (
            end.push(self._held) if end.has_begun or self._held.lstrip()[:1] in ("", "{") else 0
        )
        text, self._held = self._held[:size], self._held[size:]
        if end.is_over or not size:
            self._object = None
        return self._taken(text)

    def _begin(self, *, is_whole: bool) -> bool:
        """Enter the mark that speech or thoughts begin with, or speech. False: wait."""
        begin = self._held.lstrip()
        marks = self._marks()
        mark = max((each for each in marks if begin.startswith(each)), key=len, default="")
        if not is_whole and any(each.startswith(begin) for each in marks if each != mark):
            return False
        if mark:
            self._held = begin[len(mark) :]
            self._enter(mark)
            return True
        if self._has_marks:
            self._held = begin
        self._following = Following.SPEECH
        return True

    def _marks(self) -> list[str]:
        """The marks that mean something where the answer is."""
        return [
            mark
            for family in self._families
            for mark, after in family.marks.items()
            if self._counts(family, after)
        ]

    def _counts(self, family: Family, after: Following) -> bool:
        if self._following is Following.THOUGHT:
            return after is not Following.THOUGHT
        if self._following is Following.SPEECH:
            return family.are_tokens or (self._has_marks and after is Following.NOTHING)
        return True

    def _taken(self, text: str) -> list[Part]:
        if self._following is Following.HEAD:
            self._head += text
            if len(self._head) <= self._max_head:
                return []
            text, self._head, self._following = self._head, "", Following.SPEECH
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
        self._families, self._has_marks = (family,), True
        self._following = None if after is Following.SPEECH else after
        return head


class ThoughtsEnd:
    """Watches an answer for the end of its thoughts: see `Boundary` of a constraint."""

    def __init__(self, thoughts: Thoughts) -> None:
        # What is never a head begins nowhere to be speech that fits.
        self._stream = ThoughtStream(thoughts, math.inf)

    @property
    def held(self) -> str:
        """See `Boundary`."""
        return self._stream.held

    @property
    def is_late(self) -> bool:
        """See `Boundary`."""
        return len(self._stream.head or "") > _LATE

    def push(self, text: str) -> str | None:
        """What the text says behind the end of the thoughts, if they have ended; else None.

        Without the blank space between them and speech.
        """
        parts = self._stream.push(text)
        if not self._stream.speaks:
            return None
        parts += self._stream.finish()
        return "".join(part.text for part in parts if not part.is_thought)

    def copy(self) -> ThoughtsEnd:
        """One that watches by itself from here."""
        other = copy.copy(self)
        other._stream = self._stream.copy()
        return other


class HeadTrigger:
    """Watches an answer for the first of some texts in a message's head: see `Boundary`."""

    is_late = False

    def __init__(self, thoughts: Thoughts, texts: tuple[str, ...]) -> None:
        self._stream = ThoughtStream(thoughts)
        self._texts = texts
        self._last = {text[-1] for text in texts}

    @property
    def held(self) -> str:
        """See `Boundary`."""
        return self._stream.head or self._stream.held

    def push(self, text: str) -> str | None:
        """What of the text stands behind one, if it has come; else None."""
        begin = 0
        for end in (at + 1 for at, each in enumerate(text) if each in self._last):
            self._stream.push(text[begin:end])
            if (self._stream.head or "").endswith(self._texts):
                return text[end:]
            begin = end
        self._stream.push(text[begin:])
        return None

    def copy(self) -> HeadTrigger:
        """One that watches by itself from here."""
        other = copy.copy(self)
        other._stream = self._stream.copy()
        return other


def said(answer: str, families: tuple[Family, ...]) -> str:
    """What an answer says that may have come with its thoughts, from elsewhere."""
    begin = answer.lstrip()
    opening = (
        mark
        for family in families
        for mark, after in family.marks.items()
        if after is Following.THOUGHT
    )
    if not begin.startswith(tuple(opening)):
        return answer
    stream = ThoughtStream(Thoughts(families))
    parts = stream.push(answer) + stream.finish()
    return "".join(part.text for part in parts if not part.is_thought)


def _first(text: str, marks: Collection[str]) -> tuple[int, str]:
    """Where the first of the marks begins in the text, and the longest that begins there.

    (-1, "") if there is none.
    """
    places = [(text.find(mark), -len(mark), mark) for mark in marks if mark in text]
    at, _, mark = min(places, default=(-1, 0, ""))
    return at, mark


def _unfinished(text: str, marks: Collection[str]) -> int:
    """Length of the longest end of the text that is a beginning of a mark."""
    longest = max(map(len, marks), default=1) - 1
    return next(
        (
            size
            for size in range(min(longest, len(text)), 0, -1)
            if any(len(mark) > size and mark.startswith(text[-size:]) for mark in marks)
        ),
        0,
    )
