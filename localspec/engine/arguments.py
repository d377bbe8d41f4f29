"""Checks of the arguments that callers give to an engine."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from localspec.chat.chat import Chat
from localspec.chat.messages import checked_messages
from localspec.chat.template import Message
from localspec.chat.turns import question_message, system_messages
from localspec.errors import OptionError


def checked_chat(chat: object) -> Chat:
    """The chat. Raises OptionError for anything else."""
    if not isinstance(chat, Chat):
        raise OptionError(f"the chat is {chat!r}", "Give one of this engine's chats.")
    return chat


def question_messages(
    question: str | Sequence[Mapping[str, object]], system: str | None
) -> list[Message]:
    """Checked messages: those given, or one for a text; after the system message, if any.

    Raises OptionError for bad messages, and for two system messages.
    """
    if isinstance(question, str):
        return [*system_messages(system), question_message(question)]
    messages, first = checked_messages(question), system_messages(system)
    if first and messages[0]["role"] == "system":
        raise OptionError(
            "system is given, and the messages begin with one, too", "Give one of them."
        )
    return [*first, *messages]


def token_ids(prompt: Sequence[int]) -> list[int]:
    """The ids as plain ints. Raises OptionError for anything else."""
    try:
        if isinstance(prompt, bytes):
            raise TypeError("bytes")
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise OptionError(
            f"neither text nor token ids: {error}", "Give a str or ints."
        ) from error
