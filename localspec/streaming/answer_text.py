"""A prompt; and the tokens of its answer → thoughts and speech, up to a stop string."""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from localspec.errors import OptionError, at_most
from localspec.pictures.picture import Picture
from localspec.streaming.calls import CallStream
from localspec.streaming.thinking import Part, Thoughts, ThoughtStream
from localspec.tools.grammar import Calls
from localspec.tools.partial_text import first_of, num_unfinished
from localspec.tools.tool import ToolCall, whole_calls
from localspec.vocabulary import WholeVocabulary

_MOST_TEXTS = 1024  # stop strings, or triggers, of an answer
_RECIPIENT = " to=functions."  # in the head of a message that is a call
# In the head of a message to neither the user nor the model itself.
_ADDRESSEE = re.compile(r" to=(?!(?:assistant|user|self)\b)(?:functions\.)?(\S+)")


class Said(NamedTuple):
    """The speech of an answer, its thoughts, and its complete calls of tools."""

    text: str
    thoughts: str
    tool_calls: tuple[ToolCall, ...]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Said:
        """The sum of the parts."""
        speech = []
        thoughts = []
        for part in parts:
            if part.is_thought:
                thoughts.append(part.text)
            else:
                speech.append(part.text)
        tool_calls = whole_calls(part.call for part in parts)
        return cls("".join(speech), "".join(thoughts), tool_calls)


class Prompt(NamedTuple):
    """The text that a model reads."""

    tokens: list[int]
    thoughts: Thoughts = Thoughts()
    """How to tell thoughts from speech in the answer; by default all of it is speech."""

    num_said: int = 0
    """How many of the last tokens belong to the answer, which continues after them."""

    calls: Calls | None = None
    """The calls of tools that the answer can have; None for none."""

    pictures: tuple[Picture, ...] = ()
    """The pictures whose cells are among the tokens, in order."""

    has_tool_words: bool = False
    """Whether tools are described in words, since the chat template shows no tools, or its form
    of calls is not known."""


