"""Answers a question when its turn comes, and passes on what happens as events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import anyio

from localspec.chat.prompt_source import RawSource
from localspec.engine.prompt_logprobs import prompt_logprobs
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.sampling.logprobs import TokenLogprobs
from localspec.server.counters import Counters
from localspec.server.question import (
    FimPrompt,
    Input,
    Question,
    source_of,
)
from localspec.server.refusal import RequestError, overloaded, stopping
from localspec.server.served_models import ServedModel, ServedModels
from localspec.speculative.metrics import Stats
from localspec.speculative.randomness import MAX_SEED
from localspec.streaming.answer import Answer
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.cancellation import Cancellation, Watch
from localspec.streaming.line import Line, Place
from localspec.streaming.outbox import Outbox
from localspec.streaming.record import AnswerRecord, Reading
from localspec.streaming.reply import Piece, Reply
from localspec.system.call_thread import Result
from localspec.tool_servers.servers import McpServers

_LONG_S = 10.0  # the log shows progress if the rest of a prompt takes at least this long
_LONG = 1024  # or has at least this many tokens, if the time for a token is not known


class ReadingPrompt(NamedTuple):
    """How much of a long prompt is read."""

    num_decoded: int = 0
    """The tokens of the prompt that are decoded, with the cached ones."""

    num_tokens: int = 0
    """All tokens of the prompt."""

    num_cached: int = 0
    """The tokens of the prompt that were cached."""

    left_s: float | None = None
    """About how many more seconds it takes; None if that is not known yet."""

    took_s: float = 0.0
    """The seconds that it has taken until now."""

    @property
    def field(self) -> dict[str, Any]:
        """The field of a response that shows progress, in every protocol."""
        left_s = self.left_s
        if left_s is not None:
            left_s = round(left_s, 1)
        progress = {
            "total": self.num_tokens,
            "cache": self.num_cached,
            "processed": self.num_decoded,
            "time_ms": round(1000 * self.took_s),
            "left_s": left_s,
        }
        return {"prompt_progress": progress}

    def __str__(self) -> str:
        text = f"read {self.num_decoded:,} of {self.num_tokens:,} tokens of the prompt"
        if self.left_s is None:
            return text
        if self.left_s < 90:
            return f"{text}, about {self.left_s:.0f} s left"
        return f"{text}, about {self.left_s / 60:.0f} minutes left"


class Waiting(NamedTuple):
    """Nothing happened for a while."""

    position: int
    """The place in the line, from 1 on; 0 while the request is answered."""

    num_tokens: int = 0
    """As for `ReadingPrompt`; nothing is known of the prompt yet."""

    num_cached: int = 0

    @property
    def field(self) -> dict[str, Any]:
        """The field of a response that shows it, in every protocol."""
        return {"queue_position": self.position}


class NewPiece(NamedTuple):
    """More of an answer."""

    number: int
    """The index of the answer among the request's answers."""

    piece: Piece
    num_prompt_tokens: int
    """All tokens of the prompt."""

    num_cached: int
    """The tokens of the prompt that were cached."""

    @property
    def logprobs(self) -> Sequence[TokenLogprobs] | None:
        """Log-probabilities of its tokens, as a reply has them."""
        if self.piece.logprobs is None:
            return None
        return [self.piece.logprobs]


class Echo(NamedTuple):
    """The prompt of an answer, for a client that gets it before the answer."""

    number: int
    """The index of the answer among the request's answers."""

    text: str
    """The prompt's text."""

    first: str
    """The text of the prompt's first token."""

    logprobs: Sequence[TokenLogprobs] | None
    """The log-probabilities of the tokens after the first; None if they were not asked for."""


class Finished(NamedTuple):
    """An answer is complete."""

    number: int
    """The index of the answer among the request's answers."""

    reply: Reply
    echo: Echo | None = None
    """Its prompt, if the prompt is asked for."""


Event = Waiting | ReadingPrompt | NewPiece | Finished


logger = logging.getLogger(__name__)

_LOGGED_S = 10.0  # between two lines in the log about the reading of a prompt


class ServerTurn:
    """A place in the server's line.

    Args:
        model: the model that answers; None for work on any model, which is done alone.
        client: the client whose request it is.
    """

    def __init__(self, model: ServedModel | None, client: str = "") -> None:
        self.has_come = asyncio.Event()
        self.place = Place(self.has_come.set, model=model, client=client)


def _num_at_once(place: Place) -> int:
    """The number of answers that a place's model gives at once."""
    if isinstance(place.model, ServedModel):
        return place.model.num_at_once
    return 1


