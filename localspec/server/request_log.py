"""A line in the log for each request: what was asked for, and what it took."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.answering import Answering
from localspec.server.counters import Counters
from localspec.server.encoding import compact_json

ANSWERING = "localspec.answering"  # in the scope of a request: its `Answering`
_GONE = 499  # a client that left before the response began; nginx's number for it

logger = logging.getLogger(__name__)


class RequestLog:
    """Hands requests to `app`, counts them, and logs what was posted and what was refused.

    paths: those that are counted by name. in_json: whether a line is an object, for programs.
    No line has a key or a text.
    """

    def __init__(
        self, app: ASGIApp, counters: Counters, paths: Collection[str], *, in_json: bool
    ) -> None:
        self._app = app
        self._counters = counters
        self._paths = paths
        self._in_json = in_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s, status = time.monotonic(), _GONE

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._note(scope, status, time.monotonic() - started_s)

    def _note(self, scope: Scope, status: int, total_s: float) -> None:
        # A path that is none may hold whatever a client confused with one.
        path = scope["path"] if scope["path"] in self._paths else "other"
        self._counters.add("localspec_requests_total", path=path, status=status)
        if scope["method"] not in ("POST", "DELETE", "PUT") and status < 400:
            return  # programs ask again and again which models there are
        line = {
            "method": scope["method"],
            "path": path,
            "status": status,
            "total_s": round(total_s, 3),
            **_facts(scope.get(ANSWERING)),
        }
        text = compact_json(line) if self._in_json else _in_words(line)
        logger.info("%s", text, extra={"is_object": self._in_json})


def _facts(answering: Answering | None) -> dict[str, Any]:
    if answering is None:
        return {}
    stats = answering.stats
    return {
        "model": answering.model.name,
        "wait_s": None if answering.waited_s is None else round(answering.waited_s, 3),
        "first_s": None if answering.first_s is None else round(answering.first_s, 3),
        "prompt_tokens": sum(each.prompt_tokens for each in stats),
        "cached_tokens": sum(each.cached_prompt_tokens for each in stats),
        "tokens": sum(each.completion_tokens for each in stats),
        "drafted": sum(each.num_draft_tokens for each in stats),
        "accepted": sum(each.num_accepted for each in stats),
        "is_complete": answering.is_complete,
    }


def _in_words(line: dict[str, Any]) -> str:
    method, path, status, *facts = line.items()
    asked = f"{method[1]} {path[1]} {status[1]}"
    told = [f"{name} {value}" for name, value in facts if value is not None]
    return ", ".join([asked, *told])
