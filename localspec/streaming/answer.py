"""An answer: iterate over it, in threads or on an event loop, or take the whole reply."""

from __future__ import annotations

import abc
import asyncio
import threading
from collections import deque
from collections.abc import Generator
from dataclasses import fields
from typing import Any, NoReturn, Protocol

from localspec.errors import EngineError
from localspec.keywords import ForeignNames
from localspec.streaming.record import AnswerRecord, ForReader, Reading, State
from localspec.streaming.reply import Ending, Piece, Reply
from localspec.system.fork_guard import OwnProcess

# What to write instead of names that others have, or that the reply has.
_INSTEAD = {
    **dict.fromkeys(
        ("choices", "content", "message", "output_text", "response"),
        "answer.reply().text",
    ),
    **{each.name: f"answer.reply().{each.name}" for each in fields(Reply)},
}


class Producer(Protocol):
    """What an `Answer` needs of the engine that produces it. No method waits."""

    @abc.abstractmethod
    def _start(self, record: AnswerRecord) -> None:
        """Put an answer in line; it is produced when its turn comes. Raises EngineError."""

    @abc.abstractmethod
    def _read_on(self, record: AnswerRecord) -> None:
        """Note that one more piece of the answer was read."""

    @abc.abstractmethod
    def _end(self, record: AnswerRecord) -> None:
        """End an answer after the pieces that were read. Idempotent.

        The record's outbox gets the `Ending`.
        """

    @abc.abstractmethod
    def _may_wait(self) -> bool:
        """Whether this thread may wait for an ending: False in threads that make endings."""


class _LastEnd:
    """The backup finalizer of an answer: it ends the answer if Ctrl-C struck the first one.

    Python swallows an exception in a finalizer. This object is freed next, after the signal.
    """

    def __init__(
        self,
        record: AnswerRecord,
        producer: Producer,
        own_process: OwnProcess,
    ) -> None:
        self._record = record
        self._producer = producer
        self._own_process = own_process

    def __del__(self) -> None:
        if not hasattr(self, "_own_process"):  # Ctrl-C came during `__init__`
            return
        record = self._record
        is_at_work = State.NEW < record.state < State.OVER
        if not is_at_work or not self._own_process.is_this():
            return
        record.cancellation.request()
        self._producer._end(record)
        if self._producer._may_wait():
            item = record.outbox.take()
            while not isinstance(item, Ending):
                item = record.outbox.take()


