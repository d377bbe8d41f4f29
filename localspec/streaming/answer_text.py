"""A prompt, and tokens of its answer → thoughts and speech, up to a stop string in that."""

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
        return cls(
            "".join(part.text for part in parts if not part.is_thought),
            "".join(part.text for part in parts if part.is_thought),
            whole_calls(part.call for part in parts),
        )


class Prompt(NamedTuple):
    """The text that a model reads."""

    tokens: list[int]
    thoughts: Thoughts = Thoughts()
    """How to tell them from speech in the answer; by default all of it is speech."""

    num_said: int = 0
    """The last tokens that belong to the answer, which continues behind them."""

    calls: Calls | None = None
    """The calls of tools that the answer can have; None for none."""

    pictures: tuple[Picture, ...] = ()
    """The pictures whose cells are among the tokens, in order."""

    has_tool_words: bool = False
    """Whether tools are described in words, since the chat template shows none, or has a
    form of calls that is not known."""


class AnswerText:
    """The text of one answer, token by token.

    `push` and `finish` return text that is final. An unfinished UTF-8 character, mark or stop
    string waits inside. Bytes that are not UTF-8 come out as U+FFFD. Stop strings are looked
    for in speech and in calls as they are written, not in thoughts, nor across what tells
    those from speech.

    A message to a tool that nobody offered is text, behind a line with the tool's name; but in
    an answer of a form it stays a thought.

    Where an answer was cut and goes on, the same tokens say the same as if it had come in one:
    see `resume`.

    Args:
        vocabulary: of the tokens.
        thoughts: how to tell them from speech.
        stop: strings that end the answer.
        calls: of tools, that it can have; None for none.
        has_form: whether what is said has to fit a schema, say.
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
        self._new = partial(AnswerText, vocabulary, thoughts, stop, calls, has_form=has_form)
        self._has_form = has_form
        self._vocabulary = vocabulary
        self._shown = thoughts.shown | (calls.shown if calls is not None else frozenset())
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._split = ThoughtStream(thoughts)
        self._search = StopSearch(stop)
        self._calls = None if calls is None else CallStream(calls)
        self._is_thought = False  # the text that the search holds: a call that is a message
        self._is_stray = False  # what comes now is a message to a tool that nobody offered
        self._has_said = False  # something that is not a thought
        # Characters that were shown at a cut, thought or said, and are not certain yet.
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
        """Whether what comes next is not for the user, unless a mark ends it."""
        is_calling = self._calls is not None and self._calls.is_calling
        return self._split.is_thinking and not is_calling and not self._is_stray

    def resume(self, tokens: Sequence[int]) -> list[Part]:
        """Begin behind these tokens of the answer; what is certain of them.

        The rest was shown when the answer was cut there. As far as it becomes certain it comes
        in parts of its own, before all others: `Part.is_again`. Stop strings
        within these tokens do not count: the text behind them was said already.
        """
        as_cut = self._new()
        as_cut._push_past_stops(tokens)
        shown = as_cut.finish(is_cut=True)
        parts = self._push_past_stops(tokens)
        self._pending.extend((each, part.is_thought) for part in shown for each in part.text)
        return parts

    def _push_past_stops(self, tokens: Sequence[int]) -> list[Part]:
        self._search.passes = True
        parts = [part for token in tokens for part in self.push(token)]
        self._search.passes = False
        return parts

    def push(self, token: int) -> list[Part]:
        """The parts that became certain with the token, in order."""
        return self._told_apart(self._called(self._parted(self._text(token))))

    def _parted(self, text: str) -> list[Part]:
        """The thoughts and speech that a text adds. In kept calls it may have any mark."""
        if self._calls is None or not self._calls.is_kept:
            return self._split.push(text)
        return [*self._split.finish(), Part(text, is_thought=False)]

    def _text(self, token: int) -> str:
        if token in self._shown:
            return self._decoder.decode(b"", final=True) + self._vocabulary.text(token)
        return self._decoder.decode(self._vocabulary.piece(token))

    def finish(self, *, is_cut: bool) -> list[Part]:
        """The text that waited; no more tokens follow.

        Args:
            is_cut: The answer was cut off, so that an incomplete character is left out.
        """
        rest = "" if is_cut else self._decoder.decode(b"", final=True)
        parts = self._split.push(rest)
        head = self._split.head or ""  # of a message, or all that was said
        if not is_cut or not (_RECIPIENT in head or num_unfinished((_RECIPIENT,), head)):
            parts += self._split.finish()
        found = self._called(parts) + self._split_calls(self._waited())
        if self._calls is not None:
            found += self._calls.finish(is_cut=is_cut)
        return self._told_apart(found)

    def _told_apart(self, parts: list[Part]) -> list[Part]:
        """The parts, what was shown before apart from what is new."""
        if not self._pending:
            return parts
        found = []
        for part in parts:
            size = 0
            for each in part.text:
                if not self._pending or self._pending[0] != (each, part.is_thought):
                    break
                self._pending.popleft()
                size += 1
            if size > 0:
                found.append(part._replace(text=part.text[:size], is_again=True))
            if size < len(part.text) or part.call is not None:
                self._pending.clear()  # the rest of it was a mark, say
                found.append(part._replace(text=part.text[size:]))
        return found

    def _called(self, parts: list[Part]) -> list[Part]:
        """The parts with calls in place of the text that writes them, without marks."""
        found = []
        for part in parts:
            for each in self._addressed(part):
                found += self._split_calls(self._searched(each))
        return found

    def _addressed(self, part: Part) -> list[Part]:
        """The part, as text where it belongs to a message to a tool that nobody offered."""
        if part.text:
            shown = part._replace(is_thought=False) if self._is_stray else part
            self._has_said = self._has_said or not shown.is_thought
            return [shown]
        addressee = _ADDRESSEE.search(part.head)
        is_call = self._calls is not None and self._calls.takes(part.head)
        self._is_stray = addressee is not None and not is_call and not self._has_form
        if addressee is None or not self._is_stray:
            return [part]
        between = "\n\n" if self._has_said else ""
        self._has_said = True
        line = Part(f"{between}to={addressee[1]}\n", is_thought=False)
        return [part._replace(is_thought=False), line]

    def _split_calls(self, parts: list[Part]) -> list[Part]:
        if self._calls is None:
            return [part for part in parts if part.text]
        return [each for part in parts for each in self._calls.push(part)]

    def _searched(self, part: Part) -> list[Part]:
        """The part up to a stop string. One without text is a mark."""
        is_calling = self._calls is not None and self._calls.is_calling
        is_heard = bool(part.text) and (is_calling or not part.is_thought)
        found = [] if is_heard and part.is_thought == self._is_thought else self._waited()
        if is_heard and not self.stopped:
            self._is_thought = part.is_thought
            part = part._replace(text=self._search.push(part.text))
            if part.text:
                return [*found, part]
            return found
        if self.stopped:
            return found
        return [*found, part]

    def _waited(self) -> list[Part]:
        """The text in which a stop string may have begun."""
        text = self._search.finish()
        if text:
            return [Part(text, self._is_thought)]
        return []


class StopSearch:
    """Looks for stop strings in text that comes piece by piece.

    `push` and `finish` return text that is final. What could still become part of a stop
    string waits inside. After a stop string there is nothing more.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.stopped_by: str | None = None
        self.passes = False  # over stop strings that are whole: text from before they were set

    def push(self, text: str) -> str:
        """Text that is decided now. Sets `stopped_by` when a stop string is complete."""
        if self.stopped_by is not None:
            return ""
        text = self._held + text
        found = first_of(self._stop, text)
        if found is not None and not self.passes:
            # The stop string and what follows it are not part of the answer.
            self.stopped_by = found
            self._held = ""
            return text[: text.find(found)]
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
        one, several: What they are, in words.

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
