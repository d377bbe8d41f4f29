"""Answers onto the wire: whole, or event by event, until the client is gone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence

from starlette.types import Receive, Scope, Send

from localspec.server.answering import Answering, Finished, Service
from localspec.server.encoding import json_response
from localspec.server.event_loop import ends_within
from localspec.server.form import Form
from localspec.server.refusal import refusal_of, refusal_response

_MOST_OF_HEADER = 1000  # characters
WRITE_S = 60.0  # for a client to take what is written, before it counts as gone


async def write_form(
    service: Service, form: Form, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer the request of the form. An error is written, too, and not raised."""
    try:
        answering = Answering(service, form.question)
    except Exception as error:
        await refusal_response(scope["path"], refusal_of(error))(scope, receive, send)
        return
    form.begin(answering.model)
    headers = _headers(answering.position, form.question.not_kept)
    writer = _StreamWriter(send, headers, form.content_type)
    try:
        if form.question.streams:
            async for events in answering.events():
                await writer.write("".join(map(form.text_for, events)))
            await writer.write(form.end())
        else:
            finished = [each async for each in _finished(answering)]
            await json_response(form.body(finished), headers=headers)(scope, receive, send)
    except _ClientGoneError:
        return
    except Exception as error:
        refusal = refusal_of(error)
        if not writer.has_begun:
            await refusal_response(scope["path"], refusal)(scope, receive, send)
            return
        with contextlib.suppress(_ClientGoneError):
            await writer.write(form.failure(refusal))
    finally:
        await answering.aclose()
    if writer.has_begun:
        await writer.close()


class _ClientGoneError(Exception):
    """The client does not take what is written."""


def _headers(position: int, not_kept: Sequence[str]) -> dict[str, str]:
    """An answer's headers: how many are before it, and what of its schema is not enforced."""
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

    async def write(self, text: str) -> None:
        """Raises _ClientGoneError if it is not taken."""
        if not text:
            return
        if not self.has_begun:
            self.has_begun = True
            pairs = [(name.encode(), value.encode()) for name, value in self._headers.items()]
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
