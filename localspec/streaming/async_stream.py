"""The asynchronous twin of `Stream`, for applications with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any

from localspec.errors import EngineError, Interrupted
from localspec.streaming.cancellation import Unwanted
from localspec.streaming.stream import Piece, Reply, Stream

_Call = tuple[Future[Any], Callable[[], Any]]


class _Work:
    """What the thread does. It has to know no `AsyncStream`, or that could not be dropped."""

    def __init__(self, open_stream: Callable[[Unwanted], Stream]) -> None:
        self._open_stream = open_stream
        self.stream: Stream | None = None
        self._is_cancelled = False

    def next(self) -> Piece | None:
        if self.stream is None:
            try:
                self.stream = self._open_stream(lambda: self._is_cancelled)
            except Interrupted:
                return None
            if self._is_cancelled:
                self.stream.cancel()
        return next(self.stream, None)

    def read_all(self, tell: Callable[[Piece], None]) -> None:
        while (piece := self.next()) is not None:
            tell(piece)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self.stream is not None:
            self.stream.cancel()

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


class _Worker:
    """A thread that makes calls, one after the other, until it is stopped.

    A daemon, where those of a pool would keep the interpreter from its end until an answer is
    whole: then the engine ends its streams.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._has_begun = False

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """What comes of the call, in its turn."""
        if not self._has_begun:
            self._has_begun = True
            Thread(
                target=_work_off, args=(self._calls,), name="localspec-async", daemon=True
            ).start()
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return future

    def stop(self) -> None:
        """Let the thread end when it has done what it was given."""
        self._calls.put(None)


def _work_off(calls: SimpleQueue[_Call | None]) -> None:
    while (given := calls.get()) is not None:
        future, call = given
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del given, future, call  # while it waits for the next, it keeps nothing of the last


class AsyncStream:
    """An asynchronous iterator over the pieces of an answer; afterwards `reply` is the whole.

    All that takes time happens in one thread of its own: making the prompt, which is when a
    bad one is refused, and every decode. Cancelling the task that reads, `aclose`, leaving
    an `async with` block and dropping the last reference stop the work.

    open_stream: makes the answer, in that thread, and may raise Interrupted as soon as what it
    is called with is true.
    """

    def __init__(self, open_stream: Callable[[Unwanted], Stream]) -> None:
        self._work = _Work(open_stream)
        self._worker = _Worker()
        self._reading: asyncio.Future[Any] | None = None
        self._awaited = False
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Piece:
        """The next piece. Raises EngineError while another task waits for one."""
        piece: Piece | None = await self._read(self._work.next)
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def read_all(self, tell: Callable[[Piece], None]) -> None:
        """Read what is left, without a change of threads between two pieces.

        tell: called with each in the thread of the answer. Raises EngineError while another
        task waits for a piece.
        """
        await self._read(lambda: self._work.read_all(tell))

    async def _read(self, call: Callable[[], Any]) -> Any:
        """What comes of a call in the thread; None once this was closed."""
        if self._awaited:
            raise EngineError(
                "another task waits for a piece of this answer", "Read it in one task."
            )
        if self._closing is not None:
            return None
        self._reading = asyncio.wrap_future(self._worker.submit(call))
        self._awaited = True
        try:
            # Shielded: the thread goes on, whoever gives up waiting for it.
            return await asyncio.shield(self._reading)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        finally:
            self._awaited = False

    async def aclose(self) -> None:
        """Stop here: end a running decode, close the stream. Idempotent.

        The engine is free when it returns or raises, however often the task is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        cancelled = None
        while not self._closing.done():
            try:
                await asyncio.shield(self._closing)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _close(self) -> None:
        try:
            if self._reading is not None and self._is_reading():
                self._work.cancel()
                await asyncio.wait([self._reading])
        finally:
            closing = asyncio.wrap_future(self._worker.submit(self._work.close))
            self._worker.stop()
            await asyncio.shield(closing)

    @property
    def reply(self) -> Reply:
        """What has been said, once the stream is exhausted or closed.

        Raises EngineError before that.
        """
        if self._work.stream is None:
            raise EngineError("the answer has not begun yet", "Iterate over the stream.")
        return self._work.stream.reply

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    def __del__(self) -> None:
        # If the thread is at work, it drops the stream when it is done.
        self._worker.stop()
        if self._closing is None and not self._is_reading():
            self._work.close()


async def awhole_reply(stream: AsyncStream) -> Reply:
    """Read a stream to its end."""
    async with stream:
        await stream.read_all(lambda _piece: None)
    return stream.reply
