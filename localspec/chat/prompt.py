"""Messages → the tokens that a model reads.

Templates look for switches in messages, and cut them out: what is left could join to a control
text. Where it could, the messages are rendered once more, with all of their text hidden, which
shows the control texts that are the template's own. If they are others, more of the text is
hidden, and if need be all of it: then only what the template would have done to it is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from localspec.chat.control_guard import ControlGuard, Hidden, Tokenizer
from localspec.chat.template import ChatTemplate, Message
from localspec.errors import TemplateError
from localspec.streaming.cancellation import Unwanted, never
from localspec.streaming.thinking import Thoughts, said
from localspec.streaming.thought_families import families_of

_USUAL_ROLES = ("system", "user", "assistant")  # which templates know, or refuse in words


class Prompt(NamedTuple):
    """What a model reads. thoughts: what tells them from speech in the answer to it.

    By default, as for a text of the caller's own, all of the answer is speech. num_said: how
    many of the tokens are the answer's own already, which goes on behind them.
    """

    tokens: list[int]
    thoughts: Thoughts = Thoughts()
    num_said: int = 0


class PromptMaker:
    """A chat template, and what keeps messages from speaking for it. For any thread.

    think: False asks for no thoughts. Raises TemplateError for a source that is broken, or
    knows no such switch.
    """

    def __init__(self, vocabulary: Tokenizer, source: str, *, think: bool) -> None:
        bos, eos = vocabulary.text(vocabulary.bos), vocabulary.text(vocabulary.eos)
        self._template = ChatTemplate(source, bos=bos, eos=eos, think=think)
        variables = {"bos_token": bos, "eos_token": eos}
        self._named = tuple(text for name, text in variables.items() if name in source)
        self._source = source
        self._guard = ControlGuard(vocabulary)
        self._thoughts = _thoughts(vocabulary, source, self._guard.texts)
        self._rendering = threading.Lock()  # the template's meter counts for one at a time

    def prompt(self, messages: Sequence[Message], is_unwanted: Unwanted = never) -> Prompt:
        """The prompt that asks for the next answer, without a token that begins every text.

        An answer that is the last of the messages is gone on with. A developer is the system
        where the template does not know the word. Thoughts that stand before an answer are
        left out: templates that do so themselves could not see the marks, which are hidden
        like any in a message.

        Raises TemplateError if the template refuses the messages, leaves some out, or fails,
        Interrupted soon after it has become unwanted.
        """
        messages = [{**message, "role": self._role(message)} for message in messages]
        with self._rendering:
            self._check_roles(messages, is_unwanted)
            text, hidden = self._guarded(messages, is_unwanted)
        return Prompt(self._guard.tokenize(text, hidden), self._thoughts.after(text))

    def _role(self, message: Message) -> str:
        is_unknown = message["role"] == "developer" and "developer" not in self._source
        return "system" if is_unknown else message["role"]

    def _check_roles(self, messages: Sequence[Message], is_unwanted: Unwanted) -> None:
        """Refuse a role that the template passes over: nothing that is said is lost."""
        if all(message["role"] in _USUAL_ROLES for message in messages):
            return
        hidden = self._guard.hide_all([self._content(message) for message in messages])
        text = self._rendered(messages, hidden, is_unwanted)
        for message, content in zip(messages, hidden.contents, strict=True):
            if message["role"] not in _USUAL_ROLES and content.strip() not in text:
                raise TemplateError(
                    f"the chat template leaves out messages of the role {message['role']!r}",
                    "Give their text the role user or system.",
                )

    def _content(self, message: Message) -> str:
        content = message["content"]
        is_answer = message["role"] == "assistant"
        return said(content, self._thoughts.families) if is_answer else content

    def _guarded(
        self, messages: Sequence[Message], is_unwanted: Unwanted
    ) -> tuple[str, Hidden]:
        """The template's text, whose control texts are its own, and what is hidden in it."""
        contents = [self._content(message) for message in messages]
        hidden = self._guard.hide(contents)
        text = self._rendered(messages, hidden, is_unwanted)
        if not self._guard.shows_ends(hidden) and self._are_written(self._guard.found(text)):
            return text, hidden
        safest = self._guard.hide_all(contents)
        safe_text = self._rendered(messages, safest, is_unwanted)
        own = self._guard.found(safe_text)
        if self._guard.found(text) == own:
            return text, hidden
        hidden = self._guard.hide_words(contents)
        text = self._rendered(messages, hidden, is_unwanted)
        # A switch in a message can bring others.
        others = [each for each in self._guard.found(text) if each not in own]
        return (text, hidden) if self._are_written(others) else (safe_text, safest)

    def _are_written(self, texts: Sequence[str]) -> bool:
        """Whether the template names them all, so that it need not put them together."""
        return all(text in self._named or text in self._source for text in texts)

    def _rendered(
        self, originals: Sequence[Message], hidden: Hidden, is_unwanted: Unwanted
    ) -> str:
        """The template's text, also where it refuses an answer in which nothing was said."""
        messages = [
            {"role": message["role"], "content": content}
            for message, content in zip(originals, hidden.contents, strict=True)
        ]
        if messages[-1]["role"] == "assistant":
            return self._begun(messages, hidden.end, is_unwanted)
        try:
            return self._template.render(messages, is_unwanted)
        except TemplateError:
            if all(message["content"] for message in messages):
                raise
        return self._template.render(
            [{**message, "content": message["content"] or " "} for message in messages],
            is_unwanted,
        )

    def _begun(self, messages: list[dict[str, str]], end: str, is_unwanted: Unwanted) -> str:
        """The template's text up to the end of the last message, an answer."""
        messages[-1]["content"] += end
        text = self._template.render(messages, is_unwanted, opens_answer=False)
        begun, found, _ = text.rpartition(end)
        if not found:
            raise TemplateError(
                "the chat template leaves out the answer that is to be gone on with",
                "Leave out the last message, whose role is assistant.",
            )
        return begun


def _thoughts(vocabulary: Tokenizer, source: str, texts: Sequence[str]) -> Thoughts:
    families = families_of(source, texts)
    marks = [mark for family in families for mark in family.marks]
    among = (text for text in texts if any(text in mark for mark in marks))
    ids = (vocabulary.tokenize(text, parse_special=True) for text in among)
    return Thoughts(families, shown=frozenset(token for each in ids for token in each))
