"""An answer: iterate over it, in threads or on an event loop, or take the whole reply."""

from __future__ import annotations

import abc
import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from localspec.errors import EngineError
from localspec.fork_guard import OwnProcess
from localspec.streaming.exchange import Exchange, ForReader
from localspec.streaming.reply import Piece, Reply
from localspec.streaming.waiting import Outbox


class Producer(Protocol):
    """An engine, which produces answers, as far as an `Answer` knows it. Nothing here waits."""

    @abc.abstractmethod
    def _start(self, exchange: Exchange) -> None:
        """Have an answer produced, once it is admitted. Raises EngineError."""

    @abc.abstractmethod
    def _read_on(self, exchange: Exchange) -> None:
        """Note that one more of its pieces was read."""

    @abc.abstractmethod
    def _end(self, exchange: Exchange) -> None:
        """Have it end behind what was read; the last that it tells comes then. Idempotent."""

    @abc.abstractmethod
    def _may_wait(self) -> bool:
        """Whether this thread may wait for that: none that the end itself needs."""


class _LastEnd:
    """Ends an answer whose own finalizer Ctrl-C struck before it began to run.

    Python passes over an exception there. This is freed next, when the signal has been served.
    """

    def __init__(self, exchange: Exchange, producer: Producer, own_process: OwnProcess) -> None:
        self._exchange = exchange
        self._producer = producer
        self._own_process = own_process

    def __del__(self) -> None:
        if not hasattr(self, "_own_process"):  # Ctrl-C came while it was made
            return
        exchange = self._exchange
        if exchange.is_asked and not exchange.is_over and self._own_process.is_this():
            exchange.cancellation.request()
            self._producer._end(exchange)
            while self._producer._may_wait() and not isinstance(exchange.outbox.take(), list):
                pass


