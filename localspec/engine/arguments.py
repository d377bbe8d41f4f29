"""What callers hand to an engine, checked before anything else sees it."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from localspec.chat.chat import Chat
from localspec.errors import OptionError


def require_chat(chat: object) -> None:
    """Raise OptionError for what is no chat."""
    if not isinstance(chat, Chat):
        raise OptionError(f"the chat is {chat!r}", "Give one of this engine's chats.")


def token_ids(prompt: Sequence[int]) -> list[int]:
    """The ids as plain ints. Raises OptionError for what is none."""
    try:
        if isinstance(prompt, bytes):
            raise TypeError("bytes")
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise OptionError(
            f"neither text nor token ids: {error}", "Give a str or ints."
        ) from error
