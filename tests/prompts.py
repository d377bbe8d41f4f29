"""What a model would read."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat.chat import Chat
from localspec.chat.room import Asked
from localspec.chat.template import Message
from localspec.chat.turns import Turn
from localspec.streaming.cancellation import never
from localspec.streaming.prompt import Prompt
from localspec.tools.tool import ToolUse


def prompt_behind(chat: Chat, turns: Sequence[Turn], question: Message) -> Prompt:
    """The chat's prompt for a question behind these turns, whether it fits or not."""
    use = ToolUse()
    messages = Asked(chat._system, (question,), use).behind(turns)
    return chat._maker.prompt(messages, use, never)
