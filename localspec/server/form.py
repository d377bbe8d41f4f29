"""Answers POST requests: reads the body, has the model answer, and writes the response."""

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
from localspec.errors import ToolServerError
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.answering import Answering, Echo, Event, Finished, Service, Waiting
from localspec.server.compressed import decompressed
from localspec.server.encoding import EVENTS, json_response, sent_bytes, sse_event
from localspec.server.fields import Fields, read_fields
from localspec.server.guard import CLIENT, BodyReader
from localspec.server.question import Question, prompt_maker
from localspec.server.refusal import (
    RequestError,
    openai_error,
    refusal_of,
    refusal_response,
    stopping,
)
from localspec.server.served_models import ServedModel
from localspec.speculative.metrics import why_mostly_off
from localspec.speculative.policy_api import ProposerKind
from localspec.streaming.reply import Reply

ANSWERING = "localspec.answering"  # the key in a request's scope for its `Answering`
_LONGEST_HEADER = 1000  # characters: clients refuse responses with long headers

_Outcome = TypeVar("_Outcome")


class Form(abc.ABC):
    """A request for answers in one protocol: reads the request and writes the response.

    The endpoint has `question` answered and sends what `body` returns. If the question streams,
    it sends the texts of the other methods: of `before_answers`, then of `echo_text` and
    `text_for` for the events of the answers, then of `after_answers`, and at last of `end` or
    `failure`.
    """

    content_type: ClassVar[str] = EVENTS
    """The content type of a stream."""

    model: ServedModel
    """The model that answers. The endpoint sets it before it calls any method."""

    has_next_question: bool = False
    """Whether `after_answers` has set `question` to another question, to be asked, too."""

    @abc.abstractmethod
    def __init__(self, fields: Fields) -> None:
        self.question: Question

    @abc.abstractmethod
    def body(self, finished: Sequence[Finished]) -> Any:
        """The body of a response that is not streamed, to be written as JSON.

        Args:
            finished: all answers to all questions.
        """

    @abc.abstractmethod
    def text_for(self, event: Event) -> str:
        """What a stream says of an event; "" if it says nothing."""

    def echo_text(self, echo: Echo) -> str:
        """What a stream says of a prompt before its answer; "" if the form never echoes."""
        return ""

    def end(self, finished: Sequence[Finished]) -> str:
        """The end of a stream after all answers; "" if the protocol has none."""
        return ""

    async def before_answers(self, service: Service) -> AsyncGenerator[str, None]:
        """Do what the request needs before its first question. Yields the stream's texts."""
        return
        yield ""

    async def after_answers(
        self,
        service: Service,
        finished: Sequence[Finished],
    ) -> AsyncGenerator[str, None]:
        """Do what the answers to a question ask for. Yields the stream's texts.

        If that leads to a further question, it sets `question` and `has_next_question`.

        Args:
            service: the server's.
            finished: the answers to the last question.
        """
        return
        yield ""

    def failure(self, error: RequestError) -> str:
        """The end of a stream after an error. Most protocols have the shape of OpenAI's."""
        return sse_event(openai_error(error))


# What answers a request that needs no answer of a model: returns the response's body, to be
# written as JSON. Raises LocalspecError.
Handler = Callable[[Service], Awaitable[Any]]

# Reads a request's fields. Raises RequestError, or OptionError for a wrong option or message.
RequestReader = Callable[[Fields], Form | Handler]


def engine_handler(fields: Fields, compute: Callable[[IsolatedEngine], Any]) -> Handler:
    """The handler of a request whose response `compute` makes with an engine.

    Args:
        fields: the request, whose field "model" names the model.
        compute: called in a thread, see `with_engine`. It returns the response's body.
    """
    name = fields.text("model")

    async def result(service: Service) -> Any:
        return await with_engine(service, service.models.named(name), compute)

    return result


async def with_engine(
    service: Service,
    model: ServedModel,
    compute: Callable[[IsolatedEngine], _Outcome],
) -> _Outcome:
    """The result of `compute`, which is called with a model's engine in a thread.

    The request waits in line only if the model has to be loaded.

    Args:
        service: the server's.
        model: the model whose engine is needed.
        compute: may do what needs no decode, such as tokenizing a text.
    """
    turn = None
    if model.engine is None:
        turn = service.join(model)
    try:
        if turn is not None:
            await turn.has_come.wait()
        async with service.models.opened(model) as engine, service.no_decode_lock:
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
    """The handler of a request for the number of tokens in a prompt, in OpenAI's shape.

    Args:
        fields: the request, whose field "model" names the model.
        messages: the messages, as `checked_messages` returns them. If there are none, the
            number is 0.
        tools: the options of tools by keyword, as `tool_options` returns them.
        variables: the template's variables.
    """
    make_prompt = prompt_maker(messages, tools, variables)

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        num_tokens = 0
        if messages:
            num_tokens = len(make_prompt(engine))
        return {"object": "response.input_tokens", "input_tokens": num_tokens}

    return engine_handler(fields, compute)


