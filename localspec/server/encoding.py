"""JSON and server-sent events, as they are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

EVENTS = "text/event-stream"

_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Clients that read by Python's splitlines take these for ends of lines. JSON lets strings
# contain them.
_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def compact_json(value: Any) -> str:
    """The value as JSON on one line, without any character that clients split lines at."""
    text = _encoded(value)
    for end in _LINE_ENDS:
        text = text.replace(end, f"\\u{ord(end):04x}")
    return text


def sent_bytes(text: str) -> bytes:
    """The text in UTF-8. Half of a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace")


def json_response(
    value: Any,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A response whose body is the value as JSON."""
    body = sent_bytes(compact_json(value))
    return Response(
        body,
        status,
        headers,
        media_type="application/json",
    )


def sse_event(data: Any, name: str | None = None) -> str:
    """A server-sent event.

    Args:
        data: what it says; a str is sent unchanged, anything else as JSON.
        name: the event's name, if it has one.
    """
    text = data
    if not isinstance(data, str):
        text = compact_json(data)
    if name is None:
        return f"data: {text}\n\n"
    return f"event: {name}\ndata: {text}\n\n"
