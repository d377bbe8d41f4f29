"""What a client gets instead of an answer, whichever protocol it speaks."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from localspec.errors import (
    BusyError,
    ClosedError,
    ContextError,
    CrashedError,
    LocalspecError,
    OptionError,
    TemplateError,
)

logger = logging.getLogger(__name__)


class RequestError(LocalspecError):
    """A request that is not answered.

    status: of HTTP. code: a word for programs, OpenAI's where it has one. param: the field
    that is to blame, if one is. headers: of the response.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = 400,
        code: str = "invalid_request",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    @property
    def sentence(self) -> str:
        """What is wrong and what to do next, in one text."""
        return f"{self}. {self.hint}" if self.hint else str(self)


def refusal_of(error: Exception) -> RequestError:
    """What a client is told of an error. What nobody meant to raise is logged, and not told."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RecursionError):
        return RequestError("the request is nested too deeply", "Send a flatter one.")
    if not isinstance(error, LocalspecError):
        logger.error("a request failed", exc_info=error)
        return RequestError(
            "the server failed; its log says how", status=500, code="server_error"
        )
    status, code = 500, "server_error"
    if isinstance(error, ContextError):
        status, code = 400, "context_length_exceeded"
    elif isinstance(error, OptionError | TemplateError):
        status, code = 400, "invalid_request"
    elif isinstance(error, BusyError | ClosedError):
        status, code = 503, "overloaded"
    elif isinstance(error, CrashedError):
        logger.error("the process of the models ended", exc_info=error)
    return RequestError(str(error), error.hint, status=status, code=code)


def stopping() -> RequestError:
    """What is told of an answer that the end of the server cut."""
    return RequestError(
        "the server is stopping", "Ask again later.", status=503, code="overloaded"
    )
