"""Splits an answer into the model's thoughts and its speech."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from localspec.streaming.thought_families import Family, TextKind
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

    open_kind: TextKind | None = None
    """The kind of text, a thought or a head, that the prompt's last mark has begun, so that the
    answer continues it; None if the answer begins with neither."""

    head: str = ""
    """The part of a message's head after the prompt's last mark."""

    mark_tokens: frozenset[int] = frozenset()
    """Ids of control tokens in the marks. An answer's text has to show them as text."""

    are_over: bool = False
    """Whether the prompt has already closed the thoughts."""

    def after(self, prompt: str) -> Thoughts:
        """How to tell thoughts from speech in the answer to a prompt, by its last mark."""
        last_family: Family | None = None
        last_kind = TextKind.NOTHING
        last_place = (0, 0)  # the mark's end in the prompt, and its length
        for family in self.families:
            for mark, kind in family.marks.items():
                begin = prompt.rfind(mark)
                if begin < 0:
                    continue
                place = (begin + len(mark), len(mark))
                # Of two marks with the same end, the longer one counts.
                if place > last_place:
                    last_family = family
                    last_kind = kind
                    last_place = place
        if last_family is None:
            return self
        text_after = prompt[last_place[0] :]
        is_at_end = not text_after.strip()
        is_thought_open = last_kind is TextKind.THOUGHT and is_at_end
        if last_kind is TextKind.HEAD or is_thought_open:
            return Thoughts((last_family,), last_kind, text_after, self.mark_tokens)
        return replace(self, are_over=last_kind is TextKind.SPEECH and is_at_end)

    def without(self, texts: Collection[str]) -> Thoughts:
        """The same without the marks that are among these texts, since they begin calls."""
        families = []
        for family in self.families:
            marks = {}
            for mark, kind in family.marks.items():
                if mark not in texts:
                    marks[mark] = kind
            families.append(replace(family, marks=marks))
        return replace(self, families=tuple(families))

    def marks(self, *kinds: TextKind) -> tuple[str, ...]:
        """The families' marks before text of these kinds; without arguments all marks."""
        marks = []
        for family in self.families:
            for mark, kind in family.marks.items():
                if not kinds or kind in kinds:
                    marks.append(mark)
        return tuple(marks)

    @property
    def openings(self) -> tuple[str, ...]:
        """The marks with which the answer's thoughts may begin.

        Empty if the prompt has already begun the thoughts, or closed them.
        """
        if self.open_kind is not None or self.are_over:
            return ()
        return self.marks(TextKind.THOUGHT, TextKind.HEAD)


class Part(NamedTuple):
    """A piece of an answer that became certain: text, a part of a call, or a mark.

    A part with neither text nor call stands for a mark.
    """

    text: str
    is_thought: bool
    head: str = ""
    """The head of the message whose body begins at this mark; "" at other marks."""

    call: CallPiece | None = None
    """The next part of a call, instead of text."""

    is_again: bool = False
    """Whether the reader of the earlier answer already got this text, when it was cut there."""


