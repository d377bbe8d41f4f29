"""Answers a POST request in its protocol, from the body to the last byte; reports its cost."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localspec.chat.template import Message
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.answering import Answering, Echo, Event, Finished, Service, Waiting
from localspec.server.compressed import decompressed
from localspec.server.encoding import EVENTS, json_response, sent_bytes, sse_event
from localspec.server.fields import Fields, read_fields
from localspec.server.guard import CLIENT, BodyReader
from localspec.server.question import Question, templated
from localspec.server.refusal import RequestError, openai_error, refusal_of, refusal_response
from localspec.server.served_models import ServedModel
from localspec.speculative.metrics import why_mostly_off
from localspec.speculative.policy_api import ProposerKind
from localspec.streaming.reply import Reply

ANSWERING = "localspec.answering"  # in the scope of a request: its `Answering`
_MOST_OF_HEADER = 1000  # characters

_Outcome = TypeVar("_Outcome")


class Form(abc.ABC):
    """A request for an answer, and the answer, in one protocol."""

    content_type: ClassVar[str] = EVENTS
    """The content type of a stream."""

    model: ServedModel
    """The model that answers, set before anything is written."""

    goes_on: bool = False
    """Whether another question follows from the answers."""

    @abc.abstractmethod
    def __init__(self, fields: Fields) -> None:
        self.question: Question

    @abc.abstractmethod
    def body(self, finished: Sequence[Finished]) -> Any:
        """The JSON of an answer that is not streamed."""

    @abc.abstractmethod
    def text_for(self, event: Event) -> str:
        """The text of an event in a stream; "" for none."""

    def echoed(self, echo: Echo) -> str:
        """The text of a prompt before its answer in a stream; "" in most protocols."""
        return ""

    def end(self, finished: Sequence[Finished]) -> str:
        """The end of a stream after its last answer; "" in some protocols."""
        return ""

    async def before(self, service: Service) -> AsyncGenerator[str, None]:
        """Do what comes before the first answer. Yields its texts in a stream."""
        return
        yield ""

    async def after(
        self,
        service: Service,
        finished: Sequence[Finished],
    ) -> AsyncGenerator[str, None]:
        """Do what comes after the answers to a question. Yields its texts in a stream.

        If another question follows, it sets `question` to that one, and `goes_on` to True.
        """
        return
        yield ""

    def failure(self, error: RequestError) -> str:
        """The end of a stream whose answer failed. Most protocols have OpenAI's shape."""
        return sse_event(openai_error(error))


# Returns the JSON for a request that needs no answer of a model. Raises RequestError, and what
# loading raises.
Handler = Callable[[Service], Awaitable[Any]]
RequestReader = Callable[[Fields], Form | Handler]


def engine_handler(fields: Fields, compute: Callable[[IsolatedEngine], Any]) -> Handler:
    """A request that `compute` answers: see `with_engine`."""
    name = fields.text("model")

    async def result(service: Service) -> Any:
        return await with_engine(service, service.models.named(name), compute)

    return result


async def with_engine(
    service: Service,
    model: ServedModel,
    compute: Callable[[IsolatedEngine], _Outcome],
) -> _Outcome:
    """The result of `compute`, which uses an engine without a decode, in a thread of its own.

    It waits in line only if the model has to be loaded.
    """
    turn = None
    if model.engine is None:
        turn = service.join(model)
    try:
        if turn is not None:
            await turn.has_come.wait()
        async with service.models.opened(model) as engine, service.asides:
            return await in_thread(partial(compute, engine))
    finally:
        if turn is not None:
            service.leave(turn)


def input_tokens_handler(
    fields: Fields,
    messages: Sequence[Message],
    tools: Mapping[str, Any],
    variables: Mapping[str, Any],
) -> Handler:
    """A request for the number of tokens in a prompt, in OpenAI's shape.

    Args:
        fields: the request.
        messages: the messages, as `checked_messages` returns them. Without any, there are 0
            tokens.
        tools: options by keyword.
        variables: the template's variables.
    """
    tokens_of = templated(messages, tools, variables)

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        num_tokens = 0
        if messages:
            num_tokens = len(tokens_of(engine))
        return {"object": "response.input_tokens", "input_tokens": num_tokens}

    return engine_handler(fields, compute)


