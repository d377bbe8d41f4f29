"""The errors that clients get for refused and failed requests, in the shape of a protocol."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from localspec.errors import (
    BusyError,
    ClosedError,
    ContextError,
    CrashedError,
    LocalspecError,
    OptionError,
    TemplateError,
)
from localspec.server.encoding import json_response
from localspec.server.own_server import MODELS_ENDED

logger = logging.getLogger(__name__)

# The HTTP status of each error code. The other codes, for wrong fields, have 400.
_STATUSES = {
    "invalid_api_key": 401,
    "forbidden_host": 403,
    "forbidden_origin": 403,
    "not_found": 404,
    "model_not_found": 404,
    "timeout": 408,
    "request_too_large": 413,
    "unsupported_content_encoding": 415,
    "server_error": 500,
    "overloaded": 503,
}
# The error code for each type of exception.
_CODES = (
    (ContextError, "context_length_exceeded"),
    (OptionError | TemplateError, "invalid_request"),
    (BusyError | ClosedError, "overloaded"),
)
# The type of an error in each protocol, by its status.
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
}
_ANTHROPIC_TYPES = {
    **_OPENAI_TYPES,
    413: "request_too_large",
    503: "overloaded_error",
}
_LLAMA_TYPES = {**_OPENAI_TYPES, 503: "unavailable_error"}
_LLAMA_TYPE_OF_LONG_PROMPT = "exceed_context_size_error"
_LLAMA_PATHS = ("/completion", "/infill")
# What hints say to Python programs, and what they say to clients of the server instead.
_CLIENT_WORDS = {
    "a str": "a string",
    "a dict": "an object",
    "a tuple": "a list",
    "None": "null",
    "True or False": "true or false",
    "engine.generate_raw()": "/v1/completions",
    "load the model with": "start the server with",
    "Load it again": "Ask again",
    "Install it:": "Install it where the server runs:",
}
_ARGUMENT_IN_PARENTHESES = re.compile(r" \(\w+=[^)]*\)")  # for example " (context_length=8192)"
_PENALTY_LAST_N = re.compile(r"\bpenalty_last_n")
_CLIENTS_PENALTY_LAST_N = "repeat_last_n"  # the field in which clients send it
_CLAUSE_END = re.compile(r"(?<=[.;]) ")  # the space after a period or a semicolon
_PYTHON_CODE = re.compile(r"\b\w+=\S|\w\(\)")  # a keyword argument, or a call
_RETRY_AFTER_S = 2  # the wait before a retry that a 503 asks for


class RequestError(LocalspecError):
    """The error of a refused or failed request, as the client gets it.

    Args:
        message: what is wrong.
        hint: what the client can do.
        status: the HTTP status; None for the status of the code.
        code: the name of the error for programs: OpenAI's name where it has one.
        param: the path of the wrong field; None if no field is wrong.
        headers: HTTP headers of the response.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int | None = None,
        code: str = "invalid_request",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status or _STATUSES.get(code, 400)
        self.code = code
        self.param = param
        self.headers = headers or {}

    @property
    def sentence(self) -> str:
        """The message, and the hint if there is one."""
        if self.hint:
            return f"{self}. {self.hint}"
        return str(self)


