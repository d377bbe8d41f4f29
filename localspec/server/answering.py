"""Answers a question when its turn comes, and yields what happens as events."""

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
    prompt_source,
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

# The log shows the progress of reading if the rest of a prompt will take at least this long or,
# while the time for a token is not known yet, has at least this many tokens.
_LONG_S = 10.0
_LONG_TOKENS = 1024
_LOG_INTERVAL_S = 10.0  # between two lines in the log about the reading of a prompt


class ReadingPrompt(NamedTuple):
    """An event: more tokens of a prompt are read.

    A token counts as read when the model has decoded it, or has it in its cache.
    """

    num_read: int = 0
    """Tokens of the prompt that are read: those that were cached, and those decoded since."""

    num_tokens: int = 0
    """All tokens of the prompt."""

    num_cached: int = 0
    """Tokens of the prompt that were cached."""

    left_s: float | None = None
    """Estimated seconds until the whole prompt is read; None if that is not known yet."""

    took_s: float = 0.0
    """Seconds since reading began."""

    @property
    def field(self) -> dict[str, Any]:
        """The field that shows this event in a response, the same in every protocol."""
        left_s = self.left_s
        if left_s is not None:
            left_s = round(left_s, 1)
        progress = {
            "total": self.num_tokens,
            "cache": self.num_cached,
            "processed": self.num_read,
            "time_ms": round(1000 * self.took_s),
            "left_s": left_s,
        }
        return {"prompt_progress": progress}

    def __str__(self) -> str:
        """The progress in words, for the log."""
        text = f"read {self.num_read:,} of {self.num_tokens:,} tokens of the prompt"
        if self.left_s is None:
            return text
        if self.left_s < 90:
            return f"{text}, about {self.left_s:.0f} s left"
        return f"{text}, about {self.left_s / 60:.0f} minutes left"


class Waiting(NamedTuple):
    """An event: the client has had nothing for a while, and still has to wait."""

    position: int
    """The place in the line, from 1 on; 0 while the request is answered."""

    num_tokens: int = 0
    """Always 0: the prompt is not known yet. `ReadingPrompt` has the same field."""

    num_cached: int = 0
    """Always 0, too."""

    @property
    def field(self) -> dict[str, Any]:
        """The field that shows this event in a response, the same in every protocol."""
        return {"queue_position": self.position}


class NewPiece(NamedTuple):
    """An event: an answer has a new piece."""

    number: int
    """The index of the answer among the request's answers."""

    piece: Piece
    num_prompt_tokens: int
    """All tokens of the prompt."""

    num_cached: int
    """Tokens of the prompt that were cached."""

    @property
    def logprobs(self) -> Sequence[TokenLogprobs] | None:
        """The log-probabilities of the piece's token, in a list of one; None if it has none."""
        if self.piece.logprobs is None:
            return None
        return [self.piece.logprobs]


class Echo(NamedTuple):
    """The prompt of an answer, for a client that asked to get it before the answer."""

    number: int
    """The index of the answer among the request's answers."""

    text: str
    """The prompt's text."""

    first: str
    """The text of the prompt's first token."""

    logprobs: Sequence[TokenLogprobs] | None
    """The log-probabilities of the tokens after the first; None if they were not asked for."""


class Finished(NamedTuple):
    """An event: an answer is complete."""

    number: int
    """The index of the answer among the request's answers."""

    reply: Reply
    echo: Echo | None = None
    """The answer's prompt; None if the client did not ask for it."""


Event = Waiting | ReadingPrompt | NewPiece | Finished


logger = logging.getLogger(__name__)


class ServerTurn:
    """A request's turn to be answered, for which it waits in the server's line.

    Args:
        model: the model that answers; None for work during which no model may answer.
        client: the client whose request it is, as `AccessRules.client_of` returns it.
    """

    def __init__(self, model: ServedModel | None, client: str = "") -> None:
        self.has_come = asyncio.Event()
        """Set once the request may be answered."""

        self.place = Place(self.has_come.set, model=model, client=client)


