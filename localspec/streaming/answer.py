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
from localspec.streaming.record import AnswerRecord, ReaderItem, Reading, State
from localspec.streaming.reply import Ending, Piece, Reply
from localspec.system.fork_guard import OwnProcess

# What to write instead of names that answers of other libraries have, or that the reply has.
_INSTEAD = {
    **dict.fromkeys(
        ("choices", "content", "message", "output_text", "response"),
        "answer.reply().text",
    ),
    **{value.name: f"answer.reply().{value.name}" for value in fields(Reply)},
}


class Producer(Protocol):
    """What an `Answer` needs of the engine that produces it. No method waits."""

    @abc.abstractmethod
    def _start(self, record: AnswerRecord) -> None:
        """Put an answer in line. It is produced when its turn comes. Raises EngineError."""

    @abc.abstractmethod
    def _note_piece_read(self, record: AnswerRecord) -> None:
        """Note that the reader has read one more piece of the answer."""

    @abc.abstractmethod
    def _end(self, record: AnswerRecord) -> None:
        """End an answer after the last piece that was read. Idempotent.

        The record's outbox gets the `Ending`, perhaps only later.
        """

    @abc.abstractmethod
    def _may_wait(self) -> bool:
        """Whether this thread may wait for an ending: False in threads that make endings."""


