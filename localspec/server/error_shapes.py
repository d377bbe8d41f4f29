"""Refusals as each protocol has them."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from localspec.server.refusal import RequestError
from localspec.server.writing import json_response

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_RETRY_AFTER_S = 2  # when a client should ask again that found the line full


def openai_error(error: RequestError) -> dict[str, Any]:
    """As OpenAI's protocols have it."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": error.sentence,
            "type": _OPENAI_TYPES.get(error.status, kind),
            "param": error.param,
            "code": error.code,
        }
    }


def anthropic_error(error: RequestError) -> dict[str, Any]:
    """As Anthropic's protocol has it; clients know a long prompt by its words."""
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    is_long = error.code == "context_length_exceeded"
    return {
        "type": "error",
        "error": {
            "type": _ANTHROPIC_TYPES.get(error.status, kind),
            "message": ("prompt is too long: " if is_long else "") + error.sentence,
        },
    }


def refusal_response(path: str, error: RequestError) -> Response:
    """The response to a request for that path which is not answered."""
    value = openai_error(error)
    if path.removeprefix("/v1").startswith("/messages"):
        value = anthropic_error(error)
    elif path.startswith("/api/"):
        value = {"error": error.sentence}
    headers = dict(error.headers)
    if error.status == 503:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    return json_response(value, error.status, headers)