@dataclass(slots=True, kw_only=True)
class Service:
    """The parts of a server that all requests share."""

    models: ServedModels

    num_waiting: int
    """The number of requests that may wait in line."""

    patience_s: float
    """A client that gets nothing for this long gets `Waiting`."""

    line: Line = field(init=False)
    """The requests that are answered, and those that wait."""

    is_stopping: bool = False
    """Whether the server stops: no request may join the line any more."""

    answerings: set[Answering] = field(default_factory=set)
    """Questions under way."""

    tool_servers: McpServers | None = None
    """The MCP servers whose tools may be called, if there are any."""

    calls: set[asyncio.Future[Any]] = field(default_factory=set)
    """Calls of their tools under way."""

    asides: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by requests that need no decode: many of them do not slow an answer down."""

    logged: set[str] = field(default_factory=set)
    """Fields that the log mentions already, see `Fields.log_unread`."""

    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.line = Line(_num_at_once, self.num_waiting)

    def join(self, model: ServedModel | None, client: str = "") -> ServerTurn:
        """Join the line for a turn. The caller has to give it up with `leave`.

        Raises:
            RequestError: too many requests wait, or the server is stopping.
        """
        if self.is_stopping:
            raise stopping()
        turn = ServerTurn(model, client)
        if not self.line.join(turn.place):
            raise overloaded(f"{self.num_waiting} requests are waiting already")
        return turn

    def join_if_free(self, model: ServedModel, client: str) -> ServerTurn | None:
        """A turn that comes at once; None if there is none, or other requests wait for one."""
        turn = ServerTurn(model, client)
        is_free = not self.is_stopping and self.line.join_if_free(turn.place)
        if is_free:
            return turn
        return None

    async def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of a call of a tool. The call is cancelled if the server stops.

        Raises:
            RequestError: the server is stopping.
        """
        if self.is_stopping:
            work.close()
            raise stopping()
        task = asyncio.ensure_future(work)
        self.calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.is_stopping:
                raise stopping() from None
            raise
        finally:
            self.calls.discard(task)

    def leave(self, turn: ServerTurn) -> None:
        """Give up a turn, whether it has come or not. Idempotent."""
        self.line.leave(turn.place)