class Answer(ForeignNames):
    """An answer that is asked for: its pieces as they come, and its whole reply.

        for piece in answer: ...        async for piece in answer: ...
        reply = answer.reply()          reply = await answer
        answer.start()                  await answer.started()
        print(answer)

    Nothing happens before one of these calls. Then the prompt is made, which may be refused,
    and the engine is used until the answer ends. `with` and `async with` close the answer; so
    does dropping the last reference, and cancelling the task that reads it. An answer that is
    never read leaves no trace. It may be used from any thread, but only one may read at a time.

    `str(answer)` is the text of `answer.reply()`: it reads the remaining pieces, and waits for
    them. If the answer has failed, it raises the error, each time.
    """

    _instead = _INSTEAD

    def __init__(self, record: AnswerRecord, producer: Producer) -> None:
        self._record = record
        self._producer = producer
        self._own_process = OwnProcess()
        self._last_end = _LastEnd(record, producer, self._own_process)
        self._is_read = False  # whether a thread or a task waits for a piece
        self._error: BaseException | None = None  # the error that ended it, until it is raised
        self._unread: deque[Piece] | None = None  # the last pieces, once the answer is over

    def __str__(self) -> str:
        reply = self.reply()
        if self._record.failure is not None:
            raise self._record.failure
        return reply.text

    def __repr__(self) -> str:
        reply = self._record.reply_if_over
        failure = self._record.failure
        if failure is not None:
            state = f"failed: {failure}"
        elif reply is not None:
            state = repr(reply)
        else:
            state = "not read to its end"
        return f"<Answer, {state}>"

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Piece:
        """The next piece. Raises EngineError while another thread or a task waits for one."""
        piece = self._read_piece(only_start=False)
        if piece is None:
            return self._unread_piece(StopIteration())
        return piece

    def start(self) -> None:
        """Ask for the answer, and wait until it begins or is refused, without reading a piece.

        When it returns, the answer's turn has come, and its prompt is made and fits the
        context. The engine produces a few pieces ahead: read the answer or close it. So an
        application can refuse a request before it sends the first byte of a response.
        On an event loop: `started`.

        Raises the error that refuses the answer, each time; EngineError while another thread or
        a task waits for a piece.
        """
        self._read_piece(only_start=True)
        self._require_begun()

    def reply(self) -> Reply:
        """Read the remaining pieces. Returns the whole answer, with the pieces read before.

        If the answer was cancelled or closed, or failed after it began, the reply has the
        pieces that were read.

        Raises the error that ended the answer, once; the error that refused it, each time; and
        EngineError while another thread or a task waits for a piece.
        """
        for _ in self:
            pass
        return self._record.reply()

    def cancel(self) -> None:
        """End the answer within one decode, without waiting.

        An answer that nobody has read yet ends before its first token. May be called from any
        thread and from a signal handler. The reader gets the end of the pieces, and a reply
        with the pieces that were read, whose finish_reason is "cancelled".
        """
        self._record.cancellation.request()
        if self._is_asked and self._own_process.is_this():
            self._producer._end(self._record)

    def close(self) -> None:
        """Cancel the answer, and wait until the engine is free. Idempotent, from any thread.

        Afterwards the answer has no more pieces.
        """
        self.cancel()
        self._wait()
        self._unread = deque()
        self._error = None

    def __reduce__(self) -> NoReturn:
        raise EngineError(
            "an answer cannot be copied or pickled: it is read once",
            "Keep its reply(), which can be.",
        )

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Piece:
        """The next piece. Raises EngineError while another task or a thread waits for one."""
        piece = await self._read_soon(only_start=False)
        if piece is None:
            return self._unread_piece(StopAsyncIteration())
        return piece

    async def started(self) -> None:
        """Wait, on an event loop, until the answer begins or is refused: see `start`."""
        await self._read_soon(only_start=True)
        self._require_begun()

    def __await__(self) -> Generator[Any, None, Reply]:
        return self._whole_reply().__await__()

    async def _whole_reply(self) -> Reply:
        async for _ in self:
            pass
        return self._record.reply()

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is GeneratorExit:  # the event loop is closed: see `_read_soon`
            self._leave()
        else:
            await self._close_soon()

    def __del__(self) -> None:
        if not hasattr(self, "_unread"):  # Ctrl-C came during `__init__`, or it was copied
            return
        if self._is_asked and self._unread is None:
            self._leave()  # if Ctrl-C strikes here, Python swallows it: see `_LastEnd`

    def _leave(self) -> None:
        """Cancel the answer, and wait until the engine is free, unless it needs this thread."""
        self.cancel()
        if self._producer._may_wait():
            self._wait()

    @property
    def _is_asked(self) -> bool:
        """Whether the first piece was asked for."""
        return self._record.state > State.NEW

    def _may_read(self) -> bool:
        """Whether the caller may read more.

        Raises EngineError if another thread or task reads, and ForkedError.
        """
        if self._unread is not None:
            return False
        self._own_process.require("the engine")
        is_ended = self._record.cancellation.is_requested
        if self._is_read and not is_ended:
            raise EngineError(
                "the answer is being read elsewhere, by another thread or another task",
                "Read it in one place, and stop it with its cancel() or close().",
            )
        return not self._is_read and (self._is_asked or not is_ended)

    def _read_piece(self, *, only_start: bool) -> Piece | None:
        """The next piece; None if the answer is over.

        Args:
            only_start: Whether to return None as soon as the answer has begun.
        """
        if self._may_read():
            try:
                self._is_read = True
                self._ask(is_main=threading.current_thread() is threading.main_thread())
                while self._unread is None:
                    if only_start and self._record.has_begun:
                        return None
                    piece = self._receive(self._record.outbox.take())
                    if piece is not None:
                        return piece
            except BaseException:  # Ctrl-C
                self.close()
                raise
            finally:
                self._is_read = False
        self._wait()
        return None

    async def _read_soon(self, *, only_start: bool) -> Piece | None:
        """`_read_piece` on an event loop."""
        if self._may_read():
            try:
                self._is_read = True
                self._ask(is_main=False)
                while self._unread is None:
                    if only_start and self._record.has_begun:
                        return None
                    piece = self._receive(await self._record.outbox.take_async())
                    if piece is not None:
                        return piece
            except GeneratorExit:  # its event loop is closed, and nothing can be awaited
                self._leave()
                raise
            except BaseException:  # the task is cancelled
                await self._close_soon()
                raise
            finally:
                self._is_read = False
        await self._wait_soon()
        return None

    def _ask(self, *, is_main: bool) -> None:
        """Have the engine start the answer, at the first call.

        Args:
            is_main: Whether the main thread asks.
        """
        record = self._record
        if not record.leaves(State.NEW, State.ASKED):
            return
        record.place.is_of_main = is_main
        try:
            self._producer._start(record)
            if record.cancellation.is_requested:  # `cancel` came before the engine knew it
                self._producer._end(record)
        except Exception as error:
            record.fail(error)
            record.conclude(None)
            record.advance(State.OVER)
            self._unread = deque()
            raise

    def _receive(self, item: ForReader) -> Piece | None:
        """Handle an item that the engine has put into the outbox. Returns a piece to read."""
        record = self._record
        if isinstance(item, Piece):
            if not record.takes(item):
                return None
            self._producer._read_on(record)
            return item
        if isinstance(item, Reading):
            self._report(item)
        elif isinstance(item, Ending):
            record.outbox.put(item)  # for another thread that waits for the end
            if self._unread is None:
                self._unread = deque(item.rest)
        else:
            self._fail(item)
        return None

    def _report(self, reading: Reading) -> None:
        try:
            self._record.on_reading(reading)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the answer: by an error, which is raised once it is over, or at its own end.

        Args:
            error: The error; StopIteration for the answer's own end.
        """
        if not isinstance(error, StopIteration):
            self._error = error
            self._record.fail(error)
        if self._record.has_begun:
            self._record.cancellation.request()
        self._producer._end(self._record)

    def _wait(self) -> None:
        """Wait until the answer is over."""
        self._leave_unbegun()
        while self._unread is None:
            self._receive(self._record.outbox.take())

    async def _wait_soon(self) -> None:
        self._leave_unbegun()
        while self._unread is None:
            self._receive(await self._record.outbox.take_async())

    def _leave_unbegun(self) -> None:
        """End the answer here if no engine will: it was never asked for, or this is a fork."""
        record = self._record
        if record.leaves(State.NEW, State.OVER):
            record.conclude(None)
            self._unread = deque()
        elif not self._own_process.is_this():  # the engine's thread is in the other process
            self._unread = deque()

    async def _close_soon(self) -> None:
        """`close` on an event loop. Cancelling the task does not shorten the wait."""
        self.cancel()
        cancelled = None
        while self._unread is None:
            try:
                await self._wait_soon()
            except asyncio.CancelledError as error:
                cancelled = error
        self._unread = deque()
        self._error = None
        if cancelled is not None:
            raise cancelled

    def _require_begun(self) -> None:
        """Raise the error that refused the answer, if it was refused."""
        if not self._record.has_begun:
            self._error = self._error or self._record.failure
            self._raise_error()

    def _raise_error(self) -> None:
        """Raise the error that ended the answer, if it was not raised before."""
        error = self._error
        self._error = None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame

    def _unread_piece(self, end: Exception) -> Piece:
        """The next unread piece of an answer that is over.

        After the last piece it raises the error that ended the answer, and then `end`.

        Args:
            end: The end of the iteration.
        """
        if self._unread:
            return self._unread.popleft()
        self._raise_error()
        try:
            raise end
        finally:
            del end  # its traceback has this frame
