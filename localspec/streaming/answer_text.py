"""A prompt, and the parser of its answer: tokens → thoughts, speech and calls of tools."""

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
_TO_TOOL = " to=functions."  # in the head of a message that is a call
# The recipient in the head of a message to neither the user nor the model itself.
_RECIPIENT = re.compile(r" to=(?!(?:assistant|user|self)\b)(?:functions\.)?(\S+)")


class WholeMessage(NamedTuple):
    """The speech of an answer, its thoughts, and its complete calls of tools."""

    text: str
    thoughts: str
    tool_calls: tuple[ToolCall, ...]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> WholeMessage:
        """The message that consists of these parts."""
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
    """How many tokens at the end an earlier answer gave, which the new answer continues."""

    calls: Calls | None = None
    """The calls of tools that the answer can have; None if it can have none."""

    pictures: tuple[Picture, ...] = ()
    """The pictures whose cells are among the tokens, in order."""

    has_tool_words: bool = False
    """Whether tools are described in words, since the chat template shows no tools, or its form
    of calls is not known."""


class AnswerText:
    """Parses the tokens of one answer, one by one, into parts: thoughts, speech and calls.

    `push` and `finish` return text that is certain: it never changes. An unfinished UTF-8
    character, mark or stop string waits inside. Bytes that are not UTF-8 become U+FFFD. Stop
    strings are searched for in speech and in the text of calls, but not in thoughts, and not
    across the marks between thoughts and speech.

    A message to a tool that was not offered becomes text, after a line with the tool's name. In
    a constrained answer it stays a thought.

    If an answer was cut and is continued, its tokens give the same text as without the cut: see
    `resume`.

    Args:
        vocabulary: The vocabulary of the tokens.
        thoughts: How to tell thoughts from speech.
        stop: Strings that end the answer.
        calls: The calls of tools that the answer can have; None if it can have none.
        is_constrained: Whether the speech is constrained, for example by a schema.
    """

    def __init__(
        self,
        vocabulary: WholeVocabulary,
        thoughts: Thoughts,
        stop: Sequence[str],
        calls: Calls | None,
        *,
        is_constrained: bool = False,
    ) -> None:
        self._new_text = partial(
            AnswerText,
            vocabulary,
            thoughts,
            stop,
            calls,
            is_constrained=is_constrained,
        )
        self._is_constrained = is_constrained
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._thoughts = ThoughtStream(thoughts)
        self._stops = StopSearch(stop)
        self._mark_tokens = thoughts.mark_tokens  # control tokens that are rendered as text
        self._calls: CallStream | None = None
        if calls is not None:
            self._mark_tokens |= calls.mark_tokens
            self._calls = CallStream(calls)
        # Whether the text that waits in `_stops` is a thought, as in a call that is a message.
        self._is_waiting_thought = False
        # Whether the present text is a message to a tool that was not offered.
        self._is_to_unknown_tool = False
        self._has_speech = False  # whether there was any speech
        # Characters, and whether each is a thought, that the reader got at a cut, although
        # they were not certain.
        self._shown_at_cut: deque[tuple[str, bool]] = deque()

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string, or the only allowed call, has ended the answer."""
        has_ended = self._calls is not None and self._calls.has_ended
        return has_ended or self.stopped_by is not None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that has ended the answer; None if none has."""
        return self._stops.stopped_by

    @property
    def is_thinking(self) -> bool:
        """Whether the following text is hidden from the user, unless a mark changes that."""
        is_calling = self._calls is not None and self._calls.is_calling
        is_shown = is_calling or self._is_to_unknown_tool
        return self._thoughts.is_thinking and not is_shown

    def resume(self, tokens: Sequence[int]) -> list[Part]:
        """Begin after tokens that an earlier answer gave. Returns their parts that are certain.

        The reader of the earlier answer also got the text that was not certain when it was
        cut. Once that text is certain, it comes in parts with `Part.is_again`, before all
        others. Stop strings within these tokens do not count, since the text after them was
        given already.
        """
        earlier_text = self._new_text()
        earlier_text._push_past_stops(tokens)
        uncertain_parts = earlier_text.finish(is_cut=True)
        parts = self._push_past_stops(tokens)
        for part in uncertain_parts:
            for character in part.text:
                self._shown_at_cut.append((character, part.is_thought))
        return parts

    def _push_past_stops(self, tokens: Sequence[int]) -> list[Part]:
        """`push` for several tokens, in which no stop string counts."""
        self._stops.are_ignored = True
        parts = []
        for token in tokens:
            parts += self.push(token)
        self._stops.are_ignored = False
        return parts

    def push(self, token: int) -> list[Part]:
        """Add a token. Returns the parts that became certain with it, in order."""
        parts = self._split_thoughts(self._decode(token))
        return self._mark_shown(self._split_calls(parts))

    def _split_thoughts(self, text: str) -> list[Part]:
        """Add a text to the thoughts and speech. Returns the parts that became certain.

        While a grammar enforces that only calls follow, the text is not searched for marks of
        thoughts: all of it is speech.
        """
        if self._calls is None or not self._calls.is_enforced:
            return self._thoughts.push(text)
        return [*self._thoughts.finish(), Part(text, is_thought=False)]

    def _decode(self, token: int) -> str:
        """The characters that are complete with a token."""
        if token in self._mark_tokens:
            return self._utf8.decode(b"", final=True) + self._vocabulary.text(token)
        return self._utf8.decode(self._vocabulary.piece(token))

    def finish(self, *, is_cut: bool) -> list[Part]:
        """End the text: no more tokens follow. Returns the parts that waited inside.

        Args:
            is_cut: Whether the answer was cut off. Then an incomplete character, call or head
                of a call is left out.
        """
        text = ""
        if not is_cut:
            text = self._utf8.decode(b"", final=True)
        parts = self._thoughts.push(text)
        head = self._thoughts.head or ""  # of the present message, so far
        may_be_call = _TO_TOOL in head or num_unfinished((_TO_TOOL,), head) > 0
        if not is_cut or not may_be_call:
            parts += self._thoughts.finish()
        parts = self._split_calls(parts)
        parts += self._push_to_calls(self._release_waiting())
        if self._calls is not None:
            parts += self._calls.finish(is_cut=is_cut)
        return self._mark_shown(parts)

    def _mark_shown(self, parts: list[Part]) -> list[Part]:
        """Split parts into text that was shown at the cut, marked `is_again`, and new text."""
        if not self._shown_at_cut:
            return parts
        marked = []
        for part in parts:
            size = 0
            for character in part.text:
                expected = (character, part.is_thought)
                if not self._shown_at_cut or self._shown_at_cut[0] != expected:
                    break
                self._shown_at_cut.popleft()
                size += 1
            if size > 0:
                marked.append(part._replace(text=part.text[:size], is_again=True))
            if size < len(part.text) or part.call is not None:
                # The remaining shown characters became something else, such as a mark.
                self._shown_at_cut.clear()
                marked.append(part._replace(text=part.text[size:]))
        return marked

    def _split_calls(self, parts: list[Part]) -> list[Part]:
        """Replace the text of calls by calls, and leave out marks and stop strings."""
        split = []
        for part in parts:
            for shown in self._show_unknown_call(part):
                split += self._push_to_calls(self._search_stops(shown))
        return split

    def _show_unknown_call(self, part: Part) -> list[Part]:
        """Turn a part of a message to a tool that was not offered into speech.

        Args:
            part: Text; or a mark, with which such a message may begin.

        Returns:
            The part; after the mark at the beginning of such a message, also a line with the
            tool's name.
        """
        if part.text:
            if self._is_to_unknown_tool:
                part = part._replace(is_thought=False)
            if not part.is_thought:
                self._has_speech = True
            return [part]
        recipient = _RECIPIENT.search(part.head)
        is_call = self._calls is not None and self._calls.is_call_head(part.head)
        is_unknown = recipient is not None and not is_call
        self._is_to_unknown_tool = is_unknown and not self._is_constrained
        if recipient is None or not self._is_to_unknown_tool:
            return [part]
        line = f"to={recipient[1]}\n"
        if self._has_speech:
            line = f"\n\n{line}"
        self._has_speech = True
        return [part._replace(is_thought=False), Part(line, is_thought=False)]

    def _push_to_calls(self, parts: list[Part]) -> list[Part]:
        """Have `_calls` read parts. Returns parts with text, and parts with calls."""
        if self._calls is None:
            return [part for part in parts if part.text]
        split = []
        for part in parts:
            split += self._calls.push(part)
        return split

    def _search_stops(self, part: Part) -> list[Part]:
        """Search a part for stop strings. A part without text is a mark.

        Returns:
            The text that waited before, if this part does not continue it, and then the part
            as far as no stop string may begin in it. Nothing after a stop.
        """
        is_calling = self._calls is not None and self._calls.is_calling
        is_searched = bool(part.text) and (is_calling or not part.is_thought)
        parts = []
        if not is_searched or part.is_thought != self._is_waiting_thought:
            parts = self._release_waiting()
        if self.has_stopped:
            return parts
        if is_searched:
            self._is_waiting_thought = part.is_thought
            part = part._replace(text=self._stops.push(part.text))
            if not part.text:
                return parts
        return [*parts, part]

    def _release_waiting(self) -> list[Part]:
        """The text that waited because a stop string might have begun in it."""
        text = self._stops.finish()
        if text:
            return [Part(text, self._is_waiting_thought)]
        return []