class Answering:
    """A question, from joining the line to the end of its answers.

    Args:
        service: the server's.
        question: what is asked.

    Raises:
        RequestError: there is no such model, or it cannot fill in text; too many requests
            wait, or the server is stopping.
    """

    def __init__(self, service: Service, question: Question) -> None:
        self._service = service
        self.question = question
        self.model = service.models.named(question.model_name)
        """The model that answers."""

        has_gaps = any(isinstance(given, FimPrompt) for given in question.inputs)
        if has_gaps and not self.model.fim:
            raise RequestError(
                f"the model {self.model.name} has no tokens for filling in text",
                "Choose a model that has, such as Qwen2.5-Coder; or leave out the text after "
                "the gap.",
                code="unsupported_value",
                param="suffix",
            )
        scores_prompt = question.echoes and question.options.logprobs is not None
        if scores_prompt:  # it reads rows of the prompt, which is done alone
            self._turn = service.join(None, question.client)
        else:
            self._turn = service.join(self.model, question.client)
        self.position = service.line.position_of(self._turn.place)
        """Its place among the waiting requests when it joined; 0 if it need not wait."""

        self._joined_s = time.monotonic()
        self.waited_s: float | None = None
        """Seconds from joining the line to its turn; None before."""

        self.first_s: float | None = None
        """Seconds from joining the line to the first piece of text; None before."""

        self._logs_s = 0.0  # when the log may show the progress of reading again
        self.stats: list[Stats] = []
        """The statistics of the answers that have ended."""

        self.is_complete = False
        """Whether all answers have come to their own end."""

        self.not_kept: tuple[str, ...] = ()
        """The parts of the JSON schema that are not kept to, once an answer has begun."""

        self.has_tool_words = False
        """Whether tools are described in words, once an answer has begun."""

        self._events: Outbox[Event | Echo | None] = Outbox()  # None: all answers have ended
        self._has_begun = asyncio.Event()  # the first piece has come, or its answer has ended
        self._work = asyncio.create_task(self._answer_in_turn())
        self._work.add_done_callback(self._end)
        service.answerings.add(self)

    @property
    def is_waiting(self) -> bool:
        """Whether its turn has not come yet."""
        return not self._turn.has_come.is_set()

    async def events(self) -> AsyncGenerator[list[Event | Echo], None]:
        """The events, several at once if they come faster than they are read.

        An error is raised after all events before it.
        """
        is_over = False
        while not is_over:
            with anyio.move_on_after(self._service.patience_s) as patience:
                first = await self._events.take_async()
                events = [first, *self._events.take_all()]
            if patience.cancelled_caught:
                yield [Waiting(self._service.line.position_of(self._turn.place))]
                continue
            is_over = None in events
            yield [event for event in events if event is not None]
        if self._work.cancelled():
            raise stopping()
        await self._work

    def stop(self) -> None:
        """End it. The reader of its events gets the error that the server is stopping."""
        self._work.cancel()

    async def aclose(self) -> None:
        """End it, and pass the turn to the next request within one decode. Idempotent."""
        self._work.cancel()
        await asyncio.wait([self._work])
        if not self._work.cancelled():
            self._work.exception()  # or asyncio logs that it was never retrieved

    async def _answer_in_turn(self) -> None:
        await self._turn.has_come.wait()
        self.waited_s = time.monotonic() - self._joined_s
        asked = self.question
        model = self.model
        models = self._service.models
        if asked.inputs or asked.keep_s != 0:  # else it would be loaded only to be closed
            async with models.opened(model) as engine:
                self._service.line.admit()  # it may have been loaded now
                if asked.keep_s is not None:
                    model.keep_s = asked.keep_s
                await self._answer_all(engine)
        if asked.keep_s == 0 and model.engine is not None:
            model.keep_s = 0.0
        is_last = self._service.line.num_working == 1  # else a later request closes it
        if is_last and model.keep_s == 0:
            await models.close_unused(math.inf)
        self.is_complete = True

    async def _answer_all(self, engine: IsolatedEngine) -> None:
        """Begin the answers in order; several run at once while no other request has to wait.

        The first answer reads the prompt; the others then begin with a copy of its caches.
        """
        asked = self.question
        at_work: dict[asyncio.Task[None], ServerTurn] = {}
        echo: Echo | None = None  # one for all answers to an input
        same_options = await self._options(engine)
        try:
            for number in range(len(asked.inputs) * asked.num_answers):
                index, repetition = divmod(number, asked.num_answers)
                given = asked.inputs[index]
                turn = await self._free_turn(at_work)
                if asked.echoes:
                    if repetition == 0:
                        echo = None  # another input begins
                    echo = await self._echo(engine, given, number, echo)
                    self._events.put(echo)
                options = same_options
                seed = options.seed
                if seed is not None:  # the answers to an input get different seeds
                    options = replace(options, seed=(seed + repetition) % (MAX_SEED + 1))
                record = ServerRecord(given, self, options)
                answer = engine._answer(record)
                task = asyncio.create_task(self._read_answer(number, answer, record, echo))
                at_work[task] = turn
                await self._has_begun.wait()  # only the first answer is waited for
                if number == 0 and task.done():  # if it failed, the others would fail, too
                    await self._one_ended(at_work)
            while at_work:
                await self._one_ended(at_work)
        finally:
            for task in at_work:
                task.cancel()
            while at_work:
                # Each gives its turn back.
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await self._one_ended(at_work)

    async def _free_turn(self, at_work: dict[asyncio.Task[None], ServerTurn]) -> ServerTurn:
        """A turn for the next answer: our own, a free one, or that of an ended answer.

        Args:
            at_work: the answers under way, with their turns. Raises their errors.
        """
        turn = self._turn
        while turn in at_work.values():
            another = self._service.join_if_free(self.model, self.question.client)
            if another is not None:
                turn = another
            else:
                await self._one_ended(at_work)
        return turn

    async def _options(self, engine: IsolatedEngine) -> AnswerOptions:
        """The options of all answers."""
        if not self.question.needs_vocabulary:
            return self.question.options
        # In a thread, since texts may be long.
        return await asyncio.to_thread(self.question.options_for, engine.vocabulary)

    async def _one_ended(self, at_work: dict[asyncio.Task[None], ServerTurn]) -> None:
        """Wait until an answer has ended. Raises its error."""
        ended, _ = await asyncio.wait(at_work, return_when=asyncio.FIRST_COMPLETED)
        task = ended.pop()
        turn = at_work.pop(task)
        if turn is not self._turn:
            self._service.leave(turn)
        task.result()

    async def _echo(
        self,
        engine: IsolatedEngine,
        given: Input,
        number: int,
        before: Echo | None,
    ) -> Echo:
        """The prompt before an answer, with log-probabilities if they are asked for.

        Args:
            engine: the model's engine.
            given: the prompt as it came.
            number: the index of the answer.
            before: the echo of the same prompt before another answer, if there was one.
        """
        assert isinstance(given, RawSource)  # the form refuses other inputs
        if before is not None:
            return before._replace(number=number)
        made = await asyncio.to_thread(engine._make_prompt, given)
        tokens = made.prompt.tokens
        text_of = partial(engine.detokenize, special=True)
        text = given.prompt
        if not isinstance(text, str):
            text = str(await asyncio.to_thread(text_of, tokens))
        first = await asyncio.to_thread(text_of, tokens[:1])
        num_top = self.question.options.logprobs
        if num_top is None:
            return Echo(number, text, first, None)
        ended = Cancellation()
        watch = Watch(lambda _stage, _left_s: None, ended)
        measure = partial(
            engine._measure,
            prompt_logprobs,
            tokens,
            num_top,
            watch=watch,
        )
        work = asyncio.create_task(asyncio.to_thread(measure))
        try:
            return Echo(number, text, first, await asyncio.shield(work))
        finally:
            ended.request()  # without effect if it is over
            await asyncio.gather(work, return_exceptions=True)

    async def _read_answer(
        self,
        number: int,
        answer: Answer,
        record: ServerRecord,
        echo: Echo | None,
    ) -> None:
        """Read an answer."""
        try:
            async with answer:
                async for piece in answer:
                    if self.first_s is None:
                        self.first_s = time.monotonic() - self._joined_s
                        self._has_begun.set()
                        if self.question.wants_progress:
                            record.say_all_read()
                    new = NewPiece(number, piece, record.num_tokens, record.num_cached)
                    self._events.put(new)
        finally:
            self._has_begun.set()
            if record.reply_if_over is not None:  # else it was refused
                self.stats.append(record.reply_if_over.stats)
        reply = answer.reply()
        if reply.finish_reason == "cancelled":
            raise stopping()  # lost if it was cancelled because the client left
        self._events.put(Finished(number, reply, echo))

    def on_reading(
        self,
        num_decoded: int,
        num_tokens: int,
        num_cached: int,
        took_s: float,
    ) -> None:
        """Pass on how far a prompt is read, and log it if reading takes long.

        Args:
            num_decoded: tokens of the prompt that are decoded, with the cached ones.
            num_tokens: all tokens of the prompt.
            num_cached: tokens of the prompt that were cached.
            took_s: seconds that reading has taken until now.
        """
        num_left = num_tokens - num_decoded
        if self.model.token_s is None:
            left_s = None
            is_long = num_left >= _LONG
        else:
            left_s = self.model.token_s * num_left
            is_long = left_s >= _LONG_S
        reading = ReadingPrompt(num_decoded, num_tokens, num_cached, left_s, took_s)
        if is_long and time.monotonic() >= self._logs_s:
            if left_s is not None:  # else the next line comes soon, with a time
                self._logs_s = time.monotonic() + _LOGGED_S
            logger.info("%s", reading)
        if num_decoded > num_cached or self.question.wants_progress:
            self._events.put(reading)

    def _end(self, _work: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs none of its own code.
        service = self._service
        service.leave(self._turn)
        service.answerings.discard(self)
        for stats in self.stats:
            service.counters.add_answer(stats)
        if self.waited_s is not None:
            service.counters.add("localspec_wait_seconds_sum", self.waited_s)
            service.counters.add("localspec_wait_seconds_count")
        if self.first_s is not None:
            service.counters.add("localspec_first_text_seconds_sum", self.first_s)
            service.counters.add("localspec_first_text_seconds_count")
        self._events.put(None)


class ServerRecord(AnswerRecord):
    """An answer to an input of a question.

    Args:
        given: the input.
        answering: the question that has it, which gets the progress of reading.
        options: the answer's options.
    """

    finds_its_text = True

    def __init__(self, given: Input, answering: Answering, options: AnswerOptions) -> None:
        question = answering.question
        model = answering.model
        super().__init__(options, source_of(question, given, model.fim))
        self.client = question.client
        self._answering = answering
        self._model = model
        self._begun_s = 0.0
        self._num_said_read = 0  # the progress that was passed on last, in tokens

        self.num_cached = 0
        """Tokens of the prompt that were cached."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        if self.facts is None:
            return 0
        return self.facts.num_tokens

    def on_reading(self, reading: Reading) -> None:
        """Pass on how far the prompt is read, and measure the time for a token."""
        if self.facts is not None:
            self._answering.not_kept = self.facts.not_kept
            self._answering.has_tool_words = self.facts.has_tool_words
        if reading.is_first:
            self.num_cached = reading.num_decoded
            self._begun_s = time.monotonic()
        else:
            num_read = reading.num_decoded - self.num_cached
            self._model.token_s = (time.monotonic() - self._begun_s) / max(num_read, 1)
        self._say(reading.num_decoded)

    def say_all_read(self) -> None:
        """Pass on that the whole prompt is read, unless the last batch has done so."""
        if self._num_said_read < self.num_tokens:
            self._say(self.num_tokens)

    def _say(self, num_decoded: int) -> None:
        self._num_said_read = num_decoded
        took_s = time.monotonic() - self._begun_s
        self._answering.on_reading(num_decoded, self.num_tokens, self.num_cached, took_s)
