"""A question on its way to the engine that answers it."""

from __future__ import annotations

import abc
from collections.abc import Callable

from localspec.errors import EngineError
from localspec.sampling.params import SamplingParams
from localspec.speculative.metrics import Meter
from localspec.speculative.policy_api import RuleName
from localspec.streaming.access import LineSlot
from localspec.streaming.answer_run import AnswerRun
from localspec.streaming.answer_text import Said
from localspec.streaming.cancellation import CancelCheck, Cancellation
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from localspec.streaming.reply import Reply


class Exchange(abc.ABC):
    """A question, and what becomes of the answer to it.

    options: of the answer. turn: makes the random numbers of each answer in a conversation its
    own. owner: the conversation, whose text is kept while others are answered; known once the
    prompt is made. slot: in the line of that conversation, which its answer has to its end.

    sampling, rule: those of the options, or the engine's. run: what produces the answer, once
    it does, in this process. result: set at the end, as `remember` gets it.
    """

    turn: int = 0
    owner: object | None = None
    slot: LineSlot | None = None

    sampling: SamplingParams
    rule: RuleName

    def __init__(self, options: AnswerOptions) -> None:
        self.options = options
        self.cancellation = Cancellation()
        self.run: AnswerRun | None = None
        self.result: tuple[Reply, Said | None] | None = None

    def abandon(self) -> None:
        """End it before its first token: an empty reply, and no trace anywhere else."""
        reply = Reply(
            text="",
            token_ids=(),
            finish_reason="cancelled",
            stats=Meter(0, 0, 0.0).stats(0.0, None, None),
            seed=self.options.seed,
            rule=self.rule,
            logprobs=None if self.options.logprobs is None else (),
        )
        self.result = (reply, Said.of([]))

    def reply(self) -> Reply:
        """The reply, once it has ended. Raises EngineError where there is none."""
        if self.result is None:
            raise EngineError(
                "there is no reply: the answer was refused, or failed, before it began",
                "See the error that its first reader got, and ask again.",
            )
        return self.result[0]

    @abc.abstractmethod
    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        """The model's prompt; made when the answer is first read, in that thread.

        Other answers may come first in the conversation. It may be refused, and raise
        Interrupted as soon as `is_cancelled` is true.
        """

    def on_cached(self, num_cached: int, num_tokens: int) -> None:  # noqa: B027
        """Called once it is known how much of the prompt is cached, before the rest is read."""

    def on_prompt(self, num_decoded: int, num_tokens: int) -> None:
        """Called after each batch of a prompt of several; raising in it ends the answer."""
        if self.options.on_prompt is not None:
            self.options.on_prompt(num_decoded, num_tokens)

    def begin(self) -> None:  # noqa: B027  there may be nothing to do
        """Called when the answer has its turn. It may refuse."""

    def remember(self, reply: Reply, said: Said | None) -> None:  # noqa: B027
        """Called when an answer that had its turn has ended, in any way.

        said: all that the answer says, with the part of it that an earlier answer gave; None
        where that was lost with a process.
        """


class PlainExchange(Exchange):
    """An exchange that changes nothing. make_prompt: see `Exchange.prompt`."""

    def __init__(
        self, options: AnswerOptions, make_prompt: Callable[[CancelCheck], Prompt]
    ) -> None:
        super().__init__(options)
        self._make_prompt = make_prompt

    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        return self._make_prompt(is_cancelled)
