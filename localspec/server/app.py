"""The application: its routes with their protocols, the page for browsers, and the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mimetypes
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
_IDLE_CHECKS_S = 15.0  # between two checks for unused models
_GONE = 499  # nginx's status for a client that left before the response began
LAST_ANSWER_S = 3.0  # for the running answers when the server stops; uvicorn waits longer

# What reads a request to each path.
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
    adapters.PATH: adapters.scales_to_come,
    "/mcp/tools": mcp_page.mcp_tools,
    "/mcp/call": mcp_page.mcp_call,
    "/tokenize": completions.tokenize,
    "/detokenize": completions.detokenize,
    "/apply-template": completions.apply_template,
    "/api/show": ollama.show,
    "/api/chat": ollama.OllamaChat,
    "/api/generate": ollama.OllamaGenerate,
}

# The paths whose body may be a list, and the field that the list stands for.
_LISTS = {adapters.PATH: "lora"}

_PAGE = Path(__file__).parent / "page"
# Nothing is loaded from elsewhere, the page has no code or style within, and only DOMPurify
# turns a model's text into HTML.
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
    "cache-control": "no-cache",  # asked again by its etag: a new version is seen at once
    "vary": "accept, accept-encoding",
}
mimetypes.add_type("text/javascript", ".js")  # whatever the system says
mimetypes.add_type("image/svg+xml", ".svg")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server."""

    body_bytes: int = 32_000_000
    """The largest size of a request's body."""

    body_s: float = 60.0
    """The time in which a body has to arrive."""

    num_waiting: int = 64
    """The number of requests that may wait."""

    patience_s: float = 10.0
    """A client that gets nothing for this long gets an event that says it waits."""

    keep_s: float = 20.0
    """A model without a question for this long writes its caches to disk, where it may."""

    unload_s: float = 30 * 60.0
    """A model without a question for this long is closed."""


class Server:
    """The routes, the models that answer, and the line of requests.

    Args:
        models: the models.
        limits: the limits of requests.
        has_page: whether a browser gets a page to chat on.
        own_key: the key with which the server shows the user's programs that it is this user's;
            None if it needs none.
        tool_servers: MCP servers whose tools clients may let the models call. The caller
            closes them.
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
        """The application, for the clients that `access` lets through."""
        app = Starlette(
            routes=self.routes(),
            lifespan=self._lifespan,
            exception_handlers={
                HTTPException: _no_route,
                RequestError: _refused,
                Exception: _refused,  # Starlette raises these afterwards, too
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
        """End requests with an error: waiting ones now, others soon. In the event loop."""
        self._service.is_stopping = True
        for answering in list(self._service.answerings):
            if answering.is_waiting:
                answering.stop()
        for call in self._service.calls:
            call.cancel()
        asyncio.get_running_loop().call_later(LAST_ANSWER_S, self._stop_all)

    def _stop_all(self) -> None:
        for answering in list(self._service.answerings):
            answering.stop()
        self._service.models.stop_embedding()

    def routes(self) -> list[BaseRoute]:
        """Every route, with all of its paths."""
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
            endpoint = PostEndpoint(self._service, self._bodies, reader, _LISTS.get(path))
            routes += _routes_to("POST", path, endpoint)
        for path, value in self._gets().items():
            routes += _routes_to("GET", path, partial(_get, value))
        return routes

    def _gets(self) -> dict[str, Callable[[Request], Any]]:
        models = self._service.models
        unload_s = self._limits.unload_s

        def asked_model(request: Request) -> ServedModel:
            return models.named(request.query_params.get("model"))

        return {
            "/": _health,  # programs look for a server, or for Ollama, by its address alone
            "/v1/health": _health,
            "/v1/models": self._list,
            "/v1/models/{name:path}": self._list,
            "/metrics": self._metrics,
            PROOF_PATH: self._prove,
            "/props": lambda request: completions.props(asked_model(request)),
            adapters.PATH: lambda request: adapters.listed_adapters(asked_model(request)),
            "/api/version": lambda _request: {"version": ollama.OLLAMA_VERSION},
            "/api/tags": lambda _request: ollama.tags(models),
            "/api/ps": lambda _request: ollama.loaded(models, unload_s),
        }

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncGenerator[None, None]:
        # Each answer under way takes a thread, and short work must not wait for one.
        threads = ThreadPoolExecutor(_NUM_THREADS, "localspec-server")
        asyncio.get_running_loop().set_default_executor(threads)
        unloading = asyncio.create_task(self._unload_unused())
        try:
            yield
        finally:
            unloading.cancel()
            await self._service.models.close()

    async def _unload_unused(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(min(_IDLE_CHECKS_S, limits.unload_s, limits.keep_s))
            await self._service.models.keep_unused(limits.keep_s)
            if self._service.line.num_admitted == 0:
                turn = self._service.join(None)
                try:
                    await self._service.models.close_unused(limits.unload_s)
                except LocalspecError:
                    logger.exception("an unused model cannot be closed")
                finally:
                    self._service.leave(turn)

    def _metrics(self, _request: Request) -> Response:
        answerings = self._service.answerings
        num_waiting = sum(answering.is_waiting for answering in answerings)
        num_answered = len(answerings) - num_waiting
        text = self._service.counters.text(self._service.models, num_answered, num_waiting)
        return Response(sent_bytes(text), headers={"content-type": PROMETHEUS})

    def _prove(self, request: Request) -> dict[str, Any]:
        """Prove to a program that knows the server's key that this server knows it, too."""
        nonce = request.query_params.get("nonce", "")
        if self._own_key is None or not is_nonce(nonce):
            raise RequestError("this server has no such key, or the nonce is not 64 hex digits")
        return {"proof": self._own_key.proof(nonce)}

    def _list(self, request: Request) -> dict[str, Any]:
        """All models, or the one that the path names."""
        models = self._service.models.listed
        name = request.path_params.get("name")
        if not name:  # "" if the list's path ends with a slash
            return {"object": "list", "data": [_openai_model(model) for model in models]}
        for model in models:
            if model.is_called(name):
                return _openai_model(model)
        raise RequestError(f"there is no model {name!r:.80}", code="model_not_found")