async def in_thread(call: Callable[[], _Outcome]) -> _Outcome:
    """The result of a call that runs in a thread.

    A thread cannot be cancelled: if this coroutine is cancelled, it first waits for the call.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    finally:  # retrieve an error, too, or asyncio logs that nobody has
        await asyncio.gather(work, return_exceptions=True)


async def while_connected(
    receive: Receive,
    work: Coroutine[Any, Any, _Outcome],
) -> _Outcome | None:
    """The result of the work; None if the client disconnects first, which cancels the work."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task = asyncio.create_task(work)
    disconnect = asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait([task, disconnect], return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.wait([task, disconnect])
    if task.cancelled():
        return None
    return task.result()


class PostEndpoint:
    """Answers the POST requests to one path.

    It is a class so that Starlette calls it as an ASGI application, which may stream.

    Args:
        service: the server's.
        bodies: receives the bodies of requests.
        read_request: makes a form or a handler from a request's fields.
        list_name: the field that the body becomes if it is a list; None if it has to be an
            object.
    """

    def __init__(
        self,
        service: Service,
        bodies: BodyReader,
        read_request: RequestReader,
        list_name: str | None = None,
    ) -> None:
        self._service = service
        self._bodies = bodies
        self._read_request = read_request
        self._list_name = list_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; any error becomes a response. An ASGI application."""
        try:
            body = await self._bodies.read(receive)
            if self._service.is_stopping:  # before MCP servers are started for it
                raise stopping()
            coding = Headers(scope=scope).get("content-encoding", "")
            parse = partial(self._parse, scope["path"], body, coding)
            request = await in_thread(parse)  # in a thread, since a body may be long
            response = await while_connected(receive, self._respond(request, scope, send))
        except Exception as error:
            reason = error
            if self._service.is_stopping and isinstance(error, ToolServerError):
                reason = stopping()  # which closed the MCP servers
            response = refusal_response(scope["path"], refusal_of(reason))
        if response is not None:
            await response(scope, receive, send)

    def _parse(self, path: str, body: bytes, coding: str) -> Form | Handler:
        """Read a request. Raises RequestError or OptionError.

        Args:
            path: the request's path.
            body: the request's body as it was sent.
            coding: the compression of the body, see `decompressed`.
        """
        json_body = decompressed(body, coding, self._bodies.num_bytes)
        fields = read_fields(json_body, self._list_name)
        request = self._read_request(fields)
        fields.log_unread(path, self._service.logged)
        return request

    async def _respond(
        self,
        request: Form | Handler,
        scope: Scope,
        send: Send,
    ) -> Response | None:
        """Answer a request.

        Returns:
            The response that the caller has to send; None if a stream was sent here. A stream
            that fails midway ends with the error.

        Raises:
            Exception: the request failed before anything was sent.
        """
        if not isinstance(request, Form):
            return json_response(await request(self._service))
        form = request
        form.model = self._service.models.named(form.question.model_name)
        headers: dict[str, str] = {}
        writer = _StreamWriter(send, headers, form.content_type)
        finished: list[Finished] = []
        try:
            await self._write_all(form, form.before_answers(self._service), writer)
            has_question = True
            while has_question:
                form.question.client = scope[CLIENT]
                answers = await self._read_answers(form, scope, headers, writer)
                finished += answers
                form.has_next_question = False
                texts = form.after_answers(self._service, answers)
                await self._write_all(form, texts, writer)
                has_question = form.has_next_question
            if not form.question.streams:
                return json_response(form.body(finished), headers=headers)
            last_text = form.end(finished)
        except Exception as error:
            if not writer.has_begun:
                raise
            last_text = form.failure(refusal_of(error))
        await writer.write(last_text, is_last=True)
        return None

    async def _read_answers(
        self,
        form: Form,
        scope: Scope,
        headers: dict[str, str],
        writer: _StreamWriter,
    ) -> list[Finished]:
        """Have the form's question answered, and write the events if it is streamed.

        Args:
            form: the form.
            scope: the request's scope, which gets the `Answering` for the log.
            headers: the response's headers, to which this adds some.
            writer: writes the stream.

        Returns:
            The answers, in the order of their numbers.
        """
        finished: list[Finished] = []
        answering = Answering(self._service, form.question)
        scope[ANSWERING] = answering
        headers["x-localspec-queue"] = str(answering.position)
        try:
            async for events in answering.events():
                for event in events:
                    if isinstance(event, Finished):
                        finished.append(event)
                if form.question.streams:
                    text = _stream_text(form, events)
                    silent_s = time.monotonic() - writer.written_s
                    if not text and silent_s > self._service.patience_s:
                        text = form.text_for(Waiting(0))  # the events have no text to send yet
                    headers.update(_note_headers(answering))
                    await writer.write(text)
            headers.update(_note_headers(answering))
        finally:
            await answering.aclose()
        finished.sort(key=_answer_number)
        return finished

    async def _write_all(
        self,
        form: Form,
        texts: AsyncGenerator[str, None],
        writer: _StreamWriter,
    ) -> None:
        """Run `before_answers` or `after_answers` of a form.

        Args:
            form: the form.
            texts: what the method returns. Its texts are written if the question streams.
            writer: writes the stream.
        """
        async with contextlib.aclosing(texts):
            async for text in texts:
                if form.question.streams:
                    await writer.write(text)


def _answer_number(finished: Finished) -> int:
    return finished.number


def _stream_text(form: Form, events: Sequence[Event | Echo]) -> str:
    """What the stream of a form says of several events; "" if it says nothing."""
    texts = []
    for event in events:
        if isinstance(event, Echo):
            texts.append(form.echo_text(event))
        else:
            texts.append(form.text_for(event))
    return "".join(texts)


def _note_headers(answering: Answering) -> dict[str, str]:
    """The headers that warn a client of what is special about its answer.

    They name the parts of a JSON schema that the answer is not held to, and say whether tools
    are described in words. A stream that has begun with `Waiting` lacks them.
    """
    headers: dict[str, str] = {}
    if answering.not_kept:
        parts = ", ".join(answering.not_kept)
        ascii_text = json.dumps(parts)[1:-1]  # without the quotes
        headers["x-localspec-not-kept"] = ascii_text[:_LONGEST_HEADER]
    if answering.has_tool_words:
        headers["x-localspec-tools"] = "in words"
    return headers


class _StreamWriter:
    """Writes a response as a stream of texts. Its headers are sent with the first text.

    Args:
        send: sends a message to the client, as in ASGI.
        headers: further headers of the response, which may change until the first text.
        content_type: the content type of the stream.
    """

    def __init__(self, send: Send, headers: Mapping[str, str], content_type: str) -> None:
        self._send = send
        self._headers = headers
        self._content_type = f"{content_type}; charset=utf-8"
        self.has_begun = False
        """Whether the headers are sent."""

        self.written_s = time.monotonic()
        """When the last text was written; before the first one, when the writer was made."""

    async def write(self, text: str, *, is_last: bool = False) -> None:
        """Write a text, and wait until the client takes it. Nothing is sent for "".

        Args:
            text: the text.
            is_last: whether the response ends with this text, which may then be "".
        """
        if not text and not is_last:
            return
        if not self.has_begun:
            self.has_begun = True
            headers = {
                "content-type": self._content_type,
                "cache-control": "no-cache",
                "x-accel-buffering": "no",  # or nginx collects many pieces before it sends any
                **self._headers,
            }
            start = {"type": "http.response.start", "status": 200}
            await self._send({**start, "headers": Headers(headers).raw})
        body = {"body": sent_bytes(text), "more_body": not is_last}
        await self._send({"type": "http.response.body", **body})
        self.written_s = time.monotonic()


def usage_of(finished: Sequence[Finished], question: Question) -> dict[str, Any]:
    """The numbers of tokens in all answers, in OpenAI's fields.

    A prompt counts once, even if it has several answers.

    Args:
        finished: all answers, in the order of their numbers.
        question: the question, for its number of answers to a prompt, and its prediction.
    """
    all_stats = [answer.reply.stats for answer in finished]
    stats_of_prompts = all_stats[:: question.num_answers]  # those of the first answer to each
    num_prompt_tokens = sum(stats.prompt_tokens for stats in stats_of_prompts)
    num_cached = sum(stats.cached_prompt_tokens for stats in stats_of_prompts)
    num_completion_tokens = sum(stats.completion_tokens for stats in all_stats)
    num_thought = sum(answer.reply.num_thought_tokens for answer in finished)
    num_accepted = 0
    num_rejected = 0
    if question.options.prediction is not None:
        for stats in all_stats:
            # A prediction is drafted from by lookup.
            drafted = stats.drafted_per_proposer.get(ProposerKind.LOOKUP, 0)
            accepted = stats.accepted_per_proposer.get(ProposerKind.LOOKUP, 0)
            num_accepted += accepted
            num_rejected += drafted - accepted
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": num_cached,
            # All tokens that are decoded stay in a cache.
            "cache_write_tokens": num_prompt_tokens - num_cached,
        },
        "completion_tokens_details": {
            "reasoning_tokens": num_thought,
            "accepted_prediction_tokens": num_accepted,
            "rejected_prediction_tokens": num_rejected,
        },
    }


def extra_fields(reply: Reply) -> dict[str, Any]:
    """The fields of a response that localspec adds to every protocol.

    "timings" has llama-server's fields and "draft_off": why most steps had no draft, or None.
    "not_kept" names the parts of a JSON schema that the answer was not held to, if any.
    """
    stats = reply.stats
    num_decoded = stats.prompt_tokens - stats.cached_prompt_tokens
    prompt_s = stats.time_to_first_token_s
    decode_s = stats.decode_time_s
    timings = {
        "cache_n": stats.cached_prompt_tokens,
        "prompt_n": num_decoded,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_token_ms": _ratio(1000 * prompt_s, num_decoded),
        "prompt_per_second": _ratio(num_decoded, prompt_s),
        "predicted_n": stats.completion_tokens,
        # The first token's time is the prompt's, so the rates count one token less.
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


def _ratio(dividend: float, divisor: float) -> float:
    """The quotient; 0.0 where the divisor is 0."""
    if divisor:
        return dividend / divisor
    return 0.0
