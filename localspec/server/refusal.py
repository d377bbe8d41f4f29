"""The error that a client gets, in the words and the shape of its protocol."""

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

# The HTTP status of each error code. A code that is not listed, of a wrong field, has 400.
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
_CODES = (
    (ContextError, "context_length_exceeded"),
    (OptionError | TemplateError, "invalid_request"),
    (BusyError | ClosedError, "overloaded"),
)
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
_TYPE_IF_TOO_LONG = "exceed_context_size_error"  # of a prompt, in llama-server
_LLAMA_PATHS = ("/completion", "/infill")
# Words of Python in hints, and the words for a client of the server.
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
_PYTHON_ARGUMENT = re.compile(r" \(\w+=[^)]*\)")  # for example (context_length=…)
_OWN_FIELD = re.compile(r"\bpenalty_last_n")  # clients call it repeat_last_n
_CLAUSE_END = re.compile(r"(?<=[.;]) ")
_CODE = re.compile(r"\b\w+=\S|\w\(\)")  # an argument or a call in Python
_RETRY_AFTER_S = 2  # the wait before a retry that a 503 asks for


class RequestError(LocalspecError):
    """The error of a refused or failed request, as the client gets it.

    Args:
        message: what is wrong.
        hint: what the client can do.
        code: the code for programs, OpenAI's if it has one.
        status: the HTTP status, by default the code's.
        param: the wrong field, if any.
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
        """The message and the hint."""
        if self.hint:
            return f"{self}. {self.hint}"
        return str(self)


def refusal_of(error: Exception) -> RequestError:
    """The error to send for an exception. Unexpected exceptions are logged, not described."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RecursionError):
        return RequestError("the request is nested too deeply", "Send a flatter one.")
    if not isinstance(error, LocalspecError):
        logger.error("a request failed", exc_info=error)
        return RequestError("the server failed; see its log", code="server_error")
    if isinstance(error, CrashedError):
        logger.error("%s: %s", MODELS_ENDED, error)
    message = _OWN_FIELD.sub("repeat_last_n", str(error))
    refusal = RequestError(message, _hint_for_clients(error.hint), code=_code_of(error))
    refusal.__cause__ = error
    return refusal


def _code_of(error: LocalspecError) -> str:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return "server_error"


def _hint_for_clients(hint: str) -> str:
    """The hint in a client's words, without advice that only a Python program could follow."""
    hint = _PYTHON_ARGUMENT.sub("", hint)
    for word, client_word in _CLIENT_WORDS.items():
        hint = hint.replace(word, client_word)
    clauses = [clause for clause in _CLAUSE_END.split(hint) if not _CODE.search(clause)]
    useful = " ".join(clauses)
    if useful.endswith(";"):
        return f"{useful[:-1]}."
    return useful


def stopping() -> RequestError:
    """The error for a client whose answer is not complete when the server stops."""
    return overloaded("the server is stopping")


def overloaded(message: str) -> RequestError:
    """The error for a client that may ask again later."""
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
            **_sizes(error),
        }
    }


def llama_error(error: RequestError) -> dict[str, Any]:
    """The error in the shape of llama-server's own endpoints."""
    sizes = _sizes(error)
    kind = _type_of(error, _LLAMA_TYPES, "server_error")
    if sizes:
        kind = _TYPE_IF_TOO_LONG
    return {
        "error": {
            "code": error.status,
            "message": error.sentence,
            "type": kind,
            **sizes,
        }
    }


def _type_of(error: RequestError, types: Mapping[int, str], of_servers: str) -> str:
    """The type of an error in a protocol.

    Args:
        error: the error.
        types: the protocol's types by status.
        of_servers: the type of an error of the server that `types` does not list.
    """
    if error.status in types:
        return types[error.status]
    if error.status >= 500:
        return of_servers
    return "invalid_request_error"


def _sizes(error: RequestError) -> dict[str, int]:
    """The sizes of a prompt that does not fit and of the context, as llama-server has them."""
    cause = error.__cause__
    if not isinstance(cause, ContextError):
        return {}
    if cause.num_tokens is None or cause.context_length is None:
        return {}
    return {"n_prompt_tokens": cause.num_tokens, "n_ctx": cause.context_length}


def anthropic_error(error: RequestError) -> dict[str, Any]:
    """The error in the shape of Anthropic's protocol.

    If a prompt is too long, clients search the message for these words and numbers.
    """
    kind = _type_of(error, _ANTHROPIC_TYPES, "api_error")
    message = error.sentence
    cause = error.__cause__
    if isinstance(cause, ContextError):
        if cause.num_tokens is not None:
            counts = f"{cause.num_tokens} tokens > {cause.context_length} maximum"
            message = message.replace(str(error), counts, 1)
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}
