"""Steps of the loop → pieces of an answer, and the reply they add up to."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol

from localspec.errors import EngineError, Interrupted
from localspec.sampling.logprobs import TokenLogprobs, token_logprobs
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.metrics import Meter, Provenance, Stats, Step
from localspec.speculative.rule_name import RuleName
from localspec.streaming.answer_text import AnswerText, Pieces, Said
from localspec.streaming.cancellation import Cancellation
from localspec.streaming.options import AnswerOptions
from localspec.streaming.stops import checked_stop_strings
from localspec.streaming.thinking import Part, Thoughts
from localspec.tools.calls import CallPiece, Calls
from localspec.tools.tool import ToolCall

_ALREADY_RUNS = ("generator already executing",)
_NOTICE_S = 0.005  # between two looks at whether a thread has noticed

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to an answer.

    text is whatever became certain with this token: it is empty while a character is
    incomplete or a stop string is possible, and then comes with a later token. The last
    piece may bring such text without a token of its own. logprobs: the token's, if asked for.
    is_thought: in a chat, whether the model thought it rather than said it. The marks between
    the two are in no text. A token that ends the one and begins the other gives two pieces,
    the second without a token. call: more of a call of a tool, in a piece without text.
    """

    text: str
    token_ids: tuple[int, ...]
    provenance: Provenance
    logprobs: TokenLogprobs | None = None
    is_thought: bool = False
    call: CallPiece | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer.

    text: what was said, without half a character where it was cut. thoughts: what the model
    thought, in a chat. token_ids include the end token, if the model ended the answer itself.
    finish_reason: "stop" (end token or stop string), "length" (max_tokens or the context),
    "cancelled". seed: the one that was given, or None. rule: the one that accepted draft
    tokens. logprobs: one for each of token_ids, or None if they were not asked for.
    tool_calls: those that the model asks for, whole. not_kept: what of the JSON schema that was
    given the answer was not kept to, by keyword, as ("format path", "uniqueItems").

    Of an answer that is gone on with it has what is new, but all of the answer's tool_calls.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    seed: int | None
    rule: RuleName
    logprobs: tuple[TokenLogprobs, ...] | None = None
    thoughts: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    not_kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """What an answer is to the conversation that it belongs to, if it does.

    turn: makes the random numbers of each answer in a conversation its own. owner: the
    conversation, whose text is kept while others are answered. begin: called when the first
    piece is asked for, and may refuse. remember: called with the reply, also when the stream
    was closed early, and all that the answer says, with what was said of it before; None where
    a process was lost with that.
    """

    turn: int = 0
    owner: object | None = None
    begin: Callable[[], None] = lambda: None
    remember: Callable[[Reply, Said | None], None] = lambda _reply, _said: None


