"""Keeps text inside a message from becoming a control token.

A rendered prompt is tokenised with special tokens on, because the template has its own. So text
of a message that spells a control token is replaced by a placeholder before rendering, and
tokenised as plain text where the placeholder comes out. But a template that removes a part of a
message could join the text before and after it to a control text: how much is hidden depends on
what comes out (see `chat.prompt`).
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from localspec.chat.shown import ShownTokens, pieces_of, shown_in
from localspec.chat.template import NO_VARIABLES, Message
from localspec.vocabulary import Vocabulary

_MARK_DIGITS = 20
_INDEX_DIGITS = 8
_HANDLED = ("role", "content", "pictures")  # keys of a message that `_hidden` treats one by one

Span = tuple[int, int]  # first character, and the one after the last


class Exposed(NamedTuple):
    """Everything that a template may read."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools as OpenAI declares them."""

    data: frozenset[int] = frozenset()
    """The numbers of messages whose content is the result of a call."""

    variables: Mapping[str, Any] = NO_VARIABLES
    """The template's variables, as `ChatTemplate.render` has them."""

    opens_answer: bool = True
    """Whether the prompt opens an answer, as `ChatTemplate.render` has it."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """An `Exposed` with placeholders."""

    mark: str
    """The beginning of each placeholder."""

    opens_answer: bool
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, str | Sequence[int]] = field(default_factory=dict)
    """The text that a placeholder stands for, or a picture's tokens, by the digits after the
    mark."""

    shown: list[str] = field(default_factory=list)
    """All texts in messages and tools, as the template sees them."""

    @property
    def end(self) -> str:
        """A placeholder that stands for nothing, to see where something ends."""
        return self.mark + "9" * _INDEX_DIGITS

    def shows_pictures(self, prompt: str) -> bool:
        """Whether each picture stands in the prompt once."""
        for index, part in self.parts.items():
            is_picture = not isinstance(part, str)
            if is_picture and prompt.count(self.mark + index) != 1:
                return False
        return True

    def uncovered(self, prompt: str) -> str:
        """The prompt with the hidden texts. Pictures have none and are left out."""

        def part_of(found: re.Match[str]) -> str:
            part = self.parts.get(found[1], "")
            if isinstance(part, str):
                return part
            return ""

        return re.sub(f"{self.mark}([0-9]{{{_INDEX_DIGITS}}})", part_of, prompt)

    def hide(self, part: str | Sequence[int]) -> str:
        """A placeholder for a text, or a picture's tokens."""
        index = f"{len(self.parts):0{_INDEX_DIGITS}}"
        self.parts[index] = part
        return self.mark + index