def _num_at_once(place: Place) -> int:
    """How many answers the model of a place can give at once; 1 for a place without a model."""
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
    """A client that gets nothing for this many seconds gets `Waiting`."""

    line: Line = field(init=False)
    """The requests that are being answered, and those that wait."""

    is_stopping: bool = False
    """Whether the server is stopping: then no request may join the line."""

    answerings: set[Answering] = field(default_factory=set)
    """The questions that wait in line or are being answered."""

    tool_servers: McpServers | None = None
    """The MCP servers whose tools may be called, if there are any."""

    calls: set[asyncio.Future[Any]] = field(default_factory=set)
    """The calls of MCP servers' tools that run now."""

    no_decode_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a request that uses an engine but decodes nothing: it counts tokens, for example.
    Only one of these runs at a time, so that many of them do not slow an answer down."""

    logged: set[str] = field(default_factory=set)
    """The lines about unread fields that are logged already, see `Fields.log_unread`."""

    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.line = Line(_num_at_once, self.num_waiting)

    def join(self, model: ServedModel | None, client: str = "") -> ServerTurn:
        """Join the line. The caller has to give the turn up with `leave`.

        Args:
            model: the model that answers; None for work during which no model may answer.
            client: the client whose request it is.

        Returns:
            The turn, which may not have come yet.

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
        """A turn that has come already, for one more answer of a model.

        Returns None if the model cannot give another answer now, other requests wait, or the
        server is stopping. The caller has to give the turn up with `leave`.
        """
        turn = ServerTurn(model, client)
        if self.is_stopping or not self.line.join_if_free(turn.place):
            return None
        return turn

    async def run_call(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Run a call of an MCP server's tool, and return its result.

        The call is cancelled if the server stops, or if this coroutine is cancelled.

        Raises:
            RequestError: the server is stopping.
        """
        if self.is_stopping:
            call.close()
            raise stopping()
        task = asyncio.ensure_future(call)
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
    """The work on one question: it waits for its turn, then the model answers.

    The work begins at once, in a task of its own. Only the event loop may use it.

    Args:
        service: the server's.
        question: the question.

    Raises:
        RequestError: there is no such model, or it cannot fill in the question's gap; too many
            requests wait, or the server is stopping.
    """

    def __init__(self, service: Service, question: Question) -> None:
        self._service = service
        self.question = question
        self.model = service.models.named(question.model_name)
        """The model that answers."""

        has_gaps = any(isinstance(prompt, FimPrompt) for prompt in question.inputs)
        if has_gaps and not self.model.fim:
            raise RequestError(
                f"the model {self.model.name} has no tokens for filling in text",
                "Choose a model that has, such as Qwen2.5-Coder; or leave out the text after "
                "the gap.",
                code="unsupported_value",
                param="suffix",
            )
        turn_model: ServedModel | None = self.model
        if question.echoes and question.options.logprobs is not None:
            turn_model = None  # to score a prompt, an engine has to be idle
        self._turn = service.join(turn_model, question.client)
        self.position = service.line.position_of(self._turn.place)
        """The question's place in the line when it joined; 0 if it does not have to wait."""

        self._joined_s = time.monotonic()
        self.waited_s: float | None = None
        """Seconds from joining the line to the question's turn; None before."""

        self.first_s: float | None = None
        """Seconds from joining the line to the first piece of text; None before."""

        self._next_log_s = 0.0  # from when on the log may show the progress of reading again
        self.stats: list[Stats] = []
        """The statistics of the answers that have ended."""

        self.is_complete = False
        """Whether all answers are complete, without an error and without being stopped."""

        self.not_kept: tuple[str, ...] = ()
        """The parts of the JSON schema that the answers are not held to, once one has begun."""

        self.has_tool_words = False
        """Whether the prompt describes tools in words, once an answer has begun."""

        self._events: Outbox[Event | Echo | None] = Outbox()  # None: there are no more events
        # Set when the first piece of an answer has come, or an answer has ended without one.
        self._has_begun = asyncio.Event()
        self._work = asyncio.create_task(self._answer_in_turn())
        self._work.add_done_callback(self._end)
        service.answerings.add(self)

    @property
    def is_waiting(self) -> bool:
        """Whether the question's turn has not come yet."""
        return not self._turn.has_come.is_set()

    async def events(self) -> AsyncGenerator[list[Event | Echo], None]:
        """Yield the events, several at once if they come faster than they are read.

        If none comes for `Service.patience_s`, a `Waiting` is yielded. After the last event the
        error is raised if an answer failed, or RequestError if the server is stopping.
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
        """End the answers. `events` raises the error that the server is stopping."""
        self._work.cancel()

    async def aclose(self) -> None:
        """End the answers, and give up the turn within one decode. Idempotent."""
        self._work.cancel()
        await asyncio.wait([self._work])
        if not self._work.cancelled():
            self._work.exception()  # or asyncio logs that it was never retrieved

    async def _answer_in_turn(self) -> None:
        """Wait for the turn, load the model if need be, and have all inputs answered.

        If the model is to be kept loaded for 0 s, it is closed once no answer needs it.
        """
        await self._turn.has_come.wait()
        self.waited_s = time.monotonic() - self._joined_s
        keep_s = self.question.keep_s
        model = self.model
        models = self._service.models
        only_unloads = not self.question.inputs and keep_s == 0
        if not only_unloads:
            async with models.opened(model) as engine:
                self._service.line.admit()  # once loaded, the model may give several answers
                if keep_s is not None:
                    model.keep_s = keep_s
                await self._answer_all(engine)
        if keep_s == 0 and model.engine is not None:
            model.keep_s = 0.0
        is_alone = self._service.line.num_admitted == 1
        # Else a later request for the model closes it, or the server's check for unused models.
        if is_alone and model.keep_s == 0:
            await models.close_unused(math.inf)
        self.is_complete = True

    async def _answer_all(self, engine: IsolatedEngine) -> None:
        """Have each input answered as often as the question says. Raises what an answer raises.

        Answers begin in order. Several run at once while no other request has to wait. The
        others begin once the first has read its prompt, and can copy its caches.
        """
        question = self.question
        running: dict[asyncio.Task[None], ServerTurn] = {}
        echo: Echo | None = None
        shared_options = await self._options(engine)
        try:
            for number in range(len(question.inputs) * question.num_answers):
                index, repetition = divmod(number, question.num_answers)
                question_input = question.inputs[index]
                turn = await self._turn_for_answer(running)
                if question.echoes:
                    if repetition == 0:
                        echo = None  # the first answer to another input
                    echo = await self._echo(engine, question_input, number, echo)
                    self._events.put(echo)
                options = shared_options
                seed = options.seed
                if seed is not None:  # the answers to an input get different seeds
                    options = replace(options, seed=(seed + repetition) % (MAX_SEED + 1))
                record = ServerRecord(question_input, self, options)
                answer = engine._answer(record)
                task = asyncio.create_task(self._read_answer(number, answer, record, echo))
                running[task] = turn
                await self._has_begun.wait()  # it stays set: only the first answer is awaited
                if number == 0 and task.done():  # if it failed, the others would fail, too
                    await self._wait_for_one(running)
            while running:
                await self._wait_for_one(running)
        finally:
            for task in running:
                task.cancel()
            while running:  # until each has given up its turn
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await self._wait_for_one(running)

    async def _turn_for_answer(
        self,
        running: dict[asyncio.Task[None], ServerTurn],
    ) -> ServerTurn:
        """A turn for one more answer: the question's own, or a further one if one is free.

        If none is free, this waits until a running answer has ended, and raises its error.

        Args:
            running: the running answers, with their turns; an ended one is removed.
        """
        turn = self._turn
        while turn in running.values():
            further_turn = self._service.join_if_free(self.model, self.question.client)
            if further_turn is None:
                await self._wait_for_one(running)
            else:
                turn = further_turn
        return turn

    async def _options(self, engine: IsolatedEngine) -> AnswerOptions:
        """The options of all answers, with the biases on texts if there are any."""
        if not self.question.needs_vocabulary:
            return self.question.options
        # In a thread, since many long texts may have to be tokenized.
        return await asyncio.to_thread(self.question.options_for, engine.vocabulary)

    async def _wait_for_one(self, running: dict[asyncio.Task[None], ServerTurn]) -> None:
        """Wait until an answer has ended, remove it, and give up its turn. Raises its error.

        The question's own turn is kept for its next answer.

        Args:
            running: the running answers, with their turns.
        """
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        task = ended.pop()
        turn = running.pop(task)
        if turn is not self._turn:
            self._service.leave(turn)
        task.result()

    async def _echo(
        self,
        engine: IsolatedEngine,
        question_input: Input,
        number: int,
        last_echo: Echo | None,
    ) -> Echo:
        """The echo of an answer's prompt, with log-probabilities if the options ask for them.

        Args:
            engine: the model's engine.
            question_input: the prompt, a `RawSource`: the forms echo no other input.
            number: the index of the answer.
            last_echo: the echo of the same prompt before another answer; None before the first
                answer.
        """
        assert isinstance(question_input, RawSource)
        if last_echo is not None:
            return last_echo._replace(number=number)
        made_prompt = await asyncio.to_thread(engine._make_prompt, question_input)
        tokens = made_prompt.prompt.tokens
        detokenize = partial(engine.detokenize, special=True)
        text = question_input.prompt
        if not isinstance(text, str):
            text = str(await asyncio.to_thread(detokenize, tokens))
        first = await asyncio.to_thread(detokenize, tokens[:1])
        num_top = self.question.options.logprobs
        if num_top is None:
            return Echo(number, text, first, None)
        cancellation = Cancellation()
        watch = Watch(lambda _stage, _left_s: None, cancellation)
        measure = partial(
            engine._measure,
            prompt_logprobs,
            tokens,
            num_top,
            watch=watch,
            scales=engine._make_plan(self.question.options).scales,
        )
        work = asyncio.create_task(asyncio.to_thread(measure))
        try:
            return Echo(number, text, first, await asyncio.shield(work))
        finally:
            cancellation.request()  # without effect if the work is done
            await asyncio.gather(work, return_exceptions=True)

    async def _read_answer(
        self,
        number: int,
        answer: Answer,
        record: ServerRecord,
        echo: Echo | None,
    ) -> None:
        """Read an answer to its end, and put its pieces and the reply among the events.

        Args:
            number: the index of the answer.
            answer: the answer.
            record: the answer's record.
            echo: the answer's prompt; None if the client did not ask for it.
        """
        try:
            async with answer:
                async for piece in answer:
                    if self.first_s is None:
                        self.first_s = time.monotonic() - self._joined_s
                        self._has_begun.set()
                        if self.question.wants_progress:
                            record.report_all_read()
                    new = NewPiece(number, piece, record.num_tokens, record.num_cached)
                    self._events.put(new)
        finally:
            self._has_begun.set()
            if record.reply_if_over is not None:  # None: the answer was refused
                self.stats.append(record.reply_if_over.stats)
        reply = answer.reply()
        if reply.finish_reason == "cancelled":
            raise stopping()  # nobody reads this error if the client has left
        self._events.put(Finished(number, reply, echo))

    def on_reading(
        self,
        num_read: int,
        num_tokens: int,
        num_cached: int,
        took_s: float,
    ) -> None:
        """Put the progress of reading a prompt among the events; log it if reading takes long.

        A client that did not ask for progress gets none before tokens have been decoded.

        Args:
            num_read: tokens of the prompt that are read, including the cached ones.
            num_tokens: all tokens of the prompt.
            num_cached: tokens of the prompt that were cached.
            took_s: seconds since reading began.
        """
        num_left = num_tokens - num_read
        if self.model.token_s is None:
            left_s = None
            is_long = num_left >= _LONG_TOKENS
        else:
            left_s = self.model.token_s * num_left
            is_long = left_s >= _LONG_S
        reading = ReadingPrompt(num_read, num_tokens, num_cached, left_s, took_s)
        if is_long and time.monotonic() >= self._next_log_s:
            if left_s is not None:  # a line without an estimate does not delay the next one
                self._next_log_s = time.monotonic() + _LOG_INTERVAL_S
            logger.info("%s", reading)
        if num_read > num_cached or self.question.wants_progress:
            self._events.put(reading)

    def _end(self, _work: asyncio.Task[None]) -> None:
        """Give up the turn, count the answers, and end the events.

        The task calls this back when it is done. Its own code could not do it: a task that is
        cancelled before its first step runs none.
        """
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
    """The record of one answer of the server. It reports how far the prompt is read.

    Args:
        question_input: the input that is answered.
        answering: the work on the question, to which the progress is reported.
        options: the answer's options.
    """

    finds_its_text = True  # in the cache: clients send each conversation as a whole

    def __init__(
        self,
        question_input: Input,
        answering: Answering,
        options: AnswerOptions,
    ) -> None:
        question = answering.question
        model = answering.model
        super().__init__(options, prompt_source(question, question_input, model.fim))
        self.client = question.client
        self._answering = answering
        self._model = model
        self._started_s = 0.0  # when reading began
        self._num_reported = 0  # tokens of the prompt that were reported as read

        self.num_cached = 0
        """Tokens of the prompt that were cached."""

    @property
    def num_tokens(self) -> int:
        """All tokens of the prompt; 0 before it is made."""
        if self.facts is None:
            return 0
        return self.facts.num_tokens

    def on_reading(self, reading: Reading) -> None:
        """Report how far the prompt is read, pass on facts about it, and time its tokens."""
        if self.facts is not None:
            self._answering.not_kept = self.facts.not_kept
            self._answering.has_tool_words = self.facts.has_tool_words
        if reading.is_first:
            self.num_cached = reading.num_in_cache  # left there by earlier answers
            self._started_s = time.monotonic()
        else:
            num_decoded = reading.num_in_cache - self.num_cached
            took_s = time.monotonic() - self._started_s
            self._model.token_s = took_s / max(num_decoded, 1)  # never a division by 0
        self._report(reading.num_in_cache)

    def report_all_read(self) -> None:
        """Report that the whole prompt is read, unless that was reported already."""
        if self._num_reported < self.num_tokens:
            self._report(self.num_tokens)

    def _report(self, num_read: int) -> None:
        self._num_reported = num_read
        took_s = time.monotonic() - self._started_s
        self._answering.on_reading(num_read, self.num_tokens, self.num_cached, took_s)
