"""Answers a POST request, from its body to the last byte: whole, or event by event."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localspec.server.answering import Answering, Finished, Service, Waiting
from localspec.server.encoding import json_response, sent_bytes
from localspec.server.event_loop import in_thread, unless_gone
from localspec.server.fields import read_fields
from localspec.server.form import Aside, Form, RequestReader
from localspec.server.guard import CLIENT, BodyReader
from localspec.server.refusal import refusal_of, refusal_response
from localspec.server.request_log import ANSWERING

_MOST_OF_HEADER = 1000  # characters
WRITE_S = 60.0  # for a client to take what is written, before it counts as gone


class PostEndpoint:
    """Answers the requests of one kind. Not a function, so that Starlette calls it as ASGI."""

    def __init__(self, service: Service, bodies: BodyReader, kind: RequestReader) -> None:
        self._service = service
        self._bodies = bodies
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._bodies.read(receive)
            # In a thread, since a request can be long.
            asked = await in_thread(partial(self._read, scope["path"], body))
            if isinstance(asked, Form):
                work = self._answer(asked, scope, send)
            else:
                work = self._result(asked)
            response = await unless_gone(receive, work)
        except Exception as error:
            response = refusal_response(scope["path"], refusal_of(error))
        if response is not None:
            await response(scope, receive, send)

    def _read(self, path: str, body: bytes) -> Form | Aside:
        fields = read_fields(body)
        asked = self._kind(fields)
        fields.log_unread(path, self._service.logged)
        return asked

    async def _result(self, aside: Aside) -> Response:
        return json_response(await aside(self._service))

    async def _answer(self, form: Form, scope: Scope, send: Send) -> Response | None:
        """The response to a question; None if it was streamed, even if that failed midway."""
        form.question.client = scope[CLIENT]
        answering = scope[ANSWERING] = Answering(self._service, form.question)
        form.begin(answering.model)
        headers = _headers(answering.position, form.question.not_kept)
        writer = _StreamWriter(send, headers, form.content_type)
        finished: list[Finished] = []
        try:
            async for events in answering.events():
                finished += [each for each in events if isinstance(each, Finished)]
                finished.sort(key=lambda each: each.number)
                if form.question.streams:
                    text = "".join(map(form.text_for, events))
                    silent_s = time.monotonic() - writer.written_s
                    if not text and silent_s > self._service.patience_s:
                        text = form.text_for(Waiting(0))  # what happens is not shown yet
                    await writer.write(text)
            if not form.question.streams:
                return json_response(form.body(finished), headers=headers)
            await writer.write(form.end(finished))
        except ClientDisconnect:
            return None
        except Exception as error:
            if not writer.has_begun:
                raise
            with contextlib.suppress(ClientDisconnect):
                await writer.write(form.failure(refusal_of(error)))
        finally:
            await answering.aclose()
        with contextlib.suppress(ClientDisconnect):
            await writer.write("", is_last=True)
        return None


def _headers(position: int, not_kept: Sequence[str]) -> dict[str, str]:
    """The headers of an answer: its position in line, and parts of its schema not kept to."""
    headers = {"x-localspec-queue": str(position)}
    if not_kept:
        text = json.dumps(", ".join(not_kept))[1:-1]  # in ASCII
        headers["x-localspec-not-kept"] = text[:_MOST_OF_HEADER]
    return headers


class _StreamWriter:
    """Writes a stream. Status and headers are sent with its first text."""

    def __init__(self, send: Send, headers: Mapping[str, str], content_type: str) -> None:
        self._send = send
        self._headers = {
            "content-type": f"{content_type}; charset=utf-8",
            "cache-control": "no-cache",
            **headers,
        }
        self.has_begun = False
        self.written_s = time.monotonic()  # when something was last, or the start

    async def write(self, text: str, *, is_last: bool = False) -> None:
        """Write more, or end the response. Raises ClientDisconnect if it is not taken."""
        if not text and not is_last:
            return
        if not self.has_begun:
            self.has_begun = True
            pairs = [(name.encode(), value.encode()) for name, value in self._headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": pairs})
        body = {"body": sent_bytes(text), "more_body": not is_last}
        try:
            with anyio.fail_after(WRITE_S):
                await self._send({"type": "http.response.body", **body})
        except OSError as error:  # TimeoutError is one
            raise ClientDisconnect from error
        self.written_s = time.monotonic()
