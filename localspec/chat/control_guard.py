"""Keeps text inside a message from becoming a control token.

A control text is the text of a control token, such as <|im_end|>. The template writes some, so
a rendered prompt is tokenised with control tokens on. Text of a message that spells a control
token is therefore hidden: a placeholder, which is a number, replaces it before rendering. In
the rendered prompt the placeholder is replaced by the text, tokenised as plain text.

A template may remove a part of a message, and so join the texts before and after it to a
control text. How much has to be hidden depends on the prompt that it writes: see `chat.prompt`.
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
_HANDLED = ("role", "content", "pictures")  # keys of a message with code of their own

Span = tuple[int, int]  # indexes of the first character of a text, and after the last


class Exposed(NamedTuple):
    """Everything that a template may read, before any of it is hidden."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools as OpenAI declares them."""

    result_indexes: frozenset[int] = frozenset()
    """The indexes of messages whose content is the result of a call."""

    variables: Mapping[str, Any] = NO_VARIABLES
    """The template's variables, as `ChatTemplate.render` has them."""

    opens_answer: bool = True
    """Whether the prompt opens an answer, as `ChatTemplate.render` has it."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """An `Exposed` with placeholders in place of hidden texts and of pictures.

    A placeholder is `mark` and an index of _INDEX_DIGITS digits.
    """

    mark: str
    """The beginning of each placeholder: digits that occur in no message."""

    opens_answer: bool
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, str | Sequence[int]] = field(default_factory=dict)
    """The hidden texts, and the tokens of pictures, by the index in their placeholder."""

    shown: list[str] = field(default_factory=list)
    """All texts in messages, tools and variables, as the template sees them."""

    @property
    def end(self) -> str:
        """A placeholder of nothing. It marks where the text before it ends in the prompt."""
        return self.mark + "9" * _INDEX_DIGITS

    @property
    def placeholder(self) -> re.Pattern[str]:
        """Matches a placeholder. Its group is the index."""
        return re.compile(f"{self.mark}([0-9]{{{_INDEX_DIGITS}}})")

    def shows_pictures(self, prompt: str) -> bool:
        """Whether the rendered prompt has the placeholder of each picture exactly once."""
        for index, part in self.parts.items():
            is_picture = not isinstance(part, str)
            if is_picture and prompt.count(self.mark + index) != 1:
                return False
        return True

    def with_texts_restored(self, prompt: str) -> str:
        """The rendered prompt with the hidden texts in it, and without pictures."""

        def hidden_text(placeholder: re.Match[str]) -> str:
            part = self.parts.get(placeholder[1], "")
            if isinstance(part, str):
                return part
            return ""

        return self.placeholder.sub(hidden_text, prompt)

    def hide(self, part: str | Sequence[int]) -> str:
        """Store a text, or the tokens of a picture. Returns its placeholder."""
        index = f"{len(self.parts):0{_INDEX_DIGITS}}"
        self.parts[index] = part
        return self.mark + index


class ControlGuard:
    """Hides the control texts in messages, and tokenises the prompt rendered from them.

    A message without such texts does not change, and is tokenised together with the template's
    text around it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # The control texts, sorted.
        self.texts = sorted(vocabulary.control_texts())
        # The control texts backwards, sorted.
        self._reversed = sorted(text[::-1] for text in self.texts)
        self._longest = max(map(len, self.texts), default=0)
        # The first and last characters of control texts.
        self._end_characters: set[str] = set()
        for text in self.texts:
            self._end_characters |= {text[0], text[-1]}

    def hide(self, exposed: Exposed) -> Hidden:
        """Hide control texts, and parts of one at the edges of a text.

        This is enough for a template that changes nothing but the edges of texts. Tools, calls
        and results may be written as JSON, so characters that JSON escapes stay there.
        """
        return _hide(exposed, self._control_spans, self._control_spans)

    def hide_words(self, exposed: Exposed) -> Hidden:
        """As `hide`, and hide every word with the first or last character of a control text.

        The remaining texts cannot be joined to a control text, unless the template writes both
        its first and its last character.
        """
        return _hide(exposed, self._word_spans, self._word_spans)

    def hide_all(self, exposed: Exposed) -> Hidden:
        """Hide the whole texts of messages, but for the blank space around them.

        In tools, calls and results only words are hidden, as by `hide_words`, because templates
        read the rest.
        """
        return _hide(exposed, _stripped_span, self._word_spans)

    def shows_ends(self, hidden: Hidden) -> bool:
        """Whether a first or last character of a control text is left in the texts.

        Then `hide_words` would hide more.
        """
        return not all(map(self._end_characters.isdisjoint, hidden.shown))

    def control_texts_in(self, prompt: str) -> list[str]:
        """The control texts in a rendered prompt, from left to right."""
        matches = sorted(self._matches(prompt), key=re.Match.start)
        return [match.group() for match in matches]

    def tokenize(self, prompt: str, hidden: Hidden) -> list[int]:
        """The token ids of a rendered prompt, with hidden texts in place of placeholders.

        Args:
            prompt: The prompt, with placeholders.
            hidden: What the prompt was rendered from.
        """
        tokens: list[int] = []
        # Texts and the indexes of placeholders alternate, beginning with a text.
        pieces = hidden.placeholder.split(prompt)
        for number, piece in enumerate(pieces):
            after = None
            # A text after a picture, whose tokens are negative, starts anew, as in llama.cpp.
            if tokens and tokens[-1] >= 0:
                after = tokens[-1]
            is_index = number % 2 == 1
            if not is_index:
                tokens += self._vocabulary.tokenize(piece, parse_special=True, after=after)
                continue
            part = hidden.parts.get(piece, "")
            if isinstance(part, str):
                tokens += self._spell(part, after)
            else:
                tokens += part
        return tokens

    def _spell(self, text: str, after: int | None) -> list[int]:
        """Token ids that spell a text, none of them a control token.

        If the tokenizer gives a control token, the two halves of the text are tokenised
        separately. A single character that only a control token spells is left out.

        Args:
            text: The text.
            after: The token before the text; None if there is none.
        """
        tokens = self._vocabulary.tokenize(text, parse_special=False, after=after)
        # Each token once, since the vocabulary may have to ask another process.
        if not any(map(self._vocabulary.is_control, set(tokens))):
            return tokens
        if len(text) == 1:
            return []
        middle = len(text) // 2
        first_half = self._spell(text[:middle], after)
        if first_half:
            after = first_half[-1]
        second_half = self._spell(text[middle:], after)
        return first_half + second_half

    def _control_spans(self, text: str) -> list[Span]:
        """The spans that `hide` hides, which can overlap."""
        spans = list(self._edge_spans(text))
        spans += [match.span() for match in self._matches(text)]
        return spans

    def _matches(self, text: str) -> list[re.Match[str]]:
        """Matches of the control texts in a text, in the order of `texts`.

        Of overlapping occurrences of one control text only the first counts: once it is hidden,
        the others are incomplete.
        """
        matches: list[re.Match[str]] = []
        for control_text in self.texts:
            # Few of them occur, and Python caches only some hundred patterns.
            if control_text in text:
                matches += re.finditer(re.escape(control_text), text)
        return matches

    def _word_spans(self, text: str) -> Iterator[Span]:
        """The spans that `hide_words` hides, which can overlap."""
        yield from self._control_spans(text)
        for word in re.finditer(r"\S+", text):
            if not self._end_characters.isdisjoint(word.group()):
                yield word.span()

    def _edge_spans(self, text: str) -> Iterator[Span]:
        """The spans at the edges of a text that could be parts of a control text.

        The text's beginning could complete a control text that the template's text begins, and
        the text's end could begin one. Templates may strip the text, so the edges of the
        stripped text count, too.
        """
        whole_span = (0, len(text))
        stripped_spans = _stripped_span(text)
        for begin, end in {whole_span, *stripped_spans}:
            # Backwards: the longest beginning that is the end of a control text.
            beginning = text[begin:end][: self._longest]
            size = _overlap(beginning[::-1], self._reversed)
            if size:
                yield begin, begin + size
            ending_begin = max(begin, end - self._longest)
            size = _overlap(text[ending_begin:end], self.texts)
            if size:
                yield end - size, end