@dataclass(slots=True)
class AnswerRun:
    """Everything one answer needs while it is produced, apart from the iterator itself.

    The two are kept apart so that dropping an unfinished `Stream` frees it at once, which
    ends its generator, which releases the engine. interrupt: ends what the models do for this
    answer, and no other, within one decode; from any thread.
    """

    decoder: SpeculativeDecoder
    prompt_tokens: list[int]
    thoughts: Thoughts
    request: Request
    vocabulary: Pieces
    options: AnswerOptions
    interrupt: Callable[[], None]
    num_said: int  # tokens at the end of the prompt that are the answer's own
    calls: Calls | None
    not_kept: tuple[str, ...]  # of what the answer was to fit
    before: list[Part] = field(default_factory=list)  # what was certain where it goes on
    parts: list[Part] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason = "cancelled"
    result: tuple[Reply, Said] | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)

    def pieces(self) -> Generator[Piece, None, None]:
        """The answer, token by token. Whatever ends it, caches and reply are left right."""
        started = self.decoder.clock()
        cached = self.decoder.start(self.prompt_tokens)
        meter = Meter(len(self.prompt_tokens), cached, started)
        text = self._text()
        try:
            with self.cancellation.obeyed(self.interrupt):
                yield from self._decode(meter, text)
        finally:
            try:
                # A closed stream or a stop string leaves the rest of a step behind.
                self.decoder.truncate(len(self.prompt_tokens) + len(self.token_ids))
                self._finish(text)
                self._conclude(self._stats(meter))
            finally:
                if self.result is None:  # a signal handler raised: what was said stays
                    self.abandon()

    def _text(self) -> AnswerText:
        """Behind what was said already, if anything."""
        stop = checked_stop_strings(self.options.stop)
        text = AnswerText(self.vocabulary, self.thoughts, stop, self.calls)
        num_prompt = len(self.prompt_tokens) - self.num_said
        self.before = text.resume(self.prompt_tokens[num_prompt:])
        return text

    def _decode(self, meter: Meter, text: AnswerText) -> Generator[Piece, None, None]:
        provenance = Provenance.PLAIN
        try:
            for step in self.decoder.steps(self.request):
                meter.add(step, self.decoder.clock())
                for index, (token, provenance) in enumerate(
                    zip(step.tokens, step.provenance, strict=True)
                ):
                    meter.deliver(provenance)
                    self.token_ids.append(token)
                    logprobs = self._logprobs(step, index)
                    parts = self._new(text.push(token))
                    # Before it is handed on, behind which the stream may be closed.
                    if text.stopped or self.request.is_end(token):
                        self.finish_reason = "stop"
                    first, *more = parts or [Part("", text.is_thinking)]
                    yield _piece(first, provenance, (token,), logprobs)
                    for part in more:
                        yield _piece(part, provenance)
                    if text.stopped:
                        yield from self._tail(text, provenance)
                        return
            if self.finish_reason != "stop":
                self.finish_reason = "length"
        except Interrupted:
            pass
        yield from self._tail(text, provenance)

    def _tail(self, text: AnswerText, provenance: Provenance) -> Generator[Piece, None, None]:
        for part in self._finish(text):
            yield _piece(part, provenance)

    def _finish(self, text: AnswerText) -> list[Part]:
        """What waited for tokens that do not come."""
        return self._new(text.finish(is_cut=self.finish_reason != "stop"))

    def _new(self, parts: list[Part]) -> list[Part]:
        """Those of the answer's next parts that were not shown before."""
        self.parts += parts
        return [part for part in parts if not part.is_again]

    def _logprobs(self, step: Step, index: int) -> TokenLogprobs | None:
        if self.options.logprobs is None:
            return None
        logits, distribution = step.logits[index], step.distributions[index]
        found = token_logprobs(
            step.tokens[index],
            logits,
            distribution,
            self.options.logprobs,
            lambda token: self.vocabulary.detokenize([token], special=True),
        )
        self.logprobs.append(found)
        return found

    def _stats(self, meter: Meter) -> Stats:
        decoder = self.decoder
        estimate = decoder.draft_policy.estimate()
        return meter.stats(decoder.clock(), estimate, decoder.thread_policy.use())

    def _conclude(self, stats: Stats) -> None:
        new = Said.of([part for part in self.parts if not part.is_again])
        said = Said.of([*self.before, *self.parts]) if self.num_said else new
        reply = Reply(
            text=new.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            stats=stats,
            seed=self.options.seed,
            rule=self.request.rule.name,
            logprobs=None if self.options.logprobs is None else tuple(self.logprobs),
            thoughts=new.thoughts,
            tool_calls=said.tool_calls,
            not_kept=self.not_kept,
        )
        self.result = (reply, said)

    def cut(self, num_tokens: int) -> tuple[Reply, Said] | None:
        """What came of it, as if no more than so many tokens had been produced."""
        if self.result is not None and num_tokens < len(self.token_ids):
            del self.token_ids[num_tokens:], self.logprobs[num_tokens:]
            self.finish_reason = "cancelled"
            text = self._text()
            self.parts = [part for token in self.token_ids for part in text.push(token)]
            self._finish(text)
            self._conclude(self.result[0].stats)
        return self.result

    def abandon(self) -> None:
        """See `Produced.abandon`."""
        self._conclude(Meter(len(self.prompt_tokens), 0, 0.0).stats(0.0, None, None))

    def final_reply(self) -> Reply:
        """The reply. Raises EngineError while there is none."""
        if self.result is None:
            raise EngineError(
                "the answer has not been produced yet", "Iterate over the stream, or close it."
            )
        return self.result[0]


