"""From a question to what happens until it is answered, in its turn."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from localspec.chat.messages import checked_messages
from localspec.chat.prompt import Prompt
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.line import Line
from localspec.server.question import Input, Messages, Question, RawPrompt
from localspec.server.refusal import RequestError, stopping
from localspec.server.served_models import ServedModels
from localspec.server.tool_text import messages_as_text
from localspec.streaming.async_stream import AsyncStream
from localspec.streaming.cancellation import Unwanted
from localspec.streaming.options import AnswerOptions
from localspec.streaming.stops import checked_stop_strings
from localspec.streaming.stream import Exchange, Piece, Reply, Stream
from localspec.tools.tool import ToolUse

Result = TypeVar("Result")


class Waiting(NamedTuple):
    """Nothing happened for a while. position: how many are served before, 0 in its turn."""

    position: int


class Reading(NamedTuple):
    """So many tokens of a long prompt are decoded, and so many there are."""

    num_decoded: int
    num_tokens: int


class Said(NamedTuple):
    """A piece of one of the answers, to a prompt of so many tokens."""

    number: int
    piece: Piece
    num_prompt_tokens: int


class Finished(NamedTuple):
    """One of the answers is whole.

    num_thought: of its tokens those of thoughts. stopped_by: the stop string that ended it.
    """

    number: int
    reply: Reply
    num_thought: int
    stopped_by: str | None


Event = Waiting | Reading | Said | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a server has to answer with.

    patience_s: without an event after which the client is told that it waits. answerings:
    those that are under way. asides: what takes no decode is done one by one, each between two
    decodes, so that no crowd of it holds up an answer.
    """

    models: ServedModels
    line: Line
    patience_s: float
    answerings: set[Answering] = field(default_factory=set)
    asides: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextlib.asynccontextmanager
    async def opened(self, name: str | None) -> AsyncGenerator[IsolatedEngine, None]:
        """The engine of a model, for what takes no decode and so need not wait for its turn.

        One that is not loaded is in its turn. Raises RequestError, and what loading raises.
        """
        model = self.models.named(name)
        place = None if model.engine is not None else self.line.join()
        try:
            if place is not None:
                await place.is_first.wait()
            async with self.models.opened(model) as engine, self.asides:
                yield engine
        finally:
            if place is not None:
                self.line.leave(place)