async def in_thread(call: Callable[[], _Outcome]) -> _Outcome:
    """The result of a call that runs in a thread. If it is cancelled, it waits for the call."""
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    finally:  # it retrieves an error, too, or asyncio logs that it never was
        await asyncio.gather(work, return_exceptions=True)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _Outcome]) -> _Outcome | None:
    """The result of the work; None if the client disconnects first, which cancels the work."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task = asyncio.create_task(work)
    gone = asyncio.create_task(until_gone())
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait([task, gone])
    if task.cancelled():
        return None
    return task.result()


class PostEndpoint:
    """Answers the requests of one kind. It is a class, so that Starlette calls it as ASGI.

    Args:
        service: the server's.
        bodies: reads bodies.
        kind: makes a form or a handler of a request's fields.
        list_name: see `read_fields`.
    """

    def __init__(
        self,
        service: Service,
        bodies: BodyReader,
        kind: RequestReader,
        list_name: str | None = None,
    ) -> None:
        self._service = service
        self._bodies = bodies
        self._kind = kind
        self._list_name = list_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._bodies.read(receive)
            coding = Headers(scope=scope).get("content-encoding", "")
            # In a thread, since a request can be long.
            asked = await in_thread(partial(self._parse, scope["path"], body, coding))
            response = await unless_gone(receive, self._answer(asked, scope, send))
        except Exception as error:
            response = refusal_response(scope["path"], refusal_of(error))
        if response is not None:
            await response(scope, receive, send)

    def _parse(self, path: str, body: bytes, coding: str) -> Form | Handler:
        whole = decompressed(body, coding, self._bodies.num_bytes)
        fields = read_fields(whole, self._list_name)
        asked = self._kind(fields)
        fields.log_unread(path, self._service.logged)
        return asked

    async def _answer(self, form: Form | Handler, scope: Scope, send: Send) -> Response | None:
        """The response; None if it was streamed, even if that failed midway."""
        if not isinstance(form, Form):
            return json_response(await form(self._service))
        form.model = self._service.models.named(form.question.model_name)
        headers: dict[str, str] = {}
        writer = _StreamWriter(send, headers, form.content_type)
        finished: list[Finished] = []
        try:
            await self._write_all(form, form.before(self._service), writer)
            goes_on = True
            while goes_on:
                form.question.client = scope[CLIENT]
                answers = await self._answers(form, scope, headers, writer)
                finished += answers
                form.goes_on = False
                await self._write_all(form, form.after(self._service, answers), writer)
                goes_on = form.goes_on
            if not form.question.streams:
                return json_response(form.body(finished), headers=headers)
            last = form.end(finished)
        except Exception as error:
            if not writer.has_begun:
                raise
            last = form.failure(refusal_of(error))
        await writer.write(last, is_last=True)
        return None

    async def _answers(
        self,
        form: Form,
        scope: Scope,
        headers: dict[str, str],
        writer: _StreamWriter,
    ) -> list[Finished]:
        """The answers to the form's question, written as they come if it is streamed."""
        finished: list[Finished] = []
        answering = Answering(self._service, form.question)
        scope[ANSWERING] = answering
        headers["x-localspec-queue"] = str(answering.position)
        try:
            async for events in answering.events():
                for event in events:
                    if isinstance(event, Finished):
                        finished.append(event)
                finished.sort(key=_number)
                if form.question.streams:
                    text = _text_of(form, events)
                    silent_s = time.monotonic() - writer.written_s
                    if not text and silent_s > self._service.patience_s:
                        text = form.text_for(Waiting(0))  # there is progress without a text yet
                    headers.update(_notes(answering))
                    await writer.write(text)
            headers.update(_notes(answering))
        finally:
            await answering.aclose()
        return finished

    async def _write_all(
        self,
        form: Form,
        texts: AsyncGenerator[str, None],
        writer: _StreamWriter,
    ) -> None:
        """Run `before` or `after` of a form, and write its texts if the answer is streamed."""
        async with contextlib.aclosing(texts):
            async for text in texts:
                if form.question.streams:
                    await writer.write(text)


def _number(finished: Finished) -> int:
    return finished.number


def _text_of(form: Form, events: Sequence[Event | Echo]) -> str:
    """The text of events in a stream."""
    texts = []
    for event in events:
        if isinstance(event, Echo):
            texts.append(form.echoed(event))
        else:
            texts.append(form.text_for(event))
    return "".join(texts)


