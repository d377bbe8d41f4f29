"""An answer: iterate over it, in threads or on an event loop, or take the whole reply."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from localspec.errors import EngineError
from localspec.streaming.answer_text import Said
from localspec.streaming.exchange import Exchange
from localspec.streaming.reply import Piece, Reply

_ALREADY_RUNS = ("generator already executing",)
_NOTICE_S = 0.005  # between two looks at whether a thread has noticed

_Call = tuple[Future[Any], Callable[[], Any]]


class PieceReader:
    """Reads the pieces of an answer, in any thread, but in one at a time.

    It knows no `Answer`: else one that another thread reads for could not be dropped. Dropping
    the last reference ends the generator, which leaves the caches right and frees the engine.
    """

    def __init__(self, exchange: Exchange, pieces: Generator[Piece, None, None]) -> None:
        self.exchange = exchange
        self._pieces = pieces
        self._thread = 0  # that asked for a piece last
        self._is_closing = False

    def __iter__(self) -> PieceReader:
        return self

    def __next__(self) -> Piece:
        self._thread = threading.get_ident()
        try:
            return next(self._pieces)
        except ValueError as error:
            if error.args != _ALREADY_RUNS:
                raise
            if not self._is_closing:
                raise _read_elsewhere() from error
        # Another thread closes it, and has the reply in a moment.
        while inspect.getgeneratorstate(self._pieces) == inspect.GEN_RUNNING:
            time.sleep(_NOTICE_S)
        raise StopIteration

    def read_all(self) -> None:
        """Read what is left."""
        for _ in self:
            pass

    def cancel(self) -> None:
        self.exchange.cancellation.request()

    def close(self) -> None:
        """End it. Raises EngineError while another thread waits for a piece."""
        if not self._has_closed():
            raise _read_elsewhere()

    def end(self) -> None:
        """End it, once a thread that waits for a piece has noticed.

        Raises EngineError where this very thread does, and a signal handler came between.
        """
        while not self._has_closed():
            self.cancel()
            if self._thread == threading.get_ident():
                raise EngineError(
                    "the answer is being read by the thread that is to close it",
                    "It was cancelled; close it when the reading has returned.",
                )
            time.sleep(_NOTICE_S)

    def _has_closed(self) -> bool:
        """Whether that was possible."""
        was_started = inspect.getgeneratorstate(self._pieces) != inspect.GEN_CREATED
        self._is_closing = True
        try:
            self._pieces.close()
        except ValueError as error:
            if error.args != _ALREADY_RUNS:
                raise
            return False
        finally:
            self._is_closing = False
        if not was_started:
            self.exchange.abandon()
        return True


class _Worker:
    """A thread that makes calls, one after the other, until it is stopped.

    A daemon, where those of a pool would keep the interpreter from its end until an answer is
    whole: then the engine ends its answers.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] | None = None

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """The call's result or exception, once its turn has come."""
        calls = self._calls
        if calls is None:
            calls = self._calls = SimpleQueue()
            threading.Thread(
                target=_work_off, args=(calls,), name="localspec-async", daemon=True
            ).start()
        future: Future[Any] = Future()
        calls.put((future, call))
        return future

    def stop(self) -> None:
        """Let the thread end after the calls it has. The next call starts another thread."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)


def _work_off(calls: SimpleQueue[_Call | None]) -> None:
    while (given := calls.get()) is not None:
        future, call = given
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del given, future, call  # while it waits for the next, it keeps nothing of the last


class Answer:
    """An answer that is asked for: its pieces as they come, and its whole reply.

        for piece in answer: ...        async for piece in answer: ...
        reply = answer.reply()          reply = await answer
        print(answer)

    Nothing happens before the first piece is asked for: then the prompt is made, which may be
    refused, and the engine is used until the answer ends. On an event loop all that takes time
    happens in a thread of the answer's own. `with` and `async with` close it; so does dropping
    the last reference, and cancelling the task that reads it. An answer that is never read
    leaves no trace. From any thread, but one may read at a time. `str(answer)` is the text of
    `answer.reply()`: it reads what is left, and waits for it.
    """

    def __init__(self, reader: PieceReader) -> None:
        self._worker = _Worker()
        self._awaited: asyncio.Future[Any] | None = None  # what a task waited for last
        self._is_awaited = False
        self._closing: asyncio.Task[None] | None = None
        self._reader = reader

    def __str__(self) -> str:
        return self.reply().text

    def __repr__(self) -> str:
        result = self._reader.exchange.result
        return f"<Answer, {'not read to its end' if result is None else repr(result[0])}>"

    def __iter__(self) -> Iterator[Piece]:
        return self._reader

    def __next__(self) -> Piece:
        """The next piece. Raises EngineError while another thread or a task waits for one."""
        return next(self._reader)

    def reply(self) -> Reply:
        """Read what is left; the whole answer, also of the pieces that were read before.

        Of one that was cancelled or closed it is what had been said. Raises EngineError while
        another thread or a task waits for a piece, and where it was refused.
        """
        try:
            self._reader.read_all()
        finally:
            self._reader.close()
        return self._reader.exchange.reply()

    def cancel(self) -> None:
        """End it within one decode, without waiting; before its first token if it is unread.

        From any thread, and for a signal handler. Whoever reads gets the end of the pieces, and
        a reply of what had been said, its finish_reason "cancelled".
        """
        self._reader.cancel()

    def close(self) -> None:
        """Cancel it, wait until whoever reads has noticed, and free the engine. Idempotent.

        From any thread. Afterwards it has no more pieces. Raises EngineError in a signal
        handler that has interrupted the reading of this very answer: it is cancelled then.
        """
        self._reader.end()
        self._worker.stop()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Piece:
        """The next piece. Raises EngineError while another task or a thread waits for one."""
        piece: Piece | None = None
        try:
            piece = await self._in_thread(functools.partial(next, self._reader, None))
        finally:
            if piece is None:
                self._worker.stop()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __await__(self) -> Generator[Any, None, Reply]:
        return self._whole_reply().__await__()

    async def _whole_reply(self) -> Reply:
        try:
            # Without a change of threads between two pieces.
            await self._in_thread(self._reader.read_all)
        finally:
            self._worker.stop()
        return self._reader.exchange.reply()

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """The result of a call in the answer's thread; None once a task closed it."""
        if self._is_awaited:
            raise EngineError(
                "another task waits for a piece of this answer", "Read it in one task."
            )
        if self._closing is not None:
            return None
        self._awaited = asyncio.wrap_future(self._worker.submit(call))
        self._is_awaited = True
        try:
            # Shielded: the thread goes on, whoever gives up waiting for it.
            return await asyncio.shield(self._awaited)
        except asyncio.CancelledError:
            await self._close_in_thread()
            raise
        finally:
            self._is_awaited = False

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close_in_thread()

    async def _close_in_thread(self) -> None:
        """The engine is free when it returns or raises, however often it is cancelled."""
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
            if self._awaited is not None and not self._awaited.done():
                self._reader.cancel()
                await asyncio.wait([self._awaited])
            if self._awaited is not None and not self._awaited.cancelled():
                self._awaited.exception()  # or asyncio logs that nobody asked for it
        finally:
            closing = asyncio.wrap_future(self._worker.submit(self._reader.end))
            self._worker.stop()
            await asyncio.shield(closing)

    def __del__(self) -> None:
        self._worker.stop()
        if self._awaited is not None and not self._awaited.done():
            self._reader.cancel()  # the thread drops it when it has noticed
        elif self._awaited is not None and self._closing is None:
            self._reader.close()


def close_behind(answer: Answer, num_tokens: int) -> tuple[Reply, Said | None] | None:
    """Close an answer; its result, as if only its first num_tokens had been produced.

    None if it has none: it was refused, or failed, before it began.
    """
    answer.close()
    exchange = answer._reader.exchange
    if exchange.run is None:
        return exchange.result
    exchange.run.cut(num_tokens)
    return exchange.run.result


def _read_elsewhere() -> EngineError:
    return EngineError(
        "the answer is being read elsewhere, by another thread or a task",
        "Read it in one place, and stop it with its cancel() or close().",
    )
