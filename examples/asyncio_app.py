"""A chat server on loopback: a line in, a line out, a conversation for each connection.

    python examples/asyncio_app.py 8765
    nc localhost 8765

The engine gives up to four answers at once, and whoever comes then waits in line; each finds
its own conversation still in the caches. Whoever hangs up ends their answer. Line breaks within
an answer become spaces, so that its end is where the line ends.
"""

from __future__ import annotations

import asyncio
import sys

import localspec


class Server:
    """One engine for everybody who connects."""

    def __init__(self, engine: localspec.Engine) -> None:
        self._engine = engine

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends."""
        chat = self._engine.chat(system="You are terse.")
        try:
            line = asyncio.ensure_future(reader.readline())
            while question := (await line).decode("utf-8", errors="replace").strip():
                line = asyncio.ensure_future(reader.readline())
                await self._answer(chat, question, line, writer)
        finally:
            line.cancel()
            writer.close()

    async def _answer(
        self,
        chat: localspec.Chat,
        question: str,
        line: asyncio.Future[bytes],
        writer: asyncio.StreamWriter,
    ) -> None:
        async with chat.send(question, queue=True) as answer:
            async for piece in answer:
                if line.done() and not line.result():
                    return  # they are gone; leaving the block stops the engine
                if not piece.is_thought:
                    writer.write(piece.text.replace("\n", " ").encode())
                    await writer.drain()
        writer.write(b"\n")
        await writer.drain()


async def main(port: int) -> None:
    with localspec.load(parallel=4) as engine:
        server = await asyncio.start_server(Server(engine).serve, "127.0.0.1", port)
        print("listening on", server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/asyncio_app.py PORT")
    asyncio.run(main(int(sys.argv[1])))
