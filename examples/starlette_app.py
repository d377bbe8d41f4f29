"""Starlette (and FastAPI): answers that neither hold up the event loop nor outlive a visitor.

    uvicorn --factory examples.starlette_app:main
    curl -N -d "Tell me a story." http://127.0.0.1:8000/anna

The engine gives up to four answers at once, and whoever comes then waits in line. Whoever hangs
up cancels the task of the request, and with it the answer, within one decode.
"""

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import localspec


class Visitors:
    """A conversation for each."""

    def __init__(self, engine: localspec.Engine) -> None:
        self.engine = engine
        self.chats: dict[str, localspec.Chat] = {}

    async def answer(self, request: Request) -> StreamingResponse:
        question = (await request.body()).decode(errors="replace")
        pieces = self.pieces(request.path_params["visitor"], question)
        return StreamingResponse(pieces, media_type="text/plain; charset=utf-8")

    async def pieces(self, visitor: str, question: str) -> AsyncIterator[str]:
        try:
            begun = self.engine.chat(system="You are terse.")
            chat = self.chats.setdefault(visitor, begun)
            async with chat.send(question, queue=True) as answer:
                async for piece in answer:
                    if not piece.is_thought:
                        yield piece.text
        except localspec.LocalspecError as error:
            yield f"(I cannot answer: {error})"


def make_app(engine: localspec.Engine) -> Starlette:
    @contextlib.asynccontextmanager
    async def until_shutdown(_app: Starlette) -> AsyncIterator[None]:
        with engine:
            yield

    routes = [Route("/{visitor}", Visitors(engine).answer, methods=["POST"])]
    return Starlette(routes=routes, lifespan=until_shutdown)


def main() -> Starlette:
    return make_app(localspec.load(parallel=4))