def _notes(answering: Answering) -> dict[str, str]:
    """The headers that say what is special about an answer, in ASCII.

    They name the parts of a JSON schema that the answer is not held to, and say whether tools
    are in words. A stream that has begun with `Waiting` goes without them.
    """
    headers: dict[str, str] = {}
    if answering.not_kept:
        text = json.dumps(", ".join(answering.not_kept))[1:-1]
        headers["x-localspec-not-kept"] = text[:_MOST_OF_HEADER]
    if answering.has_tool_words:
        headers["x-localspec-tools"] = "in words"
    return headers


class _StreamWriter:
    """Writes a stream. Status and headers are sent with its first text.

    Args:
        send: sends a message to the client.
        headers: the response's headers, which may change until the first text.
        content_type: the stream's type.
    """

    def __init__(self, send: Send, headers: Mapping[str, str], content_type: str) -> None:
        self._send = send
        self._headers = headers
        self._content_type = f"{content_type}; charset=utf-8"
        self.has_begun = False
        self.written_s = time.monotonic()
        """When something was last written; before that, when it was made."""

    async def write(self, text: str, *, is_last: bool = False) -> None:
        """Write more, or end the response. It waits until the client takes the text."""
        if not text and not is_last:
            return
        if not self.has_begun:
            self.has_begun = True
            headers = {
                "content-type": self._content_type,
                "cache-control": "no-cache",
                "x-accel-buffering": "no",  # nginx would collect the pieces
                **self._headers,
            }
            start = {"type": "http.response.start", "status": 200}
            await self._send({**start, "headers": Headers(headers).raw})
        body = {"body": sent_bytes(text), "more_body": not is_last}
        await self._send({"type": "http.response.body", **body})
        self.written_s = time.monotonic()


def usage_of(finished: Sequence[Finished], question: Question) -> dict[str, Any]:
    """The tokens of all answers in OpenAI's fields; a prompt counts once for its answers."""
    all_stats = [answer.reply.stats for answer in finished]
    firsts = all_stats[:: question.num_answers]
    num_read = sum(stats.prompt_tokens for stats in firsts)
    num_cached = sum(stats.cached_prompt_tokens for stats in firsts)
    num_said = sum(stats.completion_tokens for stats in all_stats)
    num_thought = sum(answer.reply.num_thought_tokens for answer in finished)
    num_accepted = 0
    num_rejected = 0
    if question.options.prediction is not None:
        for stats in all_stats:
            accepted = stats.accepted_per_proposer.get(ProposerKind.LOOKUP, 0)
            num_accepted += accepted
            num_rejected += stats.drafted_per_proposer.get(ProposerKind.LOOKUP, 0) - accepted
    return {
        "prompt_tokens": num_read,
        "completion_tokens": num_said,
        "total_tokens": num_read + num_said,
        "prompt_tokens_details": {
            "cached_tokens": num_cached,
            "cache_write_tokens": num_read - num_cached,  # all that is read stays in a cache
        },
        "completion_tokens_details": {
            "reasoning_tokens": num_thought,
            "accepted_prediction_tokens": num_accepted,
            "rejected_prediction_tokens": num_rejected,
        },
    }


def own_fields(reply: Reply) -> dict[str, Any]:
    """Fields that no protocol has: timings, and the parts of a schema that were not kept to.

    Timings are llama-server's, with draft_off: why most steps had no draft, or None.
    """
    stats = reply.stats
    num_read = stats.prompt_tokens - stats.cached_prompt_tokens
    prompt_s = stats.time_to_first_token_s
    decode_s = stats.decode_time_s
    timings = {
        "cache_n": stats.cached_prompt_tokens,
        "prompt_n": num_read,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_token_ms": _ratio(1000 * prompt_s, num_read),
        "prompt_per_second": _ratio(num_read, prompt_s),
        "predicted_n": stats.completion_tokens,
        "predicted_ms": 1000 * decode_s,
        "predicted_per_token_ms": _ratio(1000 * decode_s, stats.decoded_tokens),
        "predicted_per_second": _ratio(stats.decoded_tokens, decode_s),
        "draft_n": stats.num_draft_tokens,
        "draft_n_accepted": stats.num_accepted,
        "draft_off": why_mostly_off(stats),
    }
    fields: dict[str, Any] = {"timings": timings}
    if reply.not_kept:
        fields["not_kept"] = list(reply.not_kept)
    return fields


def _ratio(amount: float, by: float) -> float:
    if by:
        return amount / by
    return 0.0
