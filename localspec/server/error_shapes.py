"""Refusals as each protocol has them."""

from __future__ import annotations

import re
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
_LONG = re.compile(r"the prompt has (\d+) tokens; the context holds (\d+)")
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
    """As Anthropic's protocol has it; clients know a long prompt by its words.

    Some read the two numbers in them, to see how much has to go.
    """
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    message = error.sentence
    if error.code == "context_length_exceeded":
        message = "prompt is too long: " + _LONG.sub(r"\1 tokens > \2 maximum", message)
    return {
        "type": "error",
        "error": {"type": _ANTHROPIC_TYPES.get(error.status, kind), "message": message},
    }


def error_schema(path: str) -> dict[str, Any]:
    """The JSON schema of those for that path."""
    return _schema_of(_error_for(path, RequestError("x", param="x")))


def _schema_of(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {"type": ["string", "null"]}
    properties = {name: _schema_of(each) for name, each in value.items()}
    return {"type": "object", "properties": properties, "required": list(value)}


def _error_for(path: str, error: RequestError) -> dict[str, Any]:
    if path.removeprefix("/v1").startswith("/messages"):
        return anthropic_error(error)
    if path.startswith("/api/"):
        return {"error": error.sentence}
    return openai_error(error)


def refusal_response(path: str, error: RequestError) -> Response:
    """The response to a request for that path which is not answered."""
    headers = dict(error.headers)
    if error.status == 503:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    return json_response(_error_for(path, error), error.status, headers)