class ThoughtStream:
    """Splits the text of an answer into thoughts and speech while the text comes.

    Marks, the heads of messages, and the blank space between a mark and speech belong to
    neither. In the JSON object of a message to a tool no mark counts.

    Args:
        thoughts: How to tell thoughts from speech.
        max_head: How many characters the head of a message may have. A longer text is speech.
    """

    def __init__(self, thoughts: Thoughts, max_head: float = _MAX_HEAD) -> None:
        self._max_head = max_head
        self._families = thoughts.families
        # The kind of the present text; None where speech or a mark may begin.
        self._kind = thoughts.open_kind
        self._prompt_head = thoughts.head  # the part of the present head that is in the prompt
        self._head = ""  # the part of the present head that is in the answer

        self.held = ""
        """Text that waits, because it may be the beginning of a mark."""

        self._has_marks = False  # whether there was a mark
        self._object: ObjectEnd | None = None  # finds the end of an object for a tool

    @property
    def is_thinking(self) -> bool:
        """Whether the following text is hidden from the user, unless a mark changes that."""
        return self._kind not in (None, TextKind.SPEECH)

    @property
    def head(self) -> str | None:
        """The message's head so far; None outside of a head."""
        if self._kind is TextKind.HEAD:
            return self._prompt_head + self._head
        return None

    @property
    def is_speech_next(self) -> bool:
        """Whether a mark has come after which speech follows, at once or after another mark."""
        return self._has_marks and not self.is_thinking

    def push(self, text: str) -> list[Part]:
        """Add a text. Returns the parts that became certain; an incomplete mark waits."""
        self.held += text
        return self._read_held(is_whole=False)

    def copy(self) -> ThoughtStream:
        """An independent stream with the same state."""
        other = copy.copy(self)
        other._object = copy.copy(self._object)
        return other

    def finish(self) -> list[Part]:
        """End the text: no more follows. Returns the parts that waited inside."""
        parts = self._read_held(is_whole=True)
        if self._head and not self._has_marks:
            # It might have been the head of a message, but it was the whole answer.
            parts.append(Part(self._head, is_thought=False))
            self._head = ""
        return parts

    def _read_held(self, *, is_whole: bool) -> list[Part]:
        """Read the held text as far as it is certain. Returns its parts.

        Args:
            is_whole: Whether no more text follows, so that all of it is certain.
        """
        parts = []
        while self.held:
            if self._kind is None and not self._begin_text(is_whole=is_whole):
                break
            if self._kind is None:  # after a mark before speech: another may follow at once
                continue
            if self._object is not None:
                parts += self._read_object(self._object)
                continue
            marks = self._valid_marks()
            mark = first_of(marks, self.held) or ""
            mark_begin = self.held.find(mark)
            num_waiting = 0
            if not is_whole:
                num_waiting = num_unfinished(marks, self.held)
            end = len(self.held) - num_waiting
            if mark and mark_begin < end:
                text = self.held[:mark_begin]
                self.held = self.held[mark_begin + len(mark) :]
            else:
                mark = ""
                text = self.held[:end]
                self.held = self.held[end:]
            parts += self._parts_of_text(text)
            if mark:
                head = self._enter_mark(mark)
                parts.append(Part("", self.is_thinking, head))
            elif num_waiting:
                break
        return parts

    def _read_object(self, end: ObjectEnd) -> list[Part]:
        """Read the held text that belongs to an object for a tool. Returns its part.

        Clears `_object` at the object's end, and if the text does not begin an object.
        """
        size = 0
        first_character = self.held.lstrip()[:1]  # "" if all of the text is blank
        if end.has_begun or first_character in ("", "{"):
            size = end.push(self.held)
        text = self.held[:size]
        self.held = self.held[size:]
        if end.is_over or not size:
            self._object = None
        return self._parts_of_text(text)

    def _begin_text(self, *, is_whole: bool) -> bool:
        """Read the mark with which the held text begins; if there is none, begin speech.

        Args:
            is_whole: Whether no more text follows.

        Returns:
            False, without an effect, if more text has to decide it.
        """
        text = self.held.lstrip()
        mark = ""
        may_be_longer = False
        for other in self._valid_marks():  # the longest first
            if not mark and text.startswith(other):
                mark = other
            elif other != mark and other.startswith(text):
                may_be_longer = True
        if may_be_longer and not is_whole:
            return False
        if mark:
            self.held = text[len(mark) :]
            self._enter_mark(mark)
            return True
        if self._has_marks:
            self.held = text  # without the blank space between a mark and speech
        self._kind = TextKind.SPEECH
        return True

    def _valid_marks(self) -> list[str]:
        """The marks that count at the present place, the longest first."""
        marks = []
        for family in self._families:
            for mark, next_kind in family.marks.items():
                if self._is_valid(family, next_kind):
                    marks.append(mark)
        marks.sort(key=len, reverse=True)
        return marks

    def _is_valid(self, family: Family, next_kind: TextKind) -> bool:
        """Whether a mark counts at the present place.

        Args:
            family: The mark's family.
            next_kind: The kind of text after the mark.
        """
        if self._kind is TextKind.THOUGHT:
            return next_kind is not TextKind.THOUGHT
        if self._kind is TextKind.SPEECH:
            is_end_of_speech = self._has_marks and next_kind is TextKind.NOTHING
            return family.has_token_marks or is_end_of_speech
        return True

    def _parts_of_text(self, text: str) -> list[Part]:
        """Add a text without marks to the head, or return its part.

        A head that has become too long is returned as speech.
        """
        if self._kind is TextKind.HEAD:
            self._head += text
            if len(self._head) <= self._max_head:
                return []
            text = self._head
            self._head = ""
            self._kind = TextKind.SPEECH
        if not text or self._kind is TextKind.NOTHING:
            return []
        return [Part(text, self._kind is TextKind.THOUGHT)]

    def _enter_mark(self, mark: str) -> str:
        """Continue after a mark. Returns the head of the message whose body begins, else ""."""
        family = next(family for family in self._families if mark in family.marks)
        kind = family.marks[mark]
        head = ""
        if kind is TextKind.BODY:
            head = self._prompt_head + self._head
            self._object = None
            if " to=functions." in head:
                self._object = ObjectEnd()
            kind = TextKind.SPEECH
            if re.search(family.thought_head, head):
                kind = TextKind.THOUGHT
        if kind is TextKind.HEAD:
            self._head += " "  # separates the texts before and after the mark
        else:
            self._prompt_head = ""
            self._head = ""
        self._families = (family,)
        self._has_marks = True
        self._kind = kind
        if kind is TextKind.SPEECH:
            self._kind = None  # another mark may follow at once
        return head


