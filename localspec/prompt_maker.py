"""Messages → the tokens that a model reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from localspec.cancellation import Unwanted, never
from localspec.control_guard import ControlGuard, Tokenizer
from localspec.template import ChatTemplate, Message
from localspec.thinking import opened_by, tags_of


class Prompt(NamedTuple):
    """What a model reads. closing_tag: of the thoughts that it has opened, if it has."""

    tokens: list[int]
    closing_tag: str | None


class PromptMaker:
    """A chat template, and what keeps messages from speaking for it. For any thread.

    think: False asks for no thoughts. Raises TemplateError for a source that is broken, or
    knows no such switch.
    """

    def __init__(self, vocabulary: Tokenizer, source: str, *, think: bool) -> None:
        self.thought_tags = tags_of(source)
        self._template = ChatTemplate(
            source,
            bos=vocabulary.text(vocabulary.bos),
            eos=vocabulary.text(vocabulary.eos),
            think=think,
        )
        self._guard = ControlGuard(vocabulary)
        self._rendering = threading.Lock()  # the template's meter counts for one at a time

    def prompt(self, messages: Sequence[Message], is_unwanted: Unwanted = never) -> Prompt:
        """The prompt that asks for the next answer, without a token that begins every text.

        Raises TemplateError if the template refuses the messages, or fails, Interrupted soon
        after it has become unwanted.
        """
        hidden = self._guard.hide([message["content"] for message in messages])
        shown = [
            {"role": message["role"], "content": content}
            for message, content in zip(messages, hidden.contents, strict=True)
        ]
        with self._rendering:
            text = self._template.render(shown, is_unwanted)
        return Prompt(self._guard.tokenize(text, hidden), opened_by(text, self.thought_tags))