class ControlGuard:
    """Hides the control texts in messages, and tokenises the prompt they were rendered to.

    Messages without such text do not change, and are tokenised together with their
    surroundings.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # The control texts, which are hidden.
        self.texts = sorted(vocabulary.control_texts())
        self._reversed = sorted(text[::-1] for text in self.texts)
        self._longest = max(map(len, self.texts), default=0)
        self._ends: set[str] = set()
        for text in self.texts:
            self._ends |= {text[0], text[-1]}

    def hide(self, exposed: Exposed) -> Hidden:
        """Hide what can be taken for a control token.

        That is enough if the template changes only the edges of texts. Tools, calls and results
        may be written as JSON, so characters that JSON escapes are not hidden there.
        """
        return _hidden(exposed, self._spans, self._spans)

    def hide_words(self, exposed: Exposed) -> Hidden:
        """Hide also every word that could be the beginning or the end of a control text.

        The remaining text cannot be joined to a control text, unless the template writes both
        ends.
        """
        return _hidden(exposed, self._words, self._words)

    def hide_all(self, exposed: Exposed) -> Hidden:
        """Hide the whole text of messages, but for the blank space around it.

        In tools, calls and results only words are hidden, as by `hide_words`: templates read
        them.
        """
        return _hidden(exposed, _whole, self._words)

    def shows_ends(self, hidden: Hidden) -> bool:
        """Whether `hide_words` would hide more."""
        return not all(map(self._ends.isdisjoint, hidden.shown))

    def control_texts_in(self, prompt: str) -> list[str]:
        """The control texts in a prompt whose messages are hidden, in order."""
        matches = sorted(self._matches(prompt), key=re.Match.start)
        return [match.group() for match in matches]

    def tokenize(self, prompt: str, hidden: Hidden) -> list[int]:
        """Ids of the prompt that the hidden messages were rendered to."""
        tokens: list[int] = []
        pieces = re.split(f"{hidden.mark}([0-9]{{{_INDEX_DIGITS}}})", prompt)
        for number, piece in enumerate(pieces):
            after = None
            # After a picture's cells a text starts anew, as in llama.cpp.
            if tokens and tokens[-1] >= 0:
                after = tokens[-1]
            is_placeholder = number % 2 == 1
            if not is_placeholder:
                tokens += self._vocabulary.tokenize(piece, parse_special=True, after=after)
                continue
            part = hidden.parts.get(piece, "")
            if isinstance(part, str):
                tokens += self._spell(part, after)
            else:
                tokens += part
        return tokens

    def _spell(self, text: str, after: int | None) -> list[int]:
        """Ids of the text without a control token among them.

        Where merging gives a control token, the halves of the text are tokenised one by one. A
        single character that has no other entry is left out.
        """
        tokens = self._vocabulary.tokenize(text, parse_special=False, after=after)
        # As a set: an engine in another process is asked for each token.
        if not any(map(self._vocabulary.is_control, set(tokens))):
            return tokens
        if len(text) == 1:
            return []
        middle = len(text) // 2
        left = self._spell(text[:middle], after)
        if left:
            after = left[-1]
        right = self._spell(text[middle:], after)
        return left + right

    def _spans(self, content: str) -> list[Span]:
        """The runs that have to be hidden, which can overlap."""
        spans = list(self._edges(content))
        spans += [match.span() for match in self._matches(content)]
        return spans

    def _matches(self, content: str) -> list[re.Match[str]]:
        """The control texts in a content, in the order of `texts`.

        Occurrences of one text do not overlap here: once the first is hidden, the second is not
        spelled any more.
        """
        matches: list[re.Match[str]] = []
        for text in self.texts:
            # Few texts occur, and Python caches only some hundred patterns.
            if text in content:
                matches += re.finditer(re.escape(text), content)
        return matches

    def _words(self, content: str) -> Iterator[Span]:
        """The runs that `hide_words` hides, which can overlap."""
        yield from self._spans(content)
        for word in re.finditer(r"\S+", content):
            if not self._ends.isdisjoint(word.group()):
                yield word.span()

    def _edges(self, content: str) -> Iterator[Span]:
        """Edges that could complete a control text that the template begins, or begin one.

        Templates trim messages, so that the edge may be further inside.
        """
        first = len(content) - len(content.lstrip())
        last = len(content.rstrip())
        for begin, end in {(0, len(content)), (first, last)}:
            if begin >= end:
                continue
            beginning = content[begin : min(end, begin + self._longest)]
            size = _overlap(beginning[::-1], self._reversed)
            if size:
                yield begin, begin + size
            ending = content[max(begin, end - self._longest) : end]
            size = _overlap(ending, self.texts)
            if size:
                yield end - size, end


def _hidden(
    exposed: Exposed,
    spans: Callable[[str], Iterable[Span]],
    data_spans: Callable[[str], Iterable[Span]],
) -> Hidden:
    """Hide runs of the texts that a template may read.

    Args:
        exposed: What the template may read.
        spans: The runs to hide in a message's text.
        data_spans: The runs to hide in texts of tools, calls and results.
    """
    hidden = Hidden(_new_mark(repr(exposed)), exposed.opens_answer)

    def with_placeholders(text: str, runs: Iterable[Span]) -> str:
        shown = ""
        at = 0
        for begin, end in runs:
            shown += text[at:begin] + hidden.hide(text[begin:end])
            at = end
        shown += text[at:]
        hidden.shown.append(shown)
        return shown

    def speech(text: str) -> str:
        return with_placeholders(text, _merged(spans(text)))

    def data_text(text: str) -> str:
        return with_placeholders(text, _unescaped(text, data_spans(text)))

    for number, message in enumerate(exposed.messages):
        other_keys = {name: value for name, value in message.items() if name not in _HANDLED}
        content = ""
        for piece, picture in zip_longest(pieces_of(message), shown_in(message)):
            if number in exposed.data:
                content += data_text(piece)
            else:
                content += speech(piece)
            if picture is not None:
                assert isinstance(picture, ShownTokens)
                content += hidden.hide(picture.tokens)
        shown = {"role": message["role"], "content": content}
        hidden.messages.append({**shown, **_with_texts(other_keys, data_text)})
    hidden.tools.extend(_with_texts(exposed.tools, data_text))
    hidden.variables.update(_with_texts(exposed.variables, data_text))
    return hidden


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The value with all texts in it changed, the keys of dicts among them."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        changed = {}
        for key, item in value.items():
            changed_key = change(str(key))
            changed[changed_key] = _with_texts(item, change)
        return changed
    if isinstance(value, list | tuple):
        return [_with_texts(item, change) for item in value]
    return value


def _unescaped(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """The runs without characters that JSON escapes: it could not escape them when hidden."""
    for begin, end in _merged(spans):
        for found in re.finditer(r'[^"\\\x00-\x1f]+', text[begin:end]):
            yield begin + found.start(), begin + found.end()


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The runs in order; those that touch or overlap become one."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            first, last = merged.pop()
            merged.append((first, max(end, last)))
        else:
            merged.append((begin, end))
    return merged


def _whole(content: str) -> list[Span]:
    """One run: the content without the blank space around it."""
    begin = len(content) - len(content.lstrip())
    end = len(content.rstrip())
    if begin < end:
        return [(begin, end)]
    return []


def _new_mark(taken: str) -> str:
    """Random digits that `taken` lacks. Digits survive changes of case, trimming and JSON."""
    while True:
        digits = [secrets.choice("0123456789") for _ in range(_MARK_DIGITS)]
        mark = "".join(digits)
        if mark not in taken:
            return mark


def _overlap(content: str, texts: Sequence[str]) -> int:
    """The length of the longest end of the content with which one of the texts begins.

    Args:
        content: The content.
        texts: The texts, sorted.
    """
    for size in range(len(content), 0, -1):
        end = content[-size:]
        following = bisect_right(texts, end)  # texts that begin with `end` sort right after it
        if following < len(texts) and texts[following].startswith(end):
            return size
    return 0
