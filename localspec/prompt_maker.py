"""Messages → the tokens that a model reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from localspec.cancellation import Unwanted, never
from localspec.control_guard import ControlGuard, Tokenizer
from localspec.errors import TemplateError
from localspec.template import ChatTemplate, Message
from localspec.thinking import Thoughts, said
from localspec.thought_families import families_of


class Prompt(NamedTuple):
    """What a model reads. thoughts: what tells them from speech in the answer to it.

    By default, as for a text of the caller's own, all of the answer is speech.
    """

    tokens: list[int]
    thoughts: Thoughts = Thoughts()


class PromptMaker:
    """A chat template, and what keeps messages from speaking for it. For any thread.

    think: False asks for no thoughts. Raises TemplateError for a source that is broken, or
    knows no such switch.
    """

    def __init__(self, vocabulary: Tokenizer, source: str, *, think: bool) -> None:
        self._template = ChatTemplate(
            source,
            bos=vocabulary.text(vocabulary.bos),
            eos=vocabulary.text(vocabulary.eos),
            think=think,
        )
        self._guard = ControlGuard(vocabulary)
        self._thoughts = _thoughts(vocabulary, source, self._guard.texts)
        self._rendering = threading.Lock()  # the template's meter counts for one at a time

    def prompt(self, messages: Sequence[Message], is_unwanted: Unwanted = never) -> Prompt:
        """The prompt that asks for the next answer, without a token that begins every text.

        Thoughts that stand before an answer are left out: templates that do so themselves
        could not see the marks, which are hidden like any in a message.

        Raises TemplateError if the template refuses the messages, or fails, Interrupted soon
        after it has become unwanted.
        """
        hidden = self._guard.hide([self._content(message) for message in messages])
        shown = [
            {"role": message["role"], "content": content}
            for message, content in zip(messages, hidden.contents, strict=True)
        ]
        with self._rendering:
            text = self._rendered(shown, is_unwanted)
        return Prompt(self._guard.tokenize(text, hidden), self._thoughts.behind(text))

    def _content(self, message: Message) -> str:
        content = message["content"]
        is_answer = message["role"] == "assistant"
        return said(content, self._thoughts.families) if is_answer else content

    def _rendered(self, messages: Sequence[Message], is_unwanted: Unwanted) -> str:
        """The template's text, also where it refuses an answer in which nothing was said."""
        try:
            return self._template.render(messages, is_unwanted)
        except TemplateError:
            if all(message["content"] for message in messages):
                raise
        return self._template.render(
            [{**message, "content": message["content"] or " "} for message in messages],
            is_unwanted,
        )


def _thoughts(vocabulary: Tokenizer, source: str, texts: Sequence[str]) -> Thoughts:
    families = families_of(source, texts)
    marks = [mark for family in families for mark in family.marks]
    among = (text for text in texts if any(text in mark for mark in marks))
    ids = (vocabulary.tokenize(text, parse_special=True) for text in among)
    return Thoughts(families, shown=frozenset(token for each in ids for token in each))
