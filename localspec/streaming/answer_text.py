"""Tokens of an answer → its thoughts and speech, up to a stop string in either."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from localspec.streaming.calls import CallStream
from localspec.streaming.stops import StopSearch
from localspec.streaming.thinking import Part, Thoughts, ThoughtStream
from localspec.tools.calls import Calls


class Pieces(Protocol):
    """Token ids → their bytes."""

    def piece(self, token: int) -> bytes:
        """Bytes of a token as they stand in an answer."""

    def text(self, token: int) -> str:
        """The vocabulary's entry for a token."""

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Their text; with special, also that of control tokens."""


class AnswerText:
    """The text of one answer, token by token.

    `push` and `finish` return text that is final. An unfinished UTF-8 character, mark or stop
    string waits inside. Bytes that are not UTF-8 come out as U+FFFD. Stop strings are looked
    for in thoughts, speech and calls as they are written, not in what tells thoughts from
    speech, nor across that.
    """

    def __init__(
        self,
        vocabulary: Pieces,
        thoughts: Thoughts,
        stop: Sequence[str],
        calls: Calls | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._shown = thoughts.shown | (calls.shown if calls is not None else frozenset())
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._split = ThoughtStream(thoughts)
        self._search = StopSearch(stop)
        self._calls = None if calls is None else CallStream(calls)
        self._is_thought = False  # what the search holds

    @property
    def stopped(self) -> bool:
        """Whether there was a stop string, or the only call: nothing comes after it."""
        return self._search.stopped or (self._calls is not None and self._calls.has_ended)

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is not for the user, unless a mark ends it."""
        is_calling = self._calls is not None and self._calls.is_calling
        return self._split.is_thinking and not is_calling

    def resume(self, tokens: Sequence[int]) -> None:
        """Begin behind these tokens of the answer, whose text is out already."""
        for token in tokens:
            self._split.push(self._text(token))
        self._split.finish()
        self._is_thought = self._split.is_thinking

    def push(self, token: int) -> list[Part]:
        """What became certain with the token, in order."""
        return self._called(self._searched(self._split.push(self._text(token))))

    def _text(self, token: int) -> str:
        if token in self._shown:
            return self._decoder.decode(b"", final=True) + self._vocabulary.text(token)
        return self._decoder.decode(self._vocabulary.piece(token))

    def finish(self) -> list[Part]:
        """Whatever waited: nothing more is coming."""
        parts = self._split.push(self._decoder.decode(b"", final=True)) + self._split.finish()
        found = self._called(self._searched([*parts, Part("", self._is_thought)]))
        return found if self._calls is None else [*found, *self._calls.finish()]

    def _searched(self, parts: list[Part]) -> list[Part]:
        """The parts up to a stop string. One without text is a mark, which none goes across."""
        found: list[Part] = []

        def add(text: str) -> None:
            if text:
                found.append(Part(text, self._is_thought))

        for part in parts:
            if not part.text or part.is_thought != self._is_thought:
                add(self._search.finish())
                self._is_thought = part.is_thought
            if part.text:
                add(self._search.push(part.text))
            elif not self._search.stopped:
                found.append(part)
        return found

    def _called(self, parts: list[Part]) -> list[Part]:
        """The parts with calls in place of the text that writes them, without marks."""
        if self._calls is None:
            return [part for part in parts if part.text]
        return [each for part in parts for each in self._calls.push(part)]
