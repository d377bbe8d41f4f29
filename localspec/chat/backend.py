"""The engine, as far as a conversation knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from localspec.streaming.answer import Answer
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.exchange import Exchange
from localspec.vocabulary import Vocabulary


class ChatBackend(Protocol):
    """The engine, as far as a conversation knows it.

    What begins with an underscore is for the rooms of this package, not for applications.
    """

    trained_context_length: int

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def context_length(self) -> int: ...

    @property
    def chat_template(self) -> str | None: ...

    def _answer(self, exchange: Exchange) -> Answer: ...

    def _prepare(
        self, make_tokens: Callable[[CancelCheck], list[int]], *, owner: object
    ) -> None: ...
