"""The application: its routes with their protocols, the page for browsers, and the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mimetypes
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.errors import LocalspecError
from localspec.planning.plan import MOST_PARALLEL
from localspec.server import (
    adapters,
    anthropic_messages,
    completions,
    embeddings,
    llama_completion,
    mcp_page,
    ollama,
    responses,
)
from localspec.server.answering import Answering, Service
from localspec.server.counters import PROMETHEUS, Counters
from localspec.server.encoding import json_response, sent_bytes
from localspec.server.form import ANSWERING, PostEndpoint, RequestReader
from localspec.server.guard import PAGE_PATH, AccessRules, BodyReader, Guard
from localspec.server.own_server import PROOF_PATH, ServerKey, is_nonce
from localspec.server.refusal import RequestError, refusal_of, refusal_response
from localspec.server.served_models import ServedFile, ServedModel, ServedModels
from localspec.tool_servers.servers import McpServers

_NUM_THREADS = MOST_PARALLEL + 16
_UNUSED_CHECK_S = 15.0  # the longest time between two checks for unused models
_CLIENT_LEFT = 499  # nginx's status if the client left before the response began
# Answers may take this long to end when the server stops. uvicorn waits longer.
LAST_ANSWER_S = 3.0

# The reader of POST requests to each path; `Server.routes` adds that of /v1/responses.
_POSTS: dict[str, RequestReader] = {
    "/v1/chat/completions": completions.ChatCompletion,
    "/v1/chat/completions/input_tokens": completions.chat_input_tokens,
    "/v1/completions": completions.Completion,
    "/v1/responses/input_tokens": responses.response_input_tokens,
    "/v1/messages": anthropic_messages.MessageForm,
    "/v1/messages/count_tokens": anthropic_messages.count_tokens,
    "/completion": llama_completion.LlamaCompletion,
    "/infill": llama_completion.Infill,
    "/v1/embeddings": embeddings.embeddings,
    "/v1/rerank": embeddings.rerank,
    "/api/embed": embeddings.ollama_embed,
    "/api/embeddings": embeddings.ollama_embeddings,
    adapters.PATH: adapters.adapter_scales_handler,
    "/mcp/tools": mcp_page.mcp_tools,
    "/mcp/call": mcp_page.mcp_call,
    "/tokenize": completions.tokenize,
    "/detokenize": completions.detokenize,
    "/apply-template": completions.apply_template,
    "/api/show": ollama.show,
    "/api/chat": ollama.OllamaChat,
    "/api/generate": ollama.OllamaGenerate,
}

# The paths where a request's body may be a list, and the field whose value it becomes.
_LIST_NAMES = {adapters.PATH: "lora"}

_PAGE = Path(__file__).parent / "page"
# The page loads nothing from other sites, its HTML has no script or style, and only DOMPurify
# may turn a model's text into HTML.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
_PAGE_HEADERS = {
    "content-security-policy": _PAGE_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # The browser asks by the etag whether its copy is still right: an update shows at once.
    "cache-control": "no-cache",
    "vary": "accept, accept-encoding",
}
# Browsers refuse scripts of another type, and some systems are set up with one.
mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("image/svg+xml", ".svg")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server."""

    body_bytes: int = 32_000_000
    """The largest size of a request's body."""

    body_s: float = 60.0
    """The seconds in which a body has to arrive."""

    num_waiting: int = 64
    """The number of requests that may wait in line."""

    patience_s: float = 10.0
    """A client that gets nothing for this many seconds gets an event that it has to wait."""

    save_s: float = 20.0
    """After this many seconds without a request a model writes its caches to disk."""

    unload_s: float = 30 * 60.0
    """After this many seconds without a request a model is closed."""