class Answer:
    """An answer that is asked for: its pieces as they come, and its whole reply.

        for piece in answer: ...        async for piece in answer: ...
        reply = answer.reply()          reply = await answer
        print(answer)

    Nothing happens before the first piece is asked for: then the prompt is made, which may be
    refused, and the engine is used until the answer ends. On an event loop the prompt is made
    in a thread of its own. `with` and `async with` close it; so does dropping
    the last reference, and cancelling the task that reads it. An answer that is never read
    leaves no trace. From any thread, but one may read at a time. `str(answer)` is the text of
    `answer.reply()`: it reads what is left, and waits for it.
    """

    def __init__(self, exchange: Exchange, producer: Producer) -> None:
        self._exchange = exchange
        self._producer = producer
        self._own_process = OwnProcess()
        self._last_end = _LastEnd(exchange, producer, self._own_process)
        self._is_read = False  # whether a thread or a task waits for a piece
        self._error: BaseException | None = None  # that ended it, until it is raised
        self._rest: deque[Piece] | None = None  # once it is over: what is left to read

    def __str__(self) -> str:
        return self.reply().text

    def __repr__(self) -> str:
        result = self._exchange.result
        return f"<Answer, {'not read to its end' if result is None else repr(result[0])}>"

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Piece:
        """The next piece. Raises EngineError while another thread or a task waits for one."""
        if self._may_read():
            try:
                self._is_read = True
                self._begin(is_main=threading.current_thread() is threading.main_thread())
                while self._rest is None:
                    told = self._exchange.outbox.take()
                    if callable(told):
                        self._fails(_error_of(told))
                    elif (piece := self._taken(told)) is not None:
                        return piece
                    del told  # an error that is raised here has this frame
            except BaseException:  # Ctrl-C
                self.close()
                raise
            finally:
                self._is_read = False
        self._wait()
        return self._last(StopIteration())

    def reply(self) -> Reply:
        """Read what is left; the whole answer, also of the pieces that were read before.

        Of one that was cancelled or closed it is what had been said. Raises EngineError while
        another thread or a task waits for a piece, and where it was refused.
        """
        for _ in self:
            pass
        return self._exchange.reply()

    def cancel(self) -> None:
        """End it within one decode, without waiting; before its first token if it is unread.

        From any thread, and for a signal handler. Whoever reads gets the end of the pieces, and
        a reply of what had been said, its finish_reason "cancelled".
        """
        self._exchange.cancellation.request()
        if self._exchange.is_asked and self._own_process.is_this():
            self._producer._end(self._exchange)

    def close(self) -> None:
        """Cancel it, and wait until the engine is free. Idempotent, from any thread.

        Afterwards it has no more pieces.
        """
        self.cancel()
        self._wait()
        self._rest, self._error = deque(), None

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Piece:
        """The next piece. Raises EngineError while another task or a thread waits for one."""
        if self._may_read():
            try:
                self._is_read = True
                self._begin(is_main=False)
                while self._rest is None:
                    told = await self._exchange.outbox.take_soon()
                    if callable(told):
                        self._fails(await _error_in_thread(told))
                    elif (piece := self._taken(told)) is not None:
                        return piece
                    del told  # an error that is raised here has this frame
            except GeneratorExit:  # its event loop is closed, and nothing can be awaited
                self._leave()
                raise
            except BaseException:  # the task is cancelled
                await self._close_soon()
                raise
            finally:
                self._is_read = False
        await self._wait_soon()
        return self._last(StopAsyncIteration())

    def __await__(self) -> Generator[Any, None, Reply]:
        return self._whole_reply().__await__()

    async def _whole_reply(self) -> Reply:
        async for _ in self:
            pass
        return self._exchange.reply()

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is GeneratorExit:  # as while it is read
            self._leave()
        else:
            await self._close_soon()

    def __del__(self) -> None:
        if not hasattr(self, "_rest"):  # Ctrl-C came while it was made, or it cannot be copied
            return
        if self._exchange.is_asked and self._rest is None:
            self._leave()  # Ctrl-C amid this is passed over: see `_LastEnd`

    def _leave(self) -> None:
        """Cancel it, and wait until the engine is free, unless that needs this thread."""
        self.cancel()
        if self._producer._may_wait():
            self._wait()

    def _may_read(self) -> bool:
        """Whether there may be more to read here.

        Raises EngineError where it is read elsewhere, and ForkedError.
        """
        if self._rest is not None:
            return False
        self._own_process.require("the engine")
        is_ended = self._exchange.cancellation.is_requested
        if self._is_read and not is_ended:
            raise EngineError(
                "the answer is being read elsewhere, by another thread or another task",
                "Read it in one place, and stop it with its cancel() or close().",
            )
        return not self._is_read and (self._exchange.is_asked or not is_ended)

    def _begin(self, *, is_main: bool) -> None:
        """Have it started, the first time that it is read. is_main: by the main thread."""
        exchange = self._exchange
        if exchange.is_asked:
            return
        exchange.is_of_main, exchange.is_asked = is_main, True
        try:
            self._producer._start(exchange)
        except Exception:
            exchange.is_over, self._rest = True, deque()
            raise

    def _taken(self, told: ForReader) -> Piece | None:
        """The piece that the reader was told, if it is one for it; a call is passed over."""
        if isinstance(told, Piece):
            if not self._exchange.takes(told):
                return None
            self._producer._read_on(self._exchange)
            return told
        if isinstance(told, BaseException):
            self._fails(told)
        elif isinstance(told, list):
            self._exchange.outbox.put([])  # for whoever else waits for the end
            if self._rest is None:
                self._rest = deque(told)
        return None

    def _fails(self, error: BaseException | None) -> None:
        """Have it end if something ended it, which is raised when that is done."""
        if error is None:
            return
        if not isinstance(error, StopIteration):
            self._error = error
        if self._exchange.has_begun:
            self._exchange.cancellation.request()
        self._producer._end(self._exchange)

    def _wait(self) -> None:
        """Wait until it is over."""
        self._leave_unbegun()
        while self._rest is None:
            self._taken(self._exchange.outbox.take())

    async def _wait_soon(self) -> None:
        self._leave_unbegun()
        while self._rest is None:
            self._taken(await self._exchange.outbox.take_soon())

    def _leave_unbegun(self) -> None:
        """End it here where nothing else has to."""
        if not self._exchange.is_asked:
            self._exchange.abandon()
        if not (self._exchange.is_asked and self._own_process.is_this()):
            self._rest = deque()

    async def _close_soon(self) -> None:
        """The engine is free when it returns or raises, however often it is cancelled."""
        self.cancel()
        cancelled = None
        while self._rest is None:
            try:
                await self._wait_soon()
            except asyncio.CancelledError as error:
                cancelled = error
        self._rest, self._error = deque(), None
        if cancelled is not None:
            raise cancelled

    def _last(self, end: Exception) -> Piece:
        """The next piece of one that is over, which was not read yet.

        Raises what ended it, and then the end of the iteration.
        """
        if self._rest:
            return self._rest.popleft()
        error, self._error = self._error, None
        try:
            raise error or end
        finally:
            del error, end  # which have this frame


def _error_of(call: Callable[[], None]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None


async def _error_in_thread(call: Callable[[], None]) -> BaseException | None:
    """The exception of a call in a daemon thread, which does not outlive the interpreter."""
    found: Outbox[BaseException | None] = Outbox()
    threading.Thread(
        target=lambda: found.put(_error_of(call)), name="localspec-async", daemon=True
    ).start()
    return await found.take_soon()