class StopSearch:
    """Searches text that comes piece by piece for stop strings.

    `push` and `finish` return text that is certain. Text that may become part of a stop string
    waits inside. After a stop string both return "".
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._waiting = ""
        self.stopped_by: str | None = None
        self.are_ignored = False
        """Whether complete stop strings are ignored, as in text that an earlier answer gave."""

    def push(self, text: str) -> str:
        """Add a text. Returns the text that is now certain.

        Sets `stopped_by` when a stop string is complete.
        """
        if self.stopped_by is not None:
            return ""
        text = self._waiting + text
        stop = first_of(self._stop, text)
        if stop is not None and not self.are_ignored:
            # The stop string and the text after it are not part of the answer.
            self.stopped_by = stop
            self._waiting = ""
            return text[: text.find(stop)]
        end = len(text) - num_unfinished(self._stop, text)
        self._waiting = text[end:]
        return text[:end]

    def finish(self) -> str:
        """Release the text that waits inside: no stop string continues it."""
        text = self._waiting
        self._waiting = ""
        return text


def checked_texts(
    value: str | Iterable[str] | None,
    singular: str,
    plural: str,
) -> tuple[str, ...]:
    """The texts of an option that accepts a text, several texts or None.

    Args:
        value: The option's value.
        singular, plural: What the error calls one text and several texts.

    Raises:
        OptionError: If a value is not a text, or if there are too many.
    """
    if value is None:
        return ()
    texts: list[object] = [value]
    if isinstance(value, Iterable) and not isinstance(value, str):
        texts = at_most(_MOST_TEXTS, value, plural)
    checked = []
    for text in texts:
        if not isinstance(text, str):
            raise OptionError(f"{singular} is {text!r:.80}", "Give a str, or several.")
        checked.append(text)
    return tuple(checked)
