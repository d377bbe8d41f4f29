"""A question on its way to the engine that answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.errors import EngineError
from localspec.sampling.params import SamplingParams
from localspec.speculative.metrics import Meter
from localspec.speculative.policy_api import RuleName
from localspec.streaming.answer_run import AnswerRun
from localspec.streaming.answer_text import Prompt, Said
from localspec.streaming.cancellation import CancelCheck, Cancellation
from localspec.streaming.options import AnswerOptions
from localspec.streaming.reply import Piece, Reply
from localspec.streaming.thinking import Part
from localspec.streaming.waiting import Outbox

MOST_AHEAD = 32  # pieces that an answer is ahead of its reader
READ_ON = 16  # pieces, after which another process is told how many were read

# What a reader gets of an answer: pieces; calls to make in its own thread; what ended it,
# StopIteration if it ended by itself; at last the pieces that are left, of text that waited.
ForReader = Piece | Callable[[], None] | BaseException | list[Piece]


class Exchange:
    """A question, and what becomes of the answer to it.

    options: of the answer. make_prompt: see `prompt`, which a subclass may have itself. turn:
    makes the random numbers of each answer in a conversation its own. owner: the conversation,
    whose text is kept while others are answered, and which has one answer at a time; of a text
    that its prompt belongs to, known once that is made.

    sampling, rule: those of the options, or the engine's. outbox: what its reader gets. run:
    what produces the answer, once it does, in this process. result: set at the end, as
    `remember` gets it. num_told, num_taken: pieces for the reader, and those that it has;
    num_read: tokens of these.
    """

    turn: int = 0
    owner: object | None = None

    sampling: SamplingParams
    rule: RuleName

    def __init__(
        self,
        options: AnswerOptions,
        make_prompt: Callable[[CancelCheck], Prompt] | None = None,
    ) -> None:
        self.options = options
        self._make_prompt = make_prompt
        self.cancellation = Cancellation()
        self.outbox: Outbox[ForReader] = Outbox()
        self.is_of_main = False  # whether the main thread reads it
        self.is_asked = False  # whether it is in line, or has been
        self.is_admitted = False
        self.has_begun = False
        self.is_over = False
        self.num_told = self.num_taken = self.num_read = 0
        self.run: AnswerRun | None = None
        self.result: tuple[Reply, Said | None] | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether it is far enough ahead of its reader."""
        return self.num_told - self.num_taken >= MOST_AHEAD

    def takes(self, piece: Piece) -> bool:
        """Count a piece as read; False for one that comes behind the wish to end."""
        with self.cancellation.lock:
            if self.cancellation.is_requested:
                return False
            self.num_taken += 1
            self.num_read += len(piece.token_ids)
            return True

    def conclude(self) -> list[Piece]:
        """Set the result behind what was read; its pieces that were not."""
        rest: list[Piece] = []
        if self.run is not None:
            rest = self.run.end_behind(self.num_read, self.num_taken)
        if self.run is not None and self.run.result is not None:
            self.result = self.run.result
            self.remember(*self.result)
        elif self.cancellation.is_requested:
            self.abandon()
        return rest

    def abandon(self) -> None:
        """End it before its first token: an empty reply, and no trace anywhere else."""
        self.result = self.result_of([])

    def result_of(
        self, pieces: Sequence[Piece], prompt: Prompt | None = None
    ) -> tuple[Reply, Said | None]:
        """The result of an answer of which nothing but these pieces is left.

        As `remember` gets it: of a call that an earlier answer began, only the end may be here.
        """
        is_continued = prompt is not None and prompt.num_said > 0
        meter = Meter(0 if prompt is None else len(prompt.tokens), 0, 0.0)
        for piece in pieces:
            meter.tokens[piece.provenance] += len(piece.token_ids)
        said = Said.of([Part(each.text, each.is_thought, call=each.call) for each in pieces])
        logprobs = tuple(piece.logprobs for piece in pieces if piece.logprobs is not None)
        reply = Reply(
            text=said.text,
            token_ids=tuple(token for piece in pieces for token in piece.token_ids),
            finish_reason="cancelled",
            stats=meter.stats(0.0, None, None),
            seed=self.options.seed,
            rule=self.rule,
            logprobs=None if self.options.logprobs is None else logprobs,
            thoughts=said.thoughts,
            tool_calls=() if is_continued else said.tool_calls,
            num_thought_tokens=sum(len(each.token_ids) for each in pieces if each.is_thought),
        )
        return reply, None if is_continued else said

    def reply(self) -> Reply:
        """The reply, once it has ended. Raises EngineError where there is none."""
        if self.result is None:
            raise EngineError(
                "there is no reply: the answer was refused, or failed, before it began",
                "See the error that its first reader got, and ask again.",
            )
        return self.result[0]

    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        """The model's prompt; made when the answer is admitted, in its reader's thread.

        It may be refused, and raise Interrupted as soon as `is_cancelled` is true.
        """
        assert self._make_prompt is not None
        return self._make_prompt(is_cancelled)

    def on_cached(self, num_cached: int, num_tokens: int) -> None:
        """Called once it is known how much of the prompt is cached, before the rest is read."""

    def on_prompt(self, num_decoded: int, num_tokens: int) -> None:
        """Called after each batch of a prompt of several; raising in it ends the answer."""
        if self.options.on_prompt is not None:
            self.options.on_prompt(num_decoded, num_tokens)

    def begin(self) -> None:
        """Called when the answer is begun, in the thread that produces it. It may refuse."""

    def remember(self, reply: Reply, said: Said | None) -> None:
        """Called when an answer that was begun has ended, in any way.

        said: all that the answer says, with the part of it that an earlier answer gave; None
        where that was lost with a process.
        """
