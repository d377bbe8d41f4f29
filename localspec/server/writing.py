"""Answers onto the wire: whole, or event by event, until the client is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localspec.server.answering import (
    Answering,
    Event,
    Finished,
    Result,
    Service,
    ends_within,
)
from localspec.server.question import Question
from localspec.server.refusal import RequestError, refusal_of
from localspec.server.served_models import ServedModel

EVENTS = "text/event-stream"
_MOST_OF_HEADER = 1000  # characters
WRITE_S = 60.0  # for a client to take what is written, before it counts as gone


class Form(Protocol):
    """How an answer looks in a protocol; of a stream the texts that `event` makes, or lines."""

    def whole(self, finished: Sequence[Finished]) -> Any:
        """The JSON of an answer that is not streamed."""

    def told(self, event: Event) -> str:
        """What the client reads of an event; "" if that is nothing."""

    def end(self) -> str:
        """What it reads last."""

    def failure(self, error: RequestError) -> str:
        """What it reads last where the answer ends early."""


FormMaker = Callable[[ServedModel], Form]
Refuse = Callable[[RequestError], Response]


def json_bytes(value: Any) -> bytes:
    """JSON as it is sent."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A whole answer."""
    return Response(json_bytes(value), status, headers, media_type="application/json")


def event(data: Any, name: str | None = None) -> str:
    """One event of a stream; its data is JSON, or a text as it is."""
    text = data if isinstance(data, str) else json_bytes(data).decode()
    return f"data: {text}\n\n" if name is None else f"event: {name}\ndata: {text}\n\n"


class Answer(Response):
    """The response to a question: what it is, is known when the question was answered.

    form: of the answer of a model. refuse: makes the response to what is not answered.
    content_type: of a stream.
    """

    def __init__(
        self,
        service: Service,
        question: Question,
        form: FormMaker,
        refuse: Refuse,
        content_type: str,
    ) -> None:
        self._service = service
        self._question = question
        self._form = form
        self._refuse = refuse
        self._content_type = content_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, until the client is gone."""
        await unless_gone(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            not_kept = await asyncio.to_thread(self._question.not_kept)
            answering = Answering(self._service, self._question)
        except Exception as error:
            await self._refuse(refusal_of(error))(scope, receive, send)
            return
        writer = _StreamWriter(send, _headers(answering.position, not_kept), self._content_type)
        form = self._form(answering.model)
        try:
            if self._question.streams:
                async for events in answering.events():
                    await writer.write("".join(map(form.told, events)))
                await writer.write(form.end())
            else:
                finished = [each async for each in _finished(answering)]
                response = json_response(form.whole(finished), headers=writer.headers)
                await response(scope, receive, send)
        except _ClientGoneError:
            return
        except Exception as error:
            refusal = refusal_of(error)
            if not writer.has_begun:
                await self._refuse(refusal)(scope, receive, send)
                return
            with contextlib.suppress(_ClientGoneError):
                await writer.write(form.failure(refusal))
        finally:
            await answering.aclose()
        if writer.has_begun:
            await writer.close()


class _ClientGoneError(Exception):
    """Nobody takes what is written."""


def _headers(position: int, not_kept: Sequence[str]) -> dict[str, str]:
    """Of an answer: how many are before it, and what of its schema it is not kept to."""
    headers = {"x-localspec-queue": str(position)}
    if not_kept:
        text = json.dumps(", ".join(not_kept))[1:-1]  # in ASCII
        headers["x-localspec-not-kept"] = text[:_MOST_OF_HEADER]
    return headers


class _StreamWriter:
    """Writes what a stream has; what comes before goes out with the first of it."""

    def __init__(self, send: Send, headers: Mapping[str, str], content_type: str) -> None:
        self._send = send
        self._content_type = content_type
        self.headers = headers
        self.has_begun = False

    async def write(self, text: str) -> None:
        """Raises _ClientGoneError if it is not taken."""
        if not text:
            return
        if not self.has_begun:
            self.has_begun = True
            headers = {
                "content-type": f"{self._content_type}; charset=utf-8",
                "cache-control": "no-cache",
                **self.headers,
            }
            pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": pairs})
        await self._send_body(text.encode("utf-8", "replace"), more_body=True)

    async def close(self) -> None:
        """End the response."""
        with contextlib.suppress(_ClientGoneError):
            await self._send_body(b"", more_body=False)

    async def _send_body(self, body: bytes, *, more_body: bool) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": more_body}
        try:
            if not await ends_within(self._send(message), WRITE_S):
                raise _ClientGoneError
        except OSError as error:
            raise _ClientGoneError from error


async def _finished(answering: Answering) -> AsyncGenerator[Finished, None]:
    async for events in answering.events():
        for each in events:
            if isinstance(each, Finished):
                yield each


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What comes of the work; None where the client goes away first, which cancels it."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait([task, gone])
    return None if task.cancelled() else task.result()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
