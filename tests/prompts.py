"""What a model would read."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat.chat import Chat, ChatExchange
from localspec.chat.template import Message
from localspec.chat.turns import Turn
from localspec.streaming.cancellation import never
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt


def prompt_behind(chat: Chat, turns: Sequence[Turn], question: Message) -> Prompt:
    """The chat's prompt for a question behind these turns, whether it fits or not."""
    return ChatExchange(chat, (question,), [], AnswerOptions()).prompt_behind(turns, never)
