"""What a model would read, and what it says in tokens of any spelling."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat.chat import Chat, ChatExchange
from localspec.chat.template import Message
from localspec.chat.turns import Turn
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import never
from localspec.streaming.options import AnswerOptions
from localspec.vocabulary import Vocabulary


def prompt_behind(chat: Chat, turns: Sequence[Turn], question: Message) -> Prompt:
    """The chat's prompt for a question behind these turns, whether it fits or not."""
    return ChatExchange(chat, (question,), [], AnswerOptions()).prompt_behind(turns, never)


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
        self.vocabulary, self.vision, self.chat_template = vocabulary, vision, None
        self.tool_template = None
        self.context_length = self.trained_context_length = context_length