def refusal_of(error: Exception) -> RequestError:
    """The error to send to a client for an exception.

    An unexpected exception is logged, with any text of the request that it contains. The client
    only learns that the server failed.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RecursionError):
        return RequestError("the request is nested too deeply", "Send a flatter one.")
    if not isinstance(error, LocalspecError):
        logger.error("a request failed", exc_info=error)
        return RequestError("the server failed; see its log", code="server_error")
    if isinstance(error, CrashedError):
        logger.error("%s: %s", MODELS_ENDED, error)
    message = _PENALTY_LAST_N.sub(_CLIENTS_PENALTY_LAST_N, str(error))
    refusal = RequestError(message, _hint_for_clients(error.hint), code=_code_of(error))
    refusal.__cause__ = error
    return refusal


def _code_of(error: LocalspecError) -> str:
    """The error code for a type of exception; "server_error" for a type without one."""
    for error_type, code in _CODES:
        if isinstance(error, error_type):
            return code
    return "server_error"


def _hint_for_clients(hint: str) -> str:
    """A hint in a client's words, without the clauses that only a Python program could follow.

    Returns "" if no clause is left.
    """
    hint = _ARGUMENT_IN_PARENTHESES.sub("", hint)
    for words, client_words in _CLIENT_WORDS.items():
        hint = hint.replace(words, client_words)
    clauses = _CLAUSE_END.split(hint)
    client_hint = " ".join(clause for clause in clauses if not _PYTHON_CODE.search(clause))
    if client_hint.endswith(";"):  # the clause after it was left out
        return f"{client_hint[:-1]}."
    return client_hint


def stopping() -> RequestError:
    """The error for a client whose answer the server cannot complete because it is stopping."""
    return overloaded("the server is stopping")


def overloaded(message: str) -> RequestError:
    """An error after which the client may ask again later: 503."""
    return RequestError(message, "Ask again later.", code="overloaded")


def refusal_response(path: str, error: RequestError) -> Response:
    """The response to a refused request, in the shape of the protocol of its path."""
    headers = dict(error.headers)
    if error.status == 503:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    if path.removeprefix("/v1").startswith("/messages"):
        body = anthropic_error(error)
    elif path in _LLAMA_PATHS:
        body = llama_error(error)
    elif path.startswith("/api/"):
        body = {"error": error.sentence}
    else:
        body = openai_error(error)
    return json_response(body, error.status, headers)


def openai_error(error: RequestError) -> dict[str, Any]:
    """The error in the shape of OpenAI's protocols."""
    return {
        "error": {
            "message": error.sentence,
            "type": _type_of(error, _OPENAI_TYPES, "server_error"),
            "param": error.param,
            "code": error.code,
            **_prompt_sizes(error),
        }
    }


def llama_error(error: RequestError) -> dict[str, Any]:
    """The error in the shape of llama-server's own endpoints."""
    sizes = _prompt_sizes(error)
    error_type = _type_of(error, _LLAMA_TYPES, "server_error")
    if sizes:
        error_type = _LLAMA_TYPE_OF_LONG_PROMPT
    return {
        "error": {
            "code": error.status,
            "message": error.sentence,
            "type": error_type,
            **sizes,
        }
    }


def _type_of(error: RequestError, types: Mapping[int, str], server_error_type: str) -> str:
    """The type of an error in a protocol.

    Args:
        error: the error.
        types: the protocol's types by HTTP status.
        server_error_type: the type if `types` lacks the status, and it is 500 or above.
    """
    if error.status in types:
        return types[error.status]
    if error.status >= 500:
        return server_error_type
    return "invalid_request_error"


def _prompt_sizes(error: RequestError) -> dict[str, int]:
    """The number of tokens in a prompt that is too long, and the context's length.

    They are in llama-server's fields. Returns {} for any other error, or if they are not known.
    """
    cause = error.__cause__
    if not isinstance(cause, ContextError):
        return {}
    if cause.num_tokens is None or cause.context_length is None:
        return {}
    return {"n_prompt_tokens": cause.num_tokens, "n_ctx": cause.context_length}


def anthropic_error(error: RequestError) -> dict[str, Any]:
    """The error in the shape of Anthropic's protocol.

    If a prompt is too long, the message has Anthropic's words and numbers: clients search for
    them.
    """
    error_type = _type_of(error, _ANTHROPIC_TYPES, "api_error")
    message = error.sentence
    cause = error.__cause__
    if isinstance(cause, ContextError):
        if cause.num_tokens is not None:
            counts = f"{cause.num_tokens} tokens > {cause.context_length} maximum"
            message = message.replace(str(error), counts, 1)
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": error_type, "message": message}}
