"""The application: which route leads to which protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from localspec.errors import LocalspecError
from localspec.server import (
    chat_completions,
    completions,
    llama_server,
    messages,
    ollama,
    ollama_answers,
    responses,
)
from localspec.server.answering import Service
from localspec.server.error_shapes import refusal_response
from localspec.server.fields import Fields, read_fields
from localspec.server.guard import Access, BodyReader, Guard
from localspec.server.line import Line
from localspec.server.model_list import model_list, model_object
from localspec.server.openapi import Body, document
from localspec.server.question import Question
from localspec.server.refusal import RequestError, refusal_of
from localspec.server.served_models import ServedModels
from localspec.server.writing import EVENTS, Answer, FormMaker, json_response, unless_gone

_IDLE_CHECKS_S = 15.0  # between two looks at whether a model is used
_LAST_S = 3.0  # for the answer that is given when the server stops; uvicorn waits longer

_MESSAGES = "/v1/messages"

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


class Post(NamedTuple):
    """A route that something is sent to: how it is read and answered, and what can be sent."""

    read: Callable[[Fields], Any]
    answer: Callable[[Any], Coroutine[Any, Any, Response]]
    example: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server takes on.

    body_bytes: of a request; body_s: for its body to arrive. num_waiting: requests that wait
    for their turn. patience_s: without news after which a client is told that it waits.
    unload_s: without a question after which a model is closed.
    """

    body_bytes: int = 32_000_000
    body_s: float = 60.0
    num_waiting: int = 64
    patience_s: float = 10.0
    unload_s: float = 30 * 60.0


class Server:
    """The routes over some models."""

    def __init__(self, models: ServedModels, limits: Limits) -> None:
        self._models = models
        self._limits = limits
        self._line = Line(limits.num_waiting)
        self._service = Service(models=models, line=self._line, patience_s=limits.patience_s)
        self._bodies = BodyReader(limits.body_bytes, limits.body_s)
        self._told: set[str] = set()  # fields that the log has a line on

    def app(self, access: Access) -> ASGIApp:
        """The application, which those may use whom `access` lets through."""
        app = Starlette(
            routes=self.routes(),
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _no_route, Exception: _failed},
        )
        return Guard(app, access)

    def stop(self) -> None:
        """Tell those who wait, and a little later whoever is answered, that the server stops.

        In the event loop.
        """
        self._line.close()
        for each in list(self._service.answerings):
            if each.is_waiting:
                each.stop()
        asyncio.get_running_loop().call_later(_LAST_S, self._stop_all)

    def _stop_all(self) -> None:
        for each in list(self._service.answerings):
            each.stop()

    def routes(self) -> list[Route]:
        """Every route, under all of its paths."""
        gets, posts = self._gets(), self._posts()
        routes = []
        for path, endpoint in gets.items():
            for each in _with_and_without_version(path):
                routes.append(Route(each, endpoint, methods=["GET"]))
        for path, post in posts.items():
            for each in _with_and_without_version(path):
                routes.append(Route(each, partial(self._post, post), methods=["POST"]))
        return routes

    def _gets(self) -> dict[str, Endpoint]:
        return {
            "/": _health,  # programs look for a server, or an Ollama, by its address alone
            "/v1/health": _health,
            "/v1/models": self._list,
            "/v1/models/{name}": self._one,
            "/api/version": _version,
            "/api/tags": self._tags,
            "/api/ps": self._ps,
            "/openapi.json": self._document,
        }

    def _posts(self) -> dict[str, Post]:
        ask = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5}
        complete = {"prompt": "Hello", "max_tokens": 5}
        respond = {"input": "Hello!", "max_output_tokens": 5}
        chat = {"messages": ask["messages"], "options": {"num_predict": 5}}
        generate = {"prompt": "Hello!", "options": {"num_predict": 5}}
        aside = partial(_aside, self._service)
        return {
            "/v1/chat/completions": Post(_read_chat, self._chat, ask),
            "/v1/completions": Post(_read_completion, self._complete, complete),
            "/v1/responses": Post(responses.read_question, self._respond, respond),
            _MESSAGES: Post(messages.read_question, self._message, ask),
            f"{_MESSAGES}/count_tokens": Post(
                messages.read_prompt_question, aside(messages.count_tokens), ask
            ),
            "/tokenize": Post(
                llama_server.read_text, aside(llama_server.tokenize), {"content": "Hello"}
            ),
            "/detokenize": Post(
                llama_server.read_tokens, aside(llama_server.detokenize), {"tokens": [100]}
            ),
            "/apply-template": Post(
                llama_server.read_prompt_question, aside(llama_server.apply_template), ask
            ),
            "/api/show": Post(ollama.read_name, self._show, {}),
            "/api/chat": Post(ollama_answers.read_chat, self._ollama, chat),
            "/api/generate": Post(ollama_answers.read_generate, self._ollama, generate),
        }

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncGenerator[None, None]:
        unloading = asyncio.create_task(self._unload_unused())
        try:
            yield
        finally:
            unloading.cancel()
            await self._models.close()

    async def _unload_unused(self) -> None:
        while True:
            await asyncio.sleep(min(_IDLE_CHECKS_S, self._limits.unload_s))
            if self._line.is_empty:
                place = self._line.join()
                try:
                    await self._models.close_unused(self._limits.unload_s)
                except LocalspecError:
                    logger.exception("a model that nobody uses cannot be closed")
                finally:
                    self._line.leave(place)

    async def _post(self, post: Post, request: Request) -> Response:
        path = request.url.path
        try:
            fields = read_fields(await self._bodies.read(request.receive))
            asked = post.read(fields)
            response = await unless_gone(request.receive, post.answer(asked))
            fields.log_unread(path, self._told)
        except Exception as error:
            return refusal_response(path, refusal_of(error))
        return response or Response()  # which nobody reads

    async def _chat(self, asked: tuple[Question, bool]) -> Response:
        question, has_usage = asked
        form = partial(chat_completions.ChatCompletion, question, has_usage=has_usage)
        return self._answer("/v1/chat/completions", question, form)

    async def _complete(self, asked: tuple[Question, bool]) -> Response:
        question, has_usage = asked
        form = partial(completions.Completion, question, has_usage=has_usage)
        return self._answer("/v1/completions", question, form)

    async def _respond(self, question: Question) -> Response:
        form = partial(responses.ResponseForm, question)
        return self._answer("/v1/responses", question, form)

    async def _message(self, question: Question) -> Response:
        return self._answer(_MESSAGES, question, messages.MessageForm)

    async def _ollama(self, asked: ollama_answers.Asked) -> Response:
        form = partial(ollama_answers.OllamaForm, asked)
        return self._answer("/api/chat", asked.question, form, ollama_answers.CONTENT_TYPE)

    def _answer(
        self, path: str, question: Question, form: FormMaker, content_type: str = EVENTS
    ) -> Response:
        refuse = partial(refusal_response, path)
        return Answer(self._service, question, form, refuse, content_type)

    async def _show(self, name: str | None) -> Response:
        return json_response(ollama.show(self._models, name))

    async def _document(self, _request: Request) -> Response:
        bodies = {path: Body(post.read, post.example) for path, post in self._posts().items()}
        return json_response(document(list(self._gets()), bodies))

    async def _tags(self, _request: Request) -> Response:
        return json_response(ollama.tags(self._models))

    async def _ps(self, _request: Request) -> Response:
        return json_response(ollama.loaded(self._models, self._limits.unload_s))

    async def _list(self, _request: Request) -> Response:
        return json_response(model_list(self._models))

    async def _one(self, request: Request) -> Response:
        for model in self._models.all:
            if model.name == request.path_params["name"]:
                return json_response(model_object(model))
        error = RequestError(
            f"there is no model {request.path_params['name']!r:.80}",
            status=404,
            code="model_not_found",
        )
        return refusal_response(request.url.path, error)