class _StreamBoundary:
    """A `Boundary` of a constraint that reads the answer as a stream of thoughts and speech."""

    has_other_state = True

    def __init__(self, stream: ThoughtStream) -> None:
        self._stream = stream

    def copy(self) -> Self:
        other = copy.copy(self)
        other._stream = self._stream.copy()
        return other


class ThoughtsEnd(_StreamBoundary):
    """The boundary at the end of an answer's thoughts."""

    def __init__(self, thoughts: Thoughts) -> None:
        # A long head must not become speech, since speech would have to fit the constraint.
        super().__init__(ThoughtStream(thoughts, math.inf))

    @property
    def partial_boundary(self) -> str:
        return self._stream.held

    def push(self, text: str) -> str | None:
        """Add a text. Returns the speech after the thoughts; None before the thoughts' end.

        The speech is without the blank space before it.
        """
        parts = self._stream.push(text)
        if not self._stream.is_speech_next:
            return None
        parts += self._stream.finish()
        return "".join(part.text for part in parts if not part.is_thought)


class HeadTrigger(_StreamBoundary):
    """The boundary after the first of some texts in the head of a message.

    Args:
        thoughts: How the model marks heads.
        texts: The texts; none is empty.
    """

    def __init__(self, thoughts: Thoughts, texts: tuple[str, ...]) -> None:
        super().__init__(ThoughtStream(thoughts))
        self._texts = texts
        self._last_characters = {text[-1] for text in texts}

    @property
    def partial_boundary(self) -> str:
        return self._stream.head or self._stream.held

    def push(self, text: str) -> str | None:
        """Add a text. Returns the text after the trigger; None if the trigger has not come."""
        begin = 0
        for end, character in enumerate(text, 1):
            if character not in self._last_characters:
                continue
            self._stream.push(text[begin:end])
            head = self._stream.head or ""
            if head.endswith(self._texts):
                return text[end:]
            begin = end
        self._stream.push(text[begin:])
        return None


def without_thoughts(answer: str, families: tuple[Family, ...]) -> str:
    """An answer of another program, without the thoughts with which it may begin."""
    thoughts = Thoughts(families)
    if not answer.lstrip().startswith(thoughts.marks(TextKind.THOUGHT)):
        return answer
    stream = ThoughtStream(thoughts)
    parts = stream.push(answer) + stream.finish()
    return "".join(part.text for part in parts if not part.is_thought)
