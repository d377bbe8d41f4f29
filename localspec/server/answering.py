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

_LONG_S = 10.0  # to read the rest of a prompt, from which the log tells how far it is
_LONG = 1024  # tokens, where it is not known how long one takes


class ReadingPrompt(NamedTuple):
    """A long prompt is being read: so many of its tokens are decoded."""

    num_decoded: int = 0
    num_tokens: int = 0
    num_cached: int = 0
    """Tokens that were there before."""

    left_s: float | None = None
    """About how long the rest takes; None where that is not known yet."""

    took_s: float = 0.0
    """How long it has taken until now."""

    @property
    def field(self) -> dict[str, Any]:
        """The field of a response that shows progress, in every protocol."""
        left_s = None if self.left_s is None else round(self.left_s, 1)
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
        is_short = self.left_s < 90
        length = f"{self.left_s:.0f} s" if is_short else f"{self.left_s / 60:.0f} minutes"
        return f"{text}, about {length} left"


class Waiting(NamedTuple):
    """Nothing happened for a while."""

    position: int
    """The place in the line, from 1 on; 0 while answered."""

    num_tokens: int = 0  # of the prompt, of which nothing is known
    num_cached: int = 0

    @property
    def field(self) -> dict[str, Any]:
        """The field of a response that shows it, in every protocol."""
        return {"queue_position": self.position}


class NewPiece(NamedTuple):
    """More of an answer; the tokens of its prompt, and how many of these were cached."""

    number: int
    piece: Piece
    num_prompt_tokens: int
    num_cached: int

    @property
    def logprobs(self) -> Sequence[TokenLogprobs] | None:
        """Log-probabilities of its tokens, as a reply has them."""
        if self.piece.logprobs is None:
            return None
        return [self.piece.logprobs]


class Echo(NamedTuple):
    """The prompt of an answer, for a client that gets it in front of that."""

    number: int
    """The answer's."""

    text: str
    first: str
    """The text of the prompt's first token."""

    logprobs: Sequence[TokenLogprobs] | None
    """The log-probabilities of the tokens after that one; None if they were not asked for."""


class Finished(NamedTuple):
    """An answer is complete."""

    number: int
    """Its index among the request's answers."""

    reply: Reply
    echo: Echo | None = None
    """Its prompt, if that is asked for."""


Event = Waiting | ReadingPrompt | NewPiece | Finished


logger = logging.getLogger(__name__)

_LOGGED_S = 10.0  # between two lines in the log about the reading of a prompt


class ServerTurn:
    """A place in the server's line.

    Args:
        model: whose answers it is for; None for work on any model, which is done alone.
        client: whose it is.
    """

    def __init__(self, model: ServedModel | None, client: str = "") -> None:
        self.has_come = asyncio.Event()
        self.place = Place(self.has_come.set, model=model, client=client)


def _num_at_once(place: Place) -> int:
    """How many answers of a place's model are given at once."""
    if isinstance(place.model, ServedModel):
        return place.model.num_at_once
    return 1


