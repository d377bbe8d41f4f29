"""JSON and server-sent events, as they are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

EVENTS = "text/event-stream"  # the content type of a stream of server-sent events

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# JSON strings may contain these characters, but clients that split the text by Python's
# splitlines take them for ends of lines.
_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def compact_json(value: Any) -> str:
    """A value as JSON without spaces, and without any character that could end a line."""
    text = _encode(value)
    for end in _LINE_ENDS:
        text = text.replace(end, f"\\u{ord(end):04x}")
    return text


def sent_bytes(text: str) -> bytes:
    """A text in UTF-8. Half of a surrogate pair, which UTF-8 cannot have, becomes a "?"."""
    return text.encode("utf-8", "replace")


def json_response(
    value: Any,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A response whose body is a value as JSON.

    Args:
        value: the value.
        status: the HTTP status.
        headers: further HTTP headers.
    """
    body = sent_bytes(compact_json(value))
    return Response(
        body,
        status,
        headers,
        media_type="application/json",
    )


def sse_event(data: Any, name: str | None = None) -> str:
    """The text of a server-sent event.

    Args:
        data: the event's data: a line of text, or a value to be sent as JSON.
        name: the event's name; None if it has none.
    """
    text = data
    if not isinstance(data, str):
        text = compact_json(data)
    if name is None:
        return f"data: {text}\n\n"
    return f"event: {name}\ndata: {text}\n\n"