class Answering:
    """A question on its way through the line, from when it is made.

    model: that answers. position: how many were before it when it came. Raises RequestError
    if the model is not there, too many wait, or the server is stopping.
    """

    def __init__(self, service: Service, question: Question) -> None:
        self._service = service
        self._question = question
        self.model = service.models.named(question.model)
        self._place = service.line.join()
        self.position = self._place.position
        self._events: deque[Event] = deque()  # its ends are any thread's
        self._news = asyncio.Event()
        self._is_called = False  # whether the loop is about to look at them
        self._num_prompt_tokens = 0  # of the answer that is being given
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.create_task(self._answer_in_turn())
        self._work.add_done_callback(self._end)
        service.answerings.add(self)

    @property
    def is_waiting(self) -> bool:
        """Whether others have their turn before."""
        return self._place.position > 0

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """What happens, several events at once where they come faster than they are read.

        Raises what answering raises, once all that came before was read.
        """
        while True:
            if not self._events and not self._work.done():
                self._news.clear()
                timer = self._loop.call_later(self._service.patience_s, self._news.set)
                try:
                    await self._news.wait()
                finally:
                    timer.cancel()
            if self._events:
                yield [self._events.popleft() for _ in range(len(self._events))]
            elif self._work.cancelled():
                raise stopping()
            elif self._work.done():
                await self._work
                return
            else:
                yield [Waiting(self._place.position)]

    def stop(self) -> None:
        """End it where it is. Whoever reads its events is told that the server is stopping."""
        self._work.cancel()

    async def aclose(self) -> None:
        """Stop, and let the next one have its turn within one decode. Idempotent."""
        self._work.cancel()
        await asyncio.wait([self._work])
        if not self._work.cancelled():
            self._work.exception()  # or the log has it, which nobody waits for any more

    async def _answer_in_turn(self) -> None:
        await self._place.is_first.wait()
        asked, model, models = self._question, self.model, self._service.models
        if asked.inputs or asked.keep_s != 0:  # else it would be loaded to be closed
            async with models.opened(model) as engine:
                if asked.keep_s is not None:
                    model.keep_s = asked.keep_s
                asks = [(each, n) for each in asked.inputs for n in range(asked.num_answers)]
                for number, (given, again) in enumerate(asks):
                    await self._answer(engine, number, given, asked.options_of(again))
        if asked.keep_s == 0 and model.engine is not None:
            model.keep_s = 0.0
            await models.close_unused(math.inf)

    async def _answer(
        self, engine: IsolatedEngine, number: int, given: Input, options: AnswerOptions
    ) -> None:
        options = replace(options, on_prompt=self._report)
        opening = functools.partial(self._open, engine, given, options)
        num_thought = 0

        def hear(piece: Piece) -> None:
            nonlocal num_thought
            num_thought += piece.is_thought and len(piece.token_ids)
            self._tell(Said(number, piece, self._num_prompt_tokens))

        async with AsyncStream(opening) as stream:
            await stream.read_all(hear)
        if stream.reply.finish_reason == "cancelled":  # and this task is not
            raise stopping()
        stopped_by = await asyncio.to_thread(_stopped_by, engine, stream.reply, options)
        self._tell(Finished(number, stream.reply, num_thought, stopped_by))

    def _open(
        self,
        engine: IsolatedEngine,
        given: Input,
        options: AnswerOptions,
        is_unwanted: Unwanted,
    ) -> Stream:
        """The answer's stream; in a thread of its own."""
        if isinstance(given, RawPrompt):
            prompt = engine.raw_prompt(given.prompt)
        else:
            use = options.tool_use(())
            prompt = prompt_of(engine, given, use, is_unwanted, think=self._question.think)
        self._num_prompt_tokens = len(prompt.tokens)
        text = self.model.prefixes.text_for(prompt.tokens)

        def remember(reply: Reply, _said: object) -> None:
            text.tokens = [*prompt.tokens, *reply.token_ids]
            text.num_asked = len(prompt.tokens)

        stream = engine.answer(prompt, options, Exchange(owner=text, remember=remember))
        # Also if it is not read to its end: who asks again finds what was read of it.
        text.tokens, text.num_asked = prompt.tokens, len(prompt.tokens)
        return stream

    def _report(self, num_decoded: int, num_tokens: int) -> None:
        self._tell(Reading(num_decoded, num_tokens))

    def _tell(self, event: Event) -> None:
        """From any thread. Pieces that come together wake the loop once.

        Each time it would take the interpreter's lock, which asking the engine for more needs.
        """
        self._events.append(event)
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._is_called = False
        self._news.set()

    def _end(self, _work: asyncio.Task[None]) -> None:
        # Here, since a task that is cancelled before its first step runs no line of its own.
        self._service.line.leave(self._place)
        self._service.answerings.discard(self)
        self._news.set()


async def in_thread(call: Callable[[], Result]) -> Result:
    """What the call returns or raises. A cancellation comes through when the call has ended."""
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def ends_within(work: Awaitable[object], seconds: float) -> bool:
    """Whether it ends by itself in that time; else it is cancelled. Raises what it raises.

    Python's own `wait_for` swallows a cancellation, up to 3.11, that comes as the work ends.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        has_ended = task.done()
    finally:
        task.cancel()
    if has_ended:
        task.result()
    return has_ended


def prompt_of(
    engine: IsolatedEngine,
    messages: Messages,
    use: ToolUse,
    is_unwanted: Unwanted,
    *,
    think: bool,
) -> Prompt:
    """See `BaseEngine.make_prompt`. A template without a switch for thoughts has none.

    One without tools is told of none, and of calls as text. Raises RequestError if a call has
    to be made then.
    """
    if not engine.takes_tools:
        if use.must:
            raise RequestError(
                "a call has to be made, and the model's chat template has no tools, or none "
                "whose calls are understood here",
                "Choose another model, or auto; a response_format can have a call's form.",
                code="unsupported_value",
                param="tool_choice",
            )
        messages, use = messages_as_text(checked_messages(messages)), ToolUse()
    has_switch = "enable_thinking" in (engine.chat_template or "")
    thinks = think or not has_switch
    return engine.make_prompt(messages, use, is_unwanted, template=None, think=thinks)


def _stopped_by(engine: IsolatedEngine, reply: Reply, options: AnswerOptions) -> str | None:
    """Which stop string ended an answer; its tokens still hold it."""
    stop = checked_stop_strings(options.stop)
    if not stop or reply.finish_reason != "stop":
        return None
    said = engine.detokenize(reply.token_ids)
    found = [text for text in stop if text in said]
    return min(found, key=said.index, default=None)