class Server:
    """The routes, the models that answer, and the line of requests.

    Args:
        models: the models.
        limits: the limits of requests.
        has_page: whether a browser gets a page to chat on.
        own_key: the key with which the server proves to the user's other programs that it is
            the user's own; None if it has none.
        tool_servers: the MCP servers whose tools the models may call; None without any. `stop`
            closes them; the caller does so, too, for servers that never ran.
    """

    def __init__(
        self,
        models: ServedModels,
        limits: Limits,
        *,
        has_page: bool = True,
        own_key: ServerKey | None = None,
        tool_servers: McpServers | None = None,
    ) -> None:
        self._has_page = has_page
        self._own_key = own_key
        self._limits = limits
        self._service = Service(
            models=models,
            num_waiting=limits.num_waiting,
            patience_s=limits.patience_s,
            tool_servers=tool_servers,
        )
        self._bodies = BodyReader(limits.body_bytes, limits.body_s)

    def app(self, access: AccessRules) -> ASGIApp:
        """The whole application, for the clients that `access` allows."""
        app = Starlette(
            routes=self.routes(),
            lifespan=self._lifespan,
            exception_handlers={
                HTTPException: _no_route,
                RequestError: _refused,
                Exception: _refused,  # after the response, Starlette raises the error again
            },
        )
        paths = [getattr(route, "path", "") for route in app.routes]
        guarded: ASGIApp = Guard(app, access)
        if access.origins:
            guarded = CORSMiddleware(
                guarded,
                allow_origins=access.origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                allow_private_network=True,
            )
        return RequestLog(guarded, self._service.counters, frozenset(paths))

    def stop(self) -> None:
        """End waiting requests with an error at once, and the others after `LAST_ANSWER_S`.

        Calls of MCP servers' tools end at once, too, and so do the servers. Only the event loop
        may call this.
        """
        self._service.is_stopping = True
        for answering in list(self._service.answerings):
            if answering.is_waiting:
                answering.stop()
        for call in self._service.calls:
            call.cancel()
        if self._service.tool_servers is not None:  # a request may wait until one has started
            # In a thread of its own: such requests may have all those of the event loop.
            closing = self._service.tool_servers.close
            threading.Thread(target=closing, daemon=True).start()
        asyncio.get_running_loop().call_later(LAST_ANSWER_S, self._stop_all)

    def _stop_all(self) -> None:
        """End all requests with an error, and any embedding of texts."""
        for answering in list(self._service.answerings):
            answering.stop()
        self._service.models.stop_embedding()

    def routes(self) -> list[BaseRoute]:
        """The routes of all paths."""
        routes: list[BaseRoute] = []
        if self._has_page:
            routes.append(Route("/", _root, methods=["GET"]))
            routes.append(Mount(PAGE_PATH, GZipMiddleware(_PageFiles(directory=_PAGE))))
        tool_servers = self._service.tool_servers
        posts: dict[str, RequestReader] = {
            **_POSTS,
            "/v1/responses": partial(responses.ResponseForm, servers=tool_servers),
        }
        for path, reader in posts.items():
            list_name = _LIST_NAMES.get(path)
            endpoint = PostEndpoint(self._service, self._bodies, reader, list_name)
            routes += _routes_to("POST", path, endpoint)
        for path, compute in self._gets().items():
            routes += _routes_to("GET", path, partial(_get, compute))
        return routes

    def _gets(self) -> dict[str, Callable[[Request], Any]]:
        """By its path, the function that computes the response to a GET request.

        Each returns a `Response`, or a value to be sent as JSON, or raises RequestError.
        """
        models = self._service.models
        unload_s = self._limits.unload_s

        def model_of(request: Request) -> ServedModel:
            return models.named(request.query_params.get("model"))

        return {
            "/": _health,  # some programs look for a server, or for Ollama, at its bare address
            "/v1/health": _health,
            "/v1/models": self._list_models,
            "/v1/models/{name:path}": self._list_models,
            "/metrics": self._metrics,
            PROOF_PATH: self._prove,
            "/props": lambda request: completions.props(model_of(request)),
            adapters.PATH: lambda request: adapters.listed_adapters(model_of(request)),
            "/api/version": lambda _request: {"version": ollama.OLLAMA_VERSION},
            "/api/tags": lambda _request: ollama.tags(models),
            "/api/ps": lambda _request: ollama.loaded_models(models, unload_s),
        }

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncGenerator[None, None]:
        """Starlette's lifespan: sets threads up, closes unused models, and all at the end."""
        # Each running answer takes a thread; short work must not wait until one is free.
        threads = ThreadPoolExecutor(_NUM_THREADS, "localspec-server")
        asyncio.get_running_loop().set_default_executor(threads)
        unloading = asyncio.create_task(self._unload_unused())
        try:
            yield
        finally:
            unloading.cancel()
            await self._service.models.close()

    async def _unload_unused(self) -> None:
        """Write unused models' caches to disk, and close unused models, until cancelled."""
        limits = self._limits
        while True:
            await asyncio.sleep(min(_UNUSED_CHECK_S, limits.unload_s, limits.save_s))
            await self._service.models.keep_unused(limits.save_s)
            if self._service.line.num_admitted == 0:
                turn = self._service.join(None)  # it comes at once: nobody has a turn
                try:
                    await self._service.models.close_unused(limits.unload_s)
                except LocalspecError:
                    logger.exception("an unused model cannot be closed")
                finally:
                    self._service.leave(turn)

    def _metrics(self, _request: Request) -> Response:
        """The counters in Prometheus's text format."""
        answerings = self._service.answerings
        num_waiting = sum(answering.is_waiting for answering in answerings)
        num_answered = len(answerings) - num_waiting
        text = self._service.counters.text(self._service.models, num_answered, num_waiting)
        return Response(sent_bytes(text), headers={"content-type": PROMETHEUS})

    def _prove(self, request: Request) -> dict[str, Any]:
        """The proof that this server has the key in the user's file. Raises RequestError."""
        nonce = request.query_params.get("nonce", "")
        if self._own_key is None or not is_nonce(nonce):
            raise RequestError("this server has no such key, or the nonce is not 64 hex digits")
        return {"proof": self._own_key.proof(nonce)}

    def _list_models(self, request: Request) -> dict[str, Any]:
        """All models; if the path names a model, that one. Raises RequestError."""
        models = self._service.models.listed
        name = request.path_params.get("name")
        if not name:  # None, or "" for the path /v1/models/
            return {"object": "list", "data": [_openai_model(model) for model in models]}
        for model in models:
            if model.is_called(name):
                return _openai_model(model)
        raise RequestError(f"there is no model {name!r:.80}", code="model_not_found")


