"""JSON and server-sent events, as they are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

EVENTS = "text/event-stream"


def json_bytes(value: Any) -> bytes:
    """A value as JSON in UTF-8. Half of a surrogate pair becomes a question mark."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response whose body is the value as JSON."""
    return Response(json_bytes(value), status, headers, media_type="application/json")


def sse_event(data: Any, name: str | None = None) -> str:
    """A server-sent event. data: a str is sent as it is, anything else as JSON."""
    text = data if isinstance(data, str) else json_bytes(data).decode()
    return f"data: {text}\n\n" if name is None else f"event: {name}\ndata: {text}\n\n"
