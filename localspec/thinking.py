"""What a model thinks before it speaks, told apart from what it says.

Reasoning models begin an answer with `<think>…</think>`, or only end it there, when the
template has opened the tag for them. A tag further on is a text like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Opening and closing tags of the families that think in their answers.
_USUAL_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)


class Part(NamedTuple):
    """Text that became certain: first what was thought, then what is said."""

    thought: str
    said: str


def tags_of(template: str) -> tuple[tuple[str, str], ...]:
    """Opening and closing tags that the template's source names, or the usual ones."""
    named = tuple(tags for tags in _USUAL_TAGS if tags[1] in template)
    return named or _USUAL_TAGS


def opened_by(prompt: str, tags: Sequence[tuple[str, str]]) -> str | None:
    """The closing tag of the thoughts that the prompt has opened, if it ends with them."""
    end = prompt.rstrip()
    return next((closing for opening, closing in tags if end.endswith(opening)), None)


class ThoughtStream:
    """Splits an answer into thoughts and speech while it comes.

    closing: the tag that ends the thoughts, if the prompt has begun them. Tags, and the
    blank space around thoughts, belong to neither part.
    """

    def __init__(self, tags: Sequence[tuple[str, str]], closing: str | None) -> None:
        self._tags = tags
        self._closing = closing
        self._state = "deciding" if closing is None else "thinking"
        self._held = ""

    def push(self, text: str) -> Part:
        """What is certain now. An unfinished tag waits inside."""
        self._held += text
        thought = said = ""
        if self._state == "deciding":
            self._decide()
        if self._state == "thinking":
            thought = self._think()
        if self._state == "thought":
            # The blank lines between thoughts and speech.
            self._held = self._held.lstrip()
            self._state = "saying" if self._held else "thought"
        if self._state == "saying":
            said, self._held = self._held, ""
        return Part(thought, said)

    def finish(self) -> Part:
        """Whatever waited: nothing more is coming."""
        held, self._held = self._held, ""
        return Part(held, "") if self._state == "thinking" else Part("", held)

    def _decide(self) -> None:
        begin = self._held.lstrip()
        for opening, closing in self._tags:
            if begin.startswith(opening):
                self._held = begin.removeprefix(opening)
                self._state, self._closing = "thinking", closing
                return
        if begin and not any(opening.startswith(begin) for opening, _ in self._tags):
            self._state = "saying"

    def _think(self) -> str:
        assert self._closing is not None
        thought, found, rest = self._held.partition(self._closing)
        if found:
            self._state, self._held = "thought", rest
            return thought
        waits = next(
            size
            for size in range(len(self._closing) - 1, -1, -1)
            if self._held.endswith(self._closing[:size])
        )
        self._held = thought[len(thought) - waits :]
        return thought[: len(thought) - waits]


def without_thoughts(text: str, splitter: ThoughtStream) -> str:
    """What a whole answer says. splitter: a new one for it."""
    return splitter.push(text).said + splitter.finish().said