def _routes_to(method: str, path: str, endpoint: Any) -> list[BaseRoute]:
    """The routes from a path to an endpoint, and from the same path without /v1.

    Users leave /v1 out of an address that they enter, and not every program adds it.
    """
    paths = {path, path.removeprefix("/v1")}
    return [Route(route_path, endpoint, methods=[method]) for route_path in paths]


def _openai_model(model: ServedFile[Any]) -> dict[str, Any]:
    """A model in OpenAI's list, with its context in the fields of vLLM and llama-server."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "localspec",
        "max_model_len": model.context_length,
        "meta": {
            "n_ctx_train": model.num_trained,
            "n_ctx": model.context_length,
            "size": model.size_bytes,
        },
    }


def _health(_request: Request) -> dict[str, Any]:
    return {"status": "ok"}


class _PageFiles(StaticFiles):
    """The files of the page, with `_PAGE_HEADERS`."""

    def file_response(self, *arguments: Any, **keywords: Any) -> Response:
        response = super().file_response(*arguments, **keywords)
        response.headers.update(_PAGE_HEADERS)
        return response


async def _root(request: Request) -> Response:
    """The page for a browser; the server's health for any other program."""
    if "text/html" in request.headers.get("accept", ""):
        return FileResponse(_PAGE / "index.html", headers=_PAGE_HEADERS)
    return json_response(_health(request), headers={"vary": "accept"})


async def _get(compute: Callable[[Request], Any], request: Request) -> Response:
    """The response to a GET request, which `compute` returns as it is or as a JSON value."""
    result = compute(request)
    if isinstance(result, Response):
        return result
    return json_response(result)


async def _no_route(request: Request, error: Exception) -> Response:
    """The refusal of a request for which there is no path, or no method on its path."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    refusal = ollama.not_offered(path)
    if refusal is None:
        reason = str(error.detail)
        code = "method_not_allowed"
        if error.status_code == 404:
            reason = "no such route"
            code = "not_found"
        refusal = RequestError(
            f"{request.method} {path!r:.200}: {reason}",
            status=error.status_code,
            code=code,
            headers=error.headers,  # "allow" names the right methods if the method is wrong
        )
    return refusal_response(path, refusal)


async def _refused(request: Request, error: Exception) -> Response:
    return refusal_response(request.url.path, refusal_of(error))


class RequestLog:
    """Hands requests to `app`, counts them, and logs some (ASGI middleware).

    It logs requests that change or compute something, and those that are refused. The attribute
    `facts` of a log record has what its line says as a dict. No line contains a key or a text
    of a request.

    Args:
        app: the application.
        counters: the server's.
        paths: the paths that are counted and logged by name; all others are "other".
    """

    def __init__(self, app: ASGIApp, counters: Counters, paths: Collection[str]) -> None:
        self._app = app
        self._counters = counters
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand one request to `app`, then count and log it. An ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        status = _CLIENT_LEFT

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            self._count_and_log(scope, status, time.monotonic() - started_s)

    def _count_and_log(self, scope: Scope, status: int, total_s: float) -> None:
        """Count a request that has ended. Log it, unless it succeeded and only read something.

        Args:
            scope: the request's scope.
            status: the HTTP status of the response.
            total_s: the seconds that the request took.
        """
        method = scope["method"]
        path = scope["path"]
        if path not in self._paths:
            path = "other"  # it may contain a secret that a client put there by mistake
        self._counters.add("localspec_requests_total", path=path, status=status)
        if method not in ("POST", "DELETE", "PUT") and status < 400:
            return  # programs ask again and again which models there are
        facts = {"total_s": _rounded(total_s), **_answer_facts(scope.get(ANSWERING))}
        parts = [f"{method} {path} {status}"]
        for name, value in facts.items():
            if value is not None:
                parts.append(f"{name} {value}")
        request = {
            "method": method,
            "path": path,
            "status": status,
        }
        logger.info("%s", ", ".join(parts), extra={"facts": {**request, **facts}})


def _answer_facts(answering: Answering | None) -> dict[str, Any]:
    """What the log says of the answers to a request; {} for a request without a question."""
    if answering is None:
        return {}
    all_stats = answering.stats
    return {
        "model": answering.model.name,
        "wait_s": _rounded(answering.waited_s),
        "first_s": _rounded(answering.first_s),
        "prompt_tokens": sum(stats.prompt_tokens for stats in all_stats),
        "cached_tokens": sum(stats.cached_prompt_tokens for stats in all_stats),
        "tokens": sum(stats.completion_tokens for stats in all_stats),
        "drafted": sum(stats.num_draft_tokens for stats in all_stats),
        "accepted": sum(stats.num_accepted for stats in all_stats),
        "is_complete": answering.is_complete,
    }


def _rounded(seconds: float | None) -> float | None:
    """A time in seconds, rounded to the millisecond; None stays None."""
    if seconds is None:
        return None
    return round(seconds, 3)