def _aside(
    service: Service, make: Callable[[Service, Any], Awaitable[Any]]
) -> Callable[[Any], Coroutine[Any, Any, Response]]:
    """What answers with the JSON that is made of a request."""

    async def answer(asked: Any) -> Response:
        return json_response(await make(service, asked))

    return answer


def _read_chat(fields: Fields) -> tuple[Question, bool]:
    return chat_completions.read_question(fields), _wants_usage(fields)


def _read_completion(fields: Fields) -> tuple[Question, bool]:
    return completions.read_question(fields), _wants_usage(fields)


def _wants_usage(fields: Fields) -> bool:
    options = fields.object("stream_options")
    return options is not None and bool(options.flag("include_usage"))


async def _version(_request: Request) -> Response:
    return json_response(ollama.version())


async def _health(_request: Request) -> Response:
    return json_response({"status": "ok"})


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = "no such route" if error.status_code == 404 else str(error.detail)
    refusal = ollama.not_offered(request.url.path) or RequestError(
        f"{request.method} {request.url.path!r:.200}: {what}",
        status=error.status_code,
        code="not_found" if error.status_code == 404 else "method_not_allowed",
        headers=error.headers,  # of a wrong method: which are right
    )
    return refusal_response(request.url.path, refusal)


async def _failed(request: Request, error: Exception) -> Response:
    return refusal_response(request.url.path, refusal_of(error))


def _with_and_without_version(path: str) -> list[str]:
    """People leave the /v1 out of base addresses, and some programs put it in."""
    if path.startswith("/v1"):
        return [path, path.removeprefix("/v1")]
    return [path]
