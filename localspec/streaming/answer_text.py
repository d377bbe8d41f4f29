"""Tokens of an answer → its thoughts and speech, up to a stop string in either."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from localspec.streaming.stops import StopSearch
from localspec.streaming.thinking import Part, Thoughts, ThoughtStream


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
    for in thoughts and speech, not in what tells these apart, nor across that.
    """

    def __init__(self, vocabulary: Pieces, thoughts: Thoughts, stop: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._shown = thoughts.shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._split = ThoughtStream(thoughts)
        self._search = StopSearch(stop)
        self._is_thought = False  # what the search holds

    @property
    def stopped(self) -> bool:
        """Whether there was a stop string: nothing comes after it."""
        return self._search.stopped

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is not for the user, unless a mark ends it."""
        return self._split.is_thinking

    def resume(self, tokens: Sequence[int]) -> None:
        """Begin behind these tokens of the answer, whose text is out already."""
        for token in tokens:
            self._split.push(self._text(token))
        self._split.finish()
        self._is_thought = self._split.is_thinking

    def push(self, token: int) -> list[Part]:
        """What became certain with the token, in order."""
        return self._searched(self._split.push(self._text(token)))

    def _text(self, token: int) -> str:
        if token in self._shown:
            return self._decoder.decode(b"", final=True) + self._vocabulary.text(token)
        return self._decoder.decode(self._vocabulary.piece(token))

    def finish(self) -> list[Part]:
        """Whatever waited: nothing more is coming."""
        parts = self._split.push(self._decoder.decode(b"", final=True)) + self._split.finish()
        return self._searched([*parts, Part("", self._is_thought)])

    def _searched(self, parts: list[Part]) -> list[Part]:
        """The parts up to a stop string. One without text is a mark, which none goes across."""
        found = []
        for part in parts:
            if not part.text or part.is_thought != self._is_thought:
                found.append(Part(self._search.finish(), self._is_thought))
                self._is_thought = part.is_thought
            found.append(Part(self._search.push(part.text), part.is_thought))
        return [part for part in found if part.text]