def _routes_to(method: str, path: str, endpoint: Any) -> list[BaseRoute]:
    """The routes to an endpoint, also without /v1.

    People leave /v1 out of a base address, and programs add it.
    """
    paths = {path, path.removeprefix("/v1")}
    return [Route(each, endpoint, methods=[method]) for each in paths]


def _openai_model(model: ServedFile[Any]) -> dict[str, Any]:
    """A model in the list, with its context in the fields of vLLM and of llama-server."""
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
    def file_response(self, *arguments: Any, **keywords: Any) -> Response:
        response = super().file_response(*arguments, **keywords)
        response.headers.update(_PAGE_HEADERS)
        return response


async def _root(request: Request) -> Response:
    """The page for a browser; the server's health for a program, which looks for it there."""
    if "text/html" in request.headers.get("accept", ""):
        return FileResponse(_PAGE / "index.html", headers=_PAGE_HEADERS)
    return json_response(_health(request), headers={"vary": "accept"})


async def _get(value: Callable[[Request], Any], request: Request) -> Response:
    result = value(request)
    if isinstance(result, Response):
        return result
    return json_response(result)


async def _no_route(request: Request, error: Exception) -> Response:
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
            headers=error.headers,  # for a wrong method they name the right ones
        )
    return refusal_response(path, refusal)


async def _refused(request: Request, error: Exception) -> Response:
    return refusal_response(request.url.path, refusal_of(error))


class RequestLog:
    """Hands requests to `app`, counts them, and logs POST requests and refused ones.

    The attribute `facts` of a log record has all that its line says. No line contains a key or
    a text of a request.

    Args:
        app: the application.
        counters: the server's.
        paths: the paths that are counted by name.
    """

    def __init__(self, app: ASGIApp, counters: Counters, paths: Collection[str]) -> None:
        self._app = app
        self._counters = counters
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        status = _GONE

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
        method = scope["method"]
        path = scope["path"]
        if path not in self._paths:
            path = "other"  # it may contain a secret that a client put there by mistake
        self._counters.add("localspec_requests_total", path=path, status=status)
        if method not in ("POST", "DELETE", "PUT") and status < 400:
            return  # programs ask again and again which models there are
        facts = {"total_s": _rounded(total_s), **_facts(scope.get(ANSWERING))}
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


def _facts(answering: Answering | None) -> dict[str, Any]:
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
    """Seconds to the millisecond."""
    if seconds is None:
        return None
    return round(seconds, 3)
