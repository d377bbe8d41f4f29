"""Starlette (and FastAPI): answers that neither hold up the event loop nor outlive a visitor.

    uvicorn --factory examples.starlette_app:main
    curl -N -d "Tell me a story." http://127.0.0.1:8000/anna

The engine gives up to four answers at once, and whoever comes then waits in line. A question
that cannot be answered, such as one that is too long, gets status 400 and the reason. Whoever
hangs up while the answer comes cancels the task that reads it, and with it the answer, within
one decode.
"""

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import localspec


class Visitors:
    """A conversation for each."""

    def __init__(self, engine: localspec.Engine) -> None:
        self.engine = engine
        self.chats: dict[str, localspec.Chat] = {}

    async def answer(self, request: Request) -> Response:
        question = (await request.body()).decode(errors="replace")
        visitor = request.path_params["visitor"]
        try:
            begun = self.engine.chat(system="You are terse.")
            answer = self.chats.setdefault(visitor, begun).send(question, queue=True)
            await answer.started()  # a status can still be chosen
        except localspec.EngineError as error:
            return PlainTextResponse(str(error), status_code=503)
        except localspec.LocalspecError as error:
            return PlainTextResponse(f"{error}. {error.hint}", status_code=400)
        return StreamingResponse(pieces(answer), media_type="text/plain; charset=utf-8")


async def pieces(answer: localspec.Answer) -> AsyncIterator[str]:
    try:
        async with answer:
            async for piece in answer:
                if not piece.is_thought:
                    yield piece.text
    except localspec.LocalspecError as error:
        yield f"(The answer ends here: {error})"


def make_app(engine: localspec.Engine) -> Starlette:
    @contextlib.asynccontextmanager
    async def until_shutdown(_app: Starlette) -> AsyncIterator[None]:
        with engine:
            yield

    routes = [Route("/{visitor}", Visitors(engine).answer, methods=["POST"])]
    return Starlette(routes=routes, lifespan=until_shutdown)


def main() -> Starlette:
    return make_app(localspec.load(parallel=4))
