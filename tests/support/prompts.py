"""What a model would read, and what it says in tokens of any spelling."""

from __future__ import annotations

from collections.abc import Sequence

import inside
from localspec.chat.chat import Chat, ChatRecord
from localspec.chat.template import Message
from localspec.chat.turns import Turn
from localspec.chat.workshop import PromptWorkshop
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import never
from localspec.streaming.record import MadePrompt, PromptSource
from localspec.vocabulary import Vocabulary


def prompt_behind(chat: Chat, turns: Sequence[Turn], question: Message) -> Prompt:
    """The chat's prompt for a question behind these turns, whether it fits or not."""
    source = ChatRecord(chat, (question,), [], AnswerOptions()).source()
    return source.prompt_after(turns, inside.workshop(chat), never)


class Spelled:
    """A vocabulary whose tokens are spelled so, each once."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.piece = pieces.__getitem__

    def text(self, token: int) -> str:
        return self.piece(token).decode()


class NoModels:
    """What a chat asks of an engine to make its prompts: a real vocabulary, any context."""

    def __init__(
        self, vocabulary: Vocabulary, context_length: int = 2048, vision: object = None
    ) -> None:
        self.chat_template = None
        self.tool_template = None
        self.context_length = context_length
        self._workshop = PromptWorkshop(
            vocabulary, None, None, vision, context_length, context_length
        )

    def _make_prompt(self, source: PromptSource) -> MadePrompt:
        return source.make(self._workshop, never)