class AnswerText:
    """The text of one answer, token by token.

    `push` and `finish` return text that is final. An unfinished UTF-8 character, mark or stop
    string waits inside. Bytes that are not UTF-8 come out as U+FFFD. Stop strings are looked
    for in speech and in the text of calls, not in thoughts, nor across the marks between them.

    A message to a tool that was not offered becomes text, after a line with the tool's name. In
    a constrained answer it stays a thought.

    If an answer was cut and is continued, its tokens give the same text as without the cut: see
    `resume`.

    Args:
        vocabulary: The vocabulary of the tokens.
        thoughts: How to tell thoughts from speech.
        stop: Strings that end the answer.
        calls: The calls of tools that it can have; None for none.
        has_form: Whether the speech is constrained, as by a schema.
    """

    def __init__(
        self,
        vocabulary: WholeVocabulary,
        thoughts: Thoughts,
        stop: Sequence[str],
        calls: Calls | None,
        *,
        has_form: bool = False,
    ) -> None:
        self._new = partial(
            AnswerText,
            vocabulary,
            thoughts,
            stop,
            calls,
            has_form=has_form,
        )
        self._has_form = has_form
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._split = ThoughtStream(thoughts)
        self._search = StopSearch(stop)
        self._shown = thoughts.shown  # control tokens that are rendered as text
        self._calls: CallStream | None = None
        if calls is not None:
            self._shown |= calls.shown
            self._calls = CallStream(calls)
        self._is_thought = (
            False  # whether the text in the search is one: of a call as a message
        )
        self._is_stray = False  # whether the text is a message to a tool that was not offered
        self._has_said = False  # whether there was any speech
        # Characters, and whether each is a thought, that were shown at a cut but may change.
        self._pending: deque[tuple[str, bool]] = deque()

    @property
    def stopped(self) -> bool:
        """Whether there was a stop string, or the only call: nothing comes after it."""
        has_ended = self._calls is not None and self._calls.has_ended
        return has_ended or self.stopped_by is not None

    @property
    def stopped_by(self) -> str | None:
        """The stop string, if there was one."""
        return self._search.stopped_by

    @property
    def is_thinking(self) -> bool:
        """Whether the following text is hidden from the user, unless a mark ends that."""
        is_calling = self._calls is not None and self._calls.is_calling
        return self._split.is_thinking and not is_calling and not self._is_stray

    def resume(self, tokens: Sequence[int]) -> list[Part]:
        """Begin after these tokens of the answer. Returns the parts that are certain.

        The text that is not certain was shown when the answer was cut. As it becomes certain,
        it comes in parts of its own before all others: `Part.is_again`. Stop strings within
        these tokens do not count, since the text after them was said already.
        """
        as_cut = self._new()
        as_cut._push_past_stops(tokens)
        shown = as_cut.finish(is_cut=True)
        parts = self._push_past_stops(tokens)
        for part in shown:
            for character in part.text:
                self._pending.append((character, part.is_thought))
        return parts

    def _push_past_stops(self, tokens: Sequence[int]) -> list[Part]:
        """The parts of these tokens, whose stop strings do not count."""
        self._search.passes = True
        parts = []
        for token in tokens:
            parts += self.push(token)
        self._search.passes = False
        return parts

    def push(self, token: int) -> list[Part]:
        """The parts that became certain with the token, in order."""
        split = self._parted(self._text(token))
        return self._told_apart(self._called(split))

    def _parted(self, text: str) -> list[Part]:
        """The thoughts and speech that a text adds. In constrained calls no mark counts."""
        if self._calls is None or not self._calls.is_kept:
            return self._split.push(text)
        return [*self._split.finish(), Part(text, is_thought=False)]

    def _text(self, token: int) -> str:
        """The characters that are complete with a token."""
        if token in self._shown:
            return self._decoder.decode(b"", final=True) + self._vocabulary.text(token)
        return self._decoder.decode(self._vocabulary.piece(token))

    def finish(self, *, is_cut: bool) -> list[Part]:
        """The text that waited; no more tokens follow.

        Args:
            is_cut: The answer was cut off, so that an incomplete character is left out.
        """
        if is_cut:
            parts = self._split.push("")
        else:
            parts = self._split.push(self._decoder.decode(b"", final=True))
        head = self._split.head or ""  # of a message, or all that was said
        may_be_call = _RECIPIENT in head or num_unfinished((_RECIPIENT,), head) > 0
        if not is_cut or not may_be_call:
            parts += self._split.finish()
        shown = self._called(parts)
        shown += self._split_calls(self._waited())
        if self._calls is not None:
            shown += self._calls.finish(is_cut=is_cut)
        return self._told_apart(shown)

    def _told_apart(self, parts: list[Part]) -> list[Part]:
        """Split parts into text that was shown before the cut and new text."""
        if not self._pending:
            return parts
        split = []
        for part in parts:
            size = 0
            for character in part.text:
                if not self._pending or self._pending[0] != (character, part.is_thought):
                    break
                self._pending.popleft()
                size += 1
            if size > 0:
                split.append(part._replace(text=part.text[:size], is_again=True))
            if size < len(part.text) or part.call is not None:
                # The remaining pending text turned out to be something else, as a mark.
                self._pending.clear()
                split.append(part._replace(text=part.text[size:]))
        return split

    def _called(self, parts: list[Part]) -> list[Part]:
        """The parts without marks, and with calls in place of the text that writes them."""
        called = []
        for part in parts:
            for addressed in self._addressed(part):
                called += self._split_calls(self._searched(addressed))
        return called

    def _addressed(self, part: Part) -> list[Part]:
        """The part, as text if it belongs to a message to a tool that was not offered."""
        if part.text:
            if self._is_stray:
                part = part._replace(is_thought=False)
            if not part.is_thought:
                self._has_said = True
            return [part]
        addressee = _ADDRESSEE.search(part.head)
        is_call = self._calls is not None and self._calls.takes(part.head)
        self._is_stray = addressee is not None and not is_call and not self._has_form
        if addressee is None or not self._is_stray:
            return [part]
        line = f"to={addressee[1]}\n"
        if self._has_said:
            line = f"\n\n{line}"
        self._has_said = True
        return [part._replace(is_thought=False), Part(line, is_thought=False)]

    def _split_calls(self, parts: list[Part]) -> list[Part]:
        """The parts with text, and the calls among them."""
        if self._calls is None:
            return [part for part in parts if part.text]
        called = []
        for part in parts:
            called += self._calls.push(part)
        return called

    def _searched(self, part: Part) -> list[Part]:
        """The part up to a stop string. A part without text is a mark."""
        is_calling = self._calls is not None and self._calls.is_calling
        is_searched = bool(part.text) and (is_calling or not part.is_thought)
        parts = []
        if not is_searched or part.is_thought != self._is_thought:
            parts = self._waited()
        if self.stopped:
            return parts
        if is_searched:
            self._is_thought = part.is_thought
            part = part._replace(text=self._search.push(part.text))
            if not part.text:
                return parts
        return [*parts, part]

    def _waited(self) -> list[Part]:
        """The text in which a stop string may have begun, which is released."""
        text = self._search.finish()
        if text:
            return [Part(text, self._is_thought)]
        return []


class StopSearch:
    """Looks for stop strings in text that comes piece by piece.

    `push` and `finish` return text that is final. Text that could still become part of a stop
    string waits inside. After a stop string no text comes.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.stopped_by: str | None = None
        self.passes = False
        """Whether whole stop strings do not count: in text that was said before."""

    def push(self, text: str) -> str:
        """The text that is final now. Sets `stopped_by` when a stop string is complete."""
        if self.stopped_by is not None:
            return ""
        text = self._held + text
        stop = first_of(self._stop, text)
        if stop is not None and not self.passes:
            # The stop string and the text after it are not part of the answer.
            self.stopped_by = stop
            self._held = ""
            return text[: text.find(stop)]
        end = len(text) - num_unfinished(self._stop, text)
        self._held = text[end:]
        return text[:end]

    def finish(self) -> str:
        """The text that waited; no more follows."""
        text = self._held
        self._held = ""
        return text


def checked_texts(given: str | Iterable[str] | None, one: str, several: str) -> tuple[str, ...]:
    """The texts of an option that takes none, one or several.

    Args:
        given: The option's value.
        one, several: Names of one text and of several, for the error.

    Raises:
        OptionError: For anything but texts, and for too many.
    """
    if given is None:
        return ()
    texts: list[object] = [given]
    if isinstance(given, Iterable) and not isinstance(given, str):
        texts = at_most(_MOST_TEXTS, given, several)
    checked = []
    for text in texts:
        if not isinstance(text, str):
            raise OptionError(f"{one} is {text!r:.80}", "Give a str, or several.")
        checked.append(text)
    return tuple(checked)