def _hide(
    exposed: Exposed,
    message_spans: Callable[[str], Iterable[Span]],
    data_spans: Callable[[str], Iterable[Span]],
) -> Hidden:
    """Replace spans of the texts that a template may read by placeholders.

    Args:
        exposed: What the template may read.
        message_spans: Gives the spans to hide in the text of a message.
        data_spans: Gives the spans to hide in a text of a tool, a call, a result or a variable.
    """
    hidden = Hidden(_new_mark(repr(exposed)), exposed.opens_answer)

    def with_placeholders(text: str, spans: Iterable[Span]) -> str:
        """The text with placeholders for its spans, which are in order and do not overlap.

        It is added to `hidden.shown`.
        """
        shown = ""
        shown_until = 0
        for begin, end in spans:
            shown += text[shown_until:begin]
            shown += hidden.hide(text[begin:end])
            shown_until = end
        shown += text[shown_until:]
        hidden.shown.append(shown)
        return shown

    def hide_message_text(text: str) -> str:
        return with_placeholders(text, _merged(message_spans(text)))

    def hide_data_text(text: str) -> str:
        return with_placeholders(text, _without_escaped(text, data_spans(text)))

    for index, message in enumerate(exposed.messages):
        hide_text = hide_message_text
        if index in exposed.result_indexes:
            hide_text = hide_data_text
        content = ""
        for piece, picture in zip_longest(pieces_of(message), shown_in(message)):
            content += hide_text(piece)
            if picture is not None:
                assert isinstance(picture, ShownTokens)
                content += hidden.hide(picture.tokens)
        other_keys = {name: value for name, value in message.items() if name not in _HANDLED}
        hidden_keys = _with_texts(other_keys, hide_data_text)
        hidden.messages.append({"role": message["role"], "content": content, **hidden_keys})
    hidden.tools.extend(_with_texts(exposed.tools, hide_data_text))
    hidden.variables.update(_with_texts(exposed.variables, hide_data_text))
    return hidden


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of nested dicts and lists with `change` applied to all texts, keys included."""
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


def _without_escaped(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """The spans, merged and split, without the characters that JSON escapes.

    These stay in the text, because JSON could not escape them in a placeholder.
    """
    for begin, end in _merged(spans):
        for unescaped in re.finditer(r'[^"\\\x00-\x1f]+', text[begin:end]):
            yield begin + unescaped.start(), begin + unescaped.end()


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in order; spans that touch or overlap become one."""
    merged: list[Span] = []
    merged_end = -1  # no span touches it
    for begin, end in sorted(spans):
        if begin <= merged_end:
            merged_begin, _ = merged.pop()
            merged_end = max(merged_end, end)
            merged.append((merged_begin, merged_end))
        else:
            merged.append((begin, end))
            merged_end = end
    return merged


def _stripped_span(text: str) -> list[Span]:
    """The span of the text without the blank space around it, in a list; [] if it is blank."""
    begin = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    if begin < end:
        return [(begin, end)]
    return []


def _new_mark(known_text: str) -> str:
    """Random digits that are not in `known_text`.

    Digits survive changes of case, stripping and JSON in a template.
    """
    while True:
        digits = [secrets.choice("0123456789") for _ in range(_MARK_DIGITS)]
        mark = "".join(digits)
        if mark not in known_text:
            return mark


def _overlap(text: str, sorted_texts: Sequence[str]) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of a sorted text.

    0 if there is none. "Proper" means that the sorted text is longer than the suffix.
    """
    for size in range(len(text), 0, -1):
        suffix = text[-size:]
        # Texts that begin with the suffix sort directly after it.
        following = bisect_right(sorted_texts, suffix)
        if following < len(sorted_texts) and sorted_texts[following].startswith(suffix):
            return size
    return 0