def _piece(
    part: Part,
    provenance: Provenance,
    token_ids: tuple[int, ...] = (),
    logprobs: TokenLogprobs | None = None,
) -> Piece:
    """A part as it is handed on; the first that came of a token has that."""
    return Piece(part.text, token_ids, provenance, logprobs, part.is_thought, part.call)


class Produced(Protocol):
    """An answer that is being made, here or in another process."""

    @property
    def cancellation(self) -> Cancellation:
        """What ends it."""

    def abandon(self) -> None:
        """It ends without having begun: an empty reply, and no trace anywhere else."""

    def final_reply(self) -> Reply:
        """The reply. Raises EngineError while there is none."""


class Stream:
    """An iterator over the pieces of an answer; afterwards `reply` holds the whole.

    Nothing happens before the first piece is asked for. `close`, or dropping the last
    reference, stops the work and leaves the caches right; so does leaving a `with` block.
    """

    def __init__(self, answer: Produced, pieces: Generator[Piece, None, None]) -> None:
        self._answer = answer
        self._pieces = pieces
        self._reader = 0  # the thread that asked for a piece last
        self._is_closing = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        self._reader = threading.get_ident()
        try:
            return next(self._pieces)
        except ValueError as error:
            if error.args != _ALREADY_RUNS:
                raise
            if not self._is_closing:
                raise _read_elsewhere() from error
        # Another thread closes it, and has the reply in a moment.
        while self._is_running():
            time.sleep(_NOTICE_S)
        raise StopIteration

    def close(self) -> None:
        """Stop here. Idempotent.

        Raises EngineError while another thread waits for a piece.
        """
        has_begun = inspect.getgeneratorstate(self._pieces) != inspect.GEN_CREATED
        self._is_closing = True
        try:
            self._pieces.close()
        except ValueError as error:
            if error.args != _ALREADY_RUNS:
                raise
            raise _read_elsewhere() from error
        finally:
            self._is_closing = False
        if not has_begun:
            self._answer.abandon()

    def cancel(self) -> None:
        """End the answer within one decode; if it has not begun, before its first token.

        From any thread, and for a signal handler. Whoever reads gets the end of the stream
        and a reply that holds what was said, its finish reason "cancelled".
        """
        self._answer.cancellation.request()

    def end(self) -> None:
        """`cancel`, wait until a thread that reads it has noticed, and `close`.

        Raises EngineError where this very thread reads it, and a signal handler came between.
        """
        self.cancel()
        while self._is_running():
            if self._reader == threading.get_ident():
                raise EngineError(
                    "the answer is being read by the thread that is to end it",
                    "It was cancelled; close the engine when the reading has returned.",
                )
            time.sleep(_NOTICE_S)
        self.close()

    def _is_running(self) -> bool:
        return inspect.getgeneratorstate(self._pieces) == inspect.GEN_RUNNING

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def reply(self) -> Reply:
        """What has been said, once the stream is exhausted or closed.

        Raises EngineError before that.
        """
        return self._answer.final_reply()


def close_behind(stream: Stream, num_tokens: int) -> tuple[Reply, Said] | None:
    """Close it; what came of it, as if no more than so many tokens had been produced."""
    stream.close()
    assert isinstance(stream._answer, AnswerRun), "an answer of another process"
    return stream._answer.cut(num_tokens)


def whole_reply(stream: Stream) -> Reply:
    """Read a stream to its end; whatever comes in the way, it is closed then."""
    with stream, stream:  # the second closes it where something comes in the way of the first
        for _ in stream:
            pass
    return stream.reply


def _read_elsewhere() -> EngineError:
    return EngineError(
        "the stream is being read by another thread", "Stop it with its cancel()."
    )
