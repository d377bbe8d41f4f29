"""What goes between whoever asks a question and the engine that answers it."""

from __future__ import annotations

import abc
from collections.abc import Callable

from localspec.streaming.answer_text import Said
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.prompt import Prompt
from localspec.streaming.reply import Reply


class Exchange(abc.ABC):
    """A question, and what becomes of the answer to it.

    turn: makes the random numbers of each answer in a conversation its own. owner: the
    conversation, whose text is kept while others are answered; known once the prompt is made.
    """

    turn: int = 0
    owner: object | None = None

    @abc.abstractmethod
    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        """What the model is to read; made when the answer is first read, in that thread.

        It may be refused, and raise Interrupted as soon as `is_cancelled` is true.
        """

    @abc.abstractmethod
    def begin(self) -> None:
        """Called when the answer has its turn. It may refuse."""

    @abc.abstractmethod
    def remember(self, reply: Reply, said: Said | None) -> None:
        """Called when an answer that had its turn has ended, in any way.

        said: all that the answer says, with the part of it that an earlier answer gave; None
        where that was lost with a process.
        """


class PlainExchange(Exchange):
    """One that changes nothing. make_prompt: see `Exchange.prompt`."""

    def __init__(
        self,
        make_prompt: Callable[[CancelCheck], Prompt],
        *,
        turn: int = 0,
        owner: object | None = None,
    ) -> None:
        self._make_prompt = make_prompt
        self.turn, self.owner = turn, owner

    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        return self._make_prompt(is_cancelled)

    def begin(self) -> None:
        """See `Exchange.begin`: nobody else is to know."""

    def remember(self, reply: Reply, said: Said | None) -> None:
        """See `Exchange.remember`: nobody does."""