@dataclass(slots=True, kw_only=True)
class Service:
    """The parts of a server that all requests share."""

    models: ServedModels

    num_waiting: int
    """How many requests may wait in line."""

    patience_s: float
    """A client that gets nothing for this long gets `Waiting`."""

    line: Line = field(init=False)
    """Who is answered, and who waits."""

    is_stopping: bool = False
    """Whether the server stops: nobody may join the line any more."""

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
        """A turn that comes in line, to be given up with `leave`.

        Raises RequestError if too many wait, or the server is stopping.
        """
        if self.is_stopping:
            raise stopping()
        turn = ServerTurn(model, client)
        if not self.line.join(turn.place):
            raise overloaded(f"{self.num_waiting} requests are waiting already")
        return turn

    def join_if_free(self, model: ServedModel, client: str) -> ServerTurn | None:
        """A turn that has come at once; None if there is none, or others wait for it."""
        turn = ServerTurn(model, client)
        is_free = not self.is_stopping and self.line.join_if_free(turn.place)
        if is_free:
            return turn
        return None

    async def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of a call of a tool, which ends where the server stops.

        Raises RequestError if the server is stopping.
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

    model: the one that answers. position: its place among those that wait when it joined; 0
    where it does not. waited_s, first_s: from then to its turn, and to its first piece of text;
    None before. stats: of the answers that have ended. is_complete: whether all have, by
    themselves.

    Raises RequestError if there is no such model, too many requests wait, or the server is
    stopping.
    """

    def __init__(self, service: Service, question: Question) -> None:
        self._service = service
        self.question = question
        self.model = service.models.named(question.model_name)
        if not self.model.fim and any(isinstance(x, FimPrompt) for x in question.inputs):
            raise RequestError(
                f"the model {self.model.name} has no tokens for filling in text",
                "Choose a model that has, such as Qwen2.5-Coder; or leave out the text after "
                "the gap.",
                code="unsupported_value",
                param="suffix",
            )
        # Whoever reads rows of a prompt works alone.
        scores_prompt = question.echoes and question.options.logprobs is not None
        self._turn = service.join(None if scores_prompt else self.model, question.client)
        self.position = service.line.position_of(self._turn.place)
        self._joined_s = time.monotonic()
        self.waited_s: float | None = None
        self.first_s: float | None = None
        self._logs_s = 0.0  # when the next line about that may come
        self.stats: list[Stats] = []
        self.is_complete = False
        self.not_kept: tuple[str, ...] = ()  # of the JSON schema, once an answer has begun
        self.has_tool_words = False  # whether tools are in words, once an answer has begun
        self._events: Outbox[Event | Echo | None] = Outbox()  # None: all answers have ended
        self._has_begun = asyncio.Event()  # the first piece has come, or its answer has ended
        self._work = asyncio.create_task(self._answer_in_turn())
        self._work.add_done_callback(self._end)
        service.answerings.add(self)

    @property
    def is_waiting(self) -> bool:
        """Whether its turn is still to come."""
        return not self._turn.has_come.is_set()

    async def events(self) -> AsyncGenerator[list[Event | Echo], None]:
        """The events, several at once if they come faster than they are read.

        An error is raised after all events before it.
        """
        is_over = False
        while not is_over:
            with anyio.move_on_after(self._service.patience_s) as patience:
                found = [await self._events.take_async(), *self._events.take_all()]
            if patience.cancelled_caught:
                yield [Waiting(self._service.line.position_of(self._turn.place))]
                continue
            is_over = None in found
            yield [event for event in found if event is not None]
        if self._work.cancelled():
            raise stopping()
        await self._work

    def stop(self) -> None:
        """End it. Whoever reads its events gets the error that the server is stopping."""
        self._work.cancel()

    async def aclose(self) -> None:
        """End it, and give the turn to the next request within one decode. Idempotent."""
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
        if asked.inputs or asked.keep_s != 0:  # or it would be loaded only to be closed
            async with models.opened(model) as engine:
                self._service.line.admit()  # it may have been loaded now
                if asked.keep_s is not None:
                    model.keep_s = asked.keep_s
                await self._answer_all(engine)
        if asked.keep_s == 0 and model.engine is not None:
            model.keep_s = 0.0
        if model.keep_s == 0 and self._service.line.num_working == 1:  # else the last one does
            await models.close_unused(math.inf)
        self.is_complete = True

    async def _answer_all(self, engine: IsolatedEngine) -> None:
        """Give the answers in order, several at once where nobody else would have to wait.

        The first one reads the prompt; the others then begin with a copy of that.
        """
        asked = self.question
        at_work: dict[asyncio.Task[None], ServerTurn] = {}
        echo: Echo | None = None
        asks = [(each, n) for each in asked.inputs for n in range(asked.num_answers)]
        same_options = await self._options(engine)
        try:
            for number, (given, repetition) in enumerate(asks):
                turn = self._turn
                while turn in at_work.values():
                    another = self._service.join_if_free(self.model, asked.client)
                    if another is not None:
                        turn = another
                    else:
                        await self._one_ended(at_work)
                if asked.echoes:
                    echo = await self._echo(engine, given, number, echo if repetition else None)
                    self._events.put(echo)
                options = same_options
                seed = options.seed
                if seed is not None:  # each answer to an input gets another
                    options = replace(options, seed=(seed + repetition) % (MAX_SEED + 1))
                record = ServerRecord(given, self, options)
                answer = engine._answer(record)
                task = asyncio.create_task(self._read_answer(number, answer, record, echo))
                at_work[task] = turn
                await self._has_begun.wait()
                if number == 0 and task.done():  # without a word; the others would fail, too
                    await self._one_ended(at_work)
            while at_work:
                await self._one_ended(at_work)
        finally:
            for task in at_work:
                task.cancel()
            while at_work:
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await self._one_ended(at_work)

    async def _options(self, engine: IsolatedEngine) -> AnswerOptions:
        """The options of all answers."""
        if not self.question.needs_vocabulary:
            return self.question.options
        # In a thread, since texts may be long.
        return await asyncio.to_thread(self.question.options_for, engine.vocabulary)

    async def _one_ended(self, at_work: dict[asyncio.Task[None], ServerTurn]) -> None:
        """Wait until an answer has ended; raises its error."""
        ended, _ = await asyncio.wait(at_work, return_when=asyncio.FIRST_COMPLETED)
        task = ended.pop()
        turn = at_work.pop(task)
        if turn is not self._turn:
            self._service.leave(turn)
        task.result()

    async def _echo(
        self, engine: IsolatedEngine, given: Input, number: int, before: Echo | None
    ) -> Echo:
        """The prompt in front of an answer, with log-probabilities if they are asked for.

        Args:
            engine: The model's.
            given: The prompt as it came.
            number: The answer's.
            before: The same prompt in front of another answer.
        """
        assert isinstance(given, RawSource)  # others are refused
        if before is not None:
            return before._replace(number=number)
        prompt = (await asyncio.to_thread(engine._make_prompt, given)).prompt
        text_of = partial(engine.detokenize, special=True)
        text = given.prompt
        if not isinstance(text, str):
            text = str(await asyncio.to_thread(text_of, prompt.tokens))
        first = await asyncio.to_thread(text_of, prompt.tokens[:1])
        if (num_top := self.question.options.logprobs) is None:
            return Echo(number, text, first, None)
        ended = Cancellation()
        watch = Watch(lambda _stage, _left_s: None, ended)
        measure = partial(engine._measure, prompt_logprobs, prompt.tokens, num_top, watch=watch)
        work = asyncio.create_task(asyncio.to_thread(measure))
        try:
            return Echo(number, text, first, await asyncio.shield(work))
        finally:
            ended.request()  # nothing if it is over
            await asyncio.gather(work, return_exceptions=True)

    async def _read_answer(
        self, number: int, answer: Answer, record: ServerRecord, echo: Echo | None
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
            raise stopping()  # if the client is gone, nobody gets this
        self._events.put(Finished(number, reply, echo))

    def on_reading(
        self, num_decoded: int, num_tokens: int, num_cached: int, took_s: float
    ) -> None:
        """Pass on how far a prompt is read, and log it where that takes long.

        Args:
            num_decoded: Tokens of the prompt that are read.
            num_tokens: All tokens of the prompt.
            num_cached: Tokens that were there before.
            took_s: Seconds that reading has taken until now.
        """
        left = num_tokens - num_decoded
        token_s = self.model.token_s
        left_s = None if token_s is None else token_s * left
        reading = ReadingPrompt(num_decoded, num_tokens, num_cached, left_s, took_s)
        is_long = left >= _LONG if left_s is None else left_s >= _LONG_S
        if is_long and time.monotonic() >= self._logs_s:
            if left_s is not None:  # else soon again
                self._logs_s = time.monotonic() + _LOGGED_S
            logger.info("%s", reading)
        if num_decoded > num_cached or self.question.wants_progress:
            self._events.put(reading)

    def _end(self, _work: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs none of its own code.
        self._service.leave(self._turn)
        self._service.answerings.discard(self)
        for stats in self.stats:
            self._service.counters.add_answer(stats)
        for name, seconds in (("wait", self.waited_s), ("first_text", self.first_s)):
            if seconds is not None:
                self._service.counters.add(f"localspec_{name}_seconds_sum", seconds)
                self._service.counters.add(f"localspec_{name}_seconds_count")
        self._events.put(None)


class ServerRecord(AnswerRecord):
    """An answer to an input of a question.

    Args:
        given: the input.
        answering: hears how far the prompt is read.
        options: of the answer.
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
        self._num_said_read = 0  # tokens of the prompt, as the client has heard

        self.num_cached = 0
        """Tokens of the prompt that were cached."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        if self.facts is None:
            return 0
        return self.facts.num_tokens

    def on_reading(self, reading: Reading) -> None:
        """Pass on how far the prompt is read, and learn what a token takes."""
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
        """Say that the prompt is read, unless the last batch has said so."""
        if self._num_said_read < self.num_tokens:
            self._say(self.num_tokens)

    def _say(self, num_decoded: int) -> None:
        self._num_said_read = num_decoded
        took_s = time.monotonic() - self._begun_s
        self._answering.on_reading(num_decoded, self.num_tokens, self.num_cached, took_s)