class _BackupFinalizer:
    """Ends a dropped answer if Ctrl-C interrupted the answer's own finalizer.

    Python swallows an exception in a finalizer. An answer has the only reference to this
    object, so Python calls this finalizer right after the answer's own.
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
        self._backup_finalizer = _BackupFinalizer(record, producer, self._own_process)
        self._has_reader = False  # whether a thread or a task waits for a piece
        self._error: BaseException | None = None  # the error that ended it, until it is raised
        # The pieces that are still unread when the answer is over; None before that.
        self._last_pieces: deque[Piece] | None = None

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
        """The next piece. Raises EngineError while another thread or a task waits for one.

        After the last piece it raises the error that ended the answer, once, or StopIteration.
        """
        piece = self._read_piece(only_start=False)
        if piece is None:
            return self._take_last_piece(StopIteration())
        return piece

    def start(self) -> None:
        """Ask for the answer, and wait until it begins or is refused. Reads no piece.

        When it returns, the answer's turn has come, and its prompt is made and fits the
        context. So an application can refuse a request before it sends the first byte of a
        response. The engine produces a few pieces ahead: read the answer or close it.
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
        self._wait_for_end()
        self._last_pieces = deque()
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
        """The next piece. Raises EngineError while another task or a thread waits for one.

        After the last piece it raises the error that ended the answer, once, or
        StopAsyncIteration.
        """
        piece = await self._read_piece_async(only_start=False)
        if piece is None:
            return self._take_last_piece(StopAsyncIteration())
        return piece

    async def started(self) -> None:
        """Wait, on an event loop, until the answer begins or is refused: see `start`."""
        await self._read_piece_async(only_start=True)
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
        if kind is GeneratorExit:  # the event loop is closed: see `_read_piece_async`
            self._abandon()
        else:
            await self._close_async()

    def __del__(self) -> None:
        if not hasattr(self, "_last_pieces"):  # Ctrl-C came during `__init__`, or it was copied
            return
        if self._is_asked and self._last_pieces is None:
            self._abandon()  # Python swallows Ctrl-C here: see `_BackupFinalizer`

    def _abandon(self) -> None:
        """Cancel the answer, and wait until the engine is free, unless it needs this thread."""
        self.cancel()
        if self._producer._may_wait():
            self._wait_for_end()

    @property
    def _is_asked(self) -> bool:
        """Whether the first piece or the start was asked for."""
        return self._record.state > State.NEW

    def _may_read(self) -> bool:
        """Whether the outbox may have more pieces for the caller.

        Raises ForkedError in a fork, and EngineError while another thread or task reads, unless
        the answer is cancelled.
        """
        if self._last_pieces is not None:
            return False
        self._own_process.require("the engine")
        is_cancelled = self._record.cancellation.is_requested
        if not self._has_reader:
            return self._is_asked or not is_cancelled
        if is_cancelled:
            return False
        raise EngineError(
            "the answer is being read elsewhere, by another thread or another task",
            "Read it in one place, and stop it with its cancel() or close().",
        )

    def _read_piece(self, *, only_start: bool) -> Piece | None:
        """Wait for the next piece from the engine. Returns None once the answer is over.

        Then `_last_pieces` has its unread pieces, if any. An error closes the answer.

        Args:
            only_start: Whether to return None as soon as the answer has begun.
        """
        if self._may_read():
            try:
                self._has_reader = True
                self._ask(is_main=threading.current_thread() is threading.main_thread())
                while self._last_pieces is None:
                    if only_start and self._record.has_begun:
                        return None
                    piece = self._receive(self._record.outbox.take())
                    if piece is not None:
                        return piece
            except BaseException:  # Ctrl-C, or an error of `_ask`
                self.close()
                raise
            finally:
                self._has_reader = False
        self._wait_for_end()
        return None

    async def _read_piece_async(self, *, only_start: bool) -> Piece | None:
        """`_read_piece` on an event loop."""
        if self._may_read():
            try:
                self._has_reader = True
                self._ask(is_main=False)
                while self._last_pieces is None:
                    if only_start and self._record.has_begun:
                        return None
                    piece = self._receive(await self._record.outbox.take_async())
                    if piece is not None:
                        return piece
            except GeneratorExit:  # the event loop is closed, and nothing can be awaited
                self._abandon()
                raise
            except BaseException:  # the task is cancelled, or an error of `_ask`
                await self._close_async()
                raise
            finally:
                self._has_reader = False
        await self._wait_for_end_async()
        return None

    def _ask(self, *, is_main: bool) -> None:
        """Have the engine start the answer. Only the first call has an effect.

        If the engine raises an error, the answer is over, and the error is raised.

        Args:
            is_main: Whether the caller waits for the answer in the main thread.
        """
        record = self._record
        if not record.try_advance(State.NEW, State.ASKED):
            return
        record.place.is_read_by_main = is_main
        try:
            self._producer._start(record)
            if record.cancellation.is_requested:  # `cancel` came before the engine knew it
                self._producer._end(record)
        except Exception as error:
            record.fail(error)
            record.conclude(None)
            record.advance(State.OVER)
            self._last_pieces = deque()
            raise

    def _receive(self, item: ReaderItem) -> Piece | None:
        """Handle an item that the engine has put into the outbox.

        Returns:
            The item if it is a piece and the answer is not cancelled, else None.
        """
        record = self._record
        if isinstance(item, Piece):
            if not record.try_read(item):
                return None
            self._producer._note_piece_read(record)
            return item
        if isinstance(item, Reading):
            self._report(item)
        elif isinstance(item, Ending):
            record.outbox.put(item)  # for another thread that waits for the end
            if self._last_pieces is None:
                self._last_pieces = deque(item.last_pieces)
        else:
            self._end_production(item)
        return None

    def _report(self, reading: Reading) -> None:
        try:
            self._record.on_reading(reading)
        except BaseException as error:
            self._end_production(error)

    def _end_production(self, error: BaseException) -> None:
        """Have the engine end the answer, because of an error or because it is complete.

        Args:
            error: The error, which is raised once the answer is over; StopIteration for an
                answer that was produced to its end.
        """
        if not isinstance(error, StopIteration):
            self._error = error
            self._record.fail(error)
        if self._record.has_begun:  # else the answer is refused, not cancelled
            self._record.cancellation.request()
        self._producer._end(self._record)

    def _wait_for_end(self) -> None:
        """Wait until the answer is over."""
        self._end_without_engine()
        while self._last_pieces is None:
            self._receive(self._record.outbox.take())

    async def _wait_for_end_async(self) -> None:
        self._end_without_engine()
        while self._last_pieces is None:
            self._receive(await self._record.outbox.take_async())

    def _end_without_engine(self) -> None:
        """End the answer here if no engine will: it was never asked for, or this is a fork."""
        record = self._record
        if record.try_advance(State.NEW, State.OVER):
            record.conclude(None)
            self._last_pieces = deque()
        elif self._last_pieces is None and not self._own_process.is_this():
            self._last_pieces = deque()  # the engine's thread is in the other process

    async def _close_async(self) -> None:
        """`close` on an event loop. Cancelling the task does not shorten the wait.

        Raises CancelledError afterwards if the task was cancelled in the meantime.
        """
        self.cancel()
        cancelled_error = None
        while self._last_pieces is None:
            try:
                await self._wait_for_end_async()
            except asyncio.CancelledError as error:
                cancelled_error = error
        self._last_pieces = deque()
        self._error = None
        if cancelled_error is not None:
            raise cancelled_error

    def _require_begun(self) -> None:
        """Raise the error that refused the answer, if it was refused."""
        if not self._record.has_begun:
            self._error = self._error or self._record.failure
            self._raise_error()

    def _raise_error(self) -> None:
        """Raise the error that ended the answer, if there is one and it was not raised yet."""
        error = self._error
        self._error = None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame

    def _take_last_piece(self, stop: Exception) -> Piece:
        """Take the next of the pieces that are still unread when the answer is over.

        After the last of them, the first call raises the error that ended the answer, if there
        is one, and further calls raise `stop`.

        Args:
            stop: A StopIteration or a StopAsyncIteration.
        """
        if self._last_pieces:
            return self._last_pieces.popleft()
        self._raise_error()
        try:
            raise stop
        finally:
            del stop  # its traceback has this frame
