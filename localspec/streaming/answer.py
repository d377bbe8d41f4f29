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
        ("choices", "content", "message", "output_text", "response"), "answer.reply().text"
    ),
    **{each.name: f"answer.reply().{each.name}" for each in fields(Reply)},
}


class Producer(Protocol):
    """An engine, which produces answers, as far as an `Answer` knows it. Nothing here waits."""

    @abc.abstractmethod
    def _start(self, record: AnswerRecord) -> None:
        """Let an answer wait in line, and have it produced then. Raises EngineError."""

    @abc.abstractmethod
    def _read_on(self, record: AnswerRecord) -> None:
        """Note that one more of its pieces was read."""

    @abc.abstractmethod
    def _end(self, record: AnswerRecord) -> None:
        """Have it end after what was read. Its outbox gets the `Ending`. Idempotent."""

    @abc.abstractmethod
    def _may_wait(self) -> bool:
        """Whether this thread may wait for an ending: False in those that make it."""


class _LastEnd:
    """Ends an answer whose own finalizer Ctrl-C struck before it began to run.

    Python passes over an exception there. This is freed next, when the signal has been served.
    """

    def __init__(
        self, record: AnswerRecord, producer: Producer, own_process: OwnProcess
    ) -> None:
        self._record = record
        self._producer = producer
        self._own_process = own_process

    def __del__(self) -> None:
        if not hasattr(self, "_own_process"):  # Ctrl-C came while it was made
            return
        record = self._record
        is_at_work = State.NEW < record.state < State.OVER
        if is_at_work and self._own_process.is_this():
            record.cancellation.request()
            self._producer._end(record)
            while self._producer._may_wait() and not isinstance(record.outbox.take(), Ending):
                pass


class Answer(ForeignNames):
    """An answer that is asked for: its pieces as they come, and its whole reply.

        for piece in answer: ...        async for piece in answer: ...
        reply = answer.reply()          reply = await answer
        answer.start()                  await answer.started()
        print(answer)

    Nothing happens before one of these: then the prompt is made, which may be refused, and the
    engine is used until the answer ends. `with` and `async with` close it; so does dropping the
    last reference, and cancelling the task that reads it. An answer that is never read leaves
    no trace. From any thread, but one may read at a time. `str(answer)` is the text of
    `answer.reply()`: it reads the remaining pieces, and waits for them. For an answer that has
    failed it raises the error, each time.
    """

    _instead = _INSTEAD

    def __init__(self, record: AnswerRecord, producer: Producer) -> None:
        self._record = record
        self._producer = producer
        self._own_process = OwnProcess()
        self._last_end = _LastEnd(record, producer, self._own_process)
        self._is_read = False  # whether a thread or a task waits for a piece
        self._error: BaseException | None = None  # that ended it, until it is raised
        self._unread: deque[Piece] | None = None  # once it is over: the last pieces

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

        Its turn has come then, its prompt is made and fits the context, and it is produced up
        to a few pieces ahead: read it or close it. Before an application sends the first byte
        of a response it can still say that there is none. On an event loop: `started`.

        Raises what refuses the answer, each time; EngineError while another thread or a task
        waits for a piece.
        """
        self._read_piece(only_start=True)
        self._require_begun()

    def reply(self) -> Reply:
        """Read what is left; the whole answer, also of the pieces that were read before.

        Of one that was cancelled or closed, or has failed since it began, it is what had been
        said. Raises what refused the answer or ended it, and what refused it each time it is
        called; EngineError while another thread or a task waits for a piece.
        """
        for _ in self:
            pass
        return self._record.reply()

    def cancel(self) -> None:
        """End it within one decode, without waiting; before its first token if it is unread.

        From any thread, and for a signal handler. Whoever reads gets the end of the pieces, and
        a reply of what had been said, its finish_reason "cancelled".
        """
        self._record.cancellation.request()
        if self._is_asked and self._own_process.is_this():
            self._producer._end(self._record)

    def close(self) -> None:
        """Cancel it, and wait until the engine is free. Idempotent, from any thread.

        Afterwards it has no more pieces.
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
        if kind is GeneratorExit:  # as while it is read
            self._leave()
        else:
            await self._close_soon()

    def __del__(self) -> None:
        if not hasattr(self, "_unread"):  # Ctrl-C came while it was made, or it was copied
            return
        if self._is_asked and self._unread is None:
            self._leave()  # Ctrl-C amid this is passed over: see `_LastEnd`

    def _leave(self) -> None:
        """Cancel it, and wait until the engine is free, unless that needs this thread."""
        self.cancel()
        if self._producer._may_wait():
            self._wait()

    @property
    def _is_asked(self) -> bool:
        """Whether its first piece was asked for."""
        return self._record.state > State.NEW

    def _may_read(self) -> bool:
        """Whether there may be more to read here.

        Raises EngineError where it is read elsewhere, and ForkedError.
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
        """The next piece; None where the answer is over.

        Args:
            only_start: whether to return None as soon as it has begun.
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
        """Have the engine start it, the first time. is_main: whether the main thread asks."""
        record = self._record
        if not record.leaves(State.NEW, State.ASKED):
            return
        record.place.is_of_main = is_main
        try:
            self._producer._start(record)
            if record.cancellation.is_requested:  # before it was asked for: `cancel` let it be
                self._producer._end(record)
        except Exception as error:
            record.fail(error)
            record.conclude(None)
            record.advance(State.OVER)
            self._unread = deque()
            raise

    def _receive(self, item: ForReader) -> Piece | None:
        """Take what the engine has put into the outbox. Returns it if it is a piece to read."""
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
        """Have the answer end: by an error, which is raised once it is over, or by itself."""
        if not isinstance(error, StopIteration):
            self._error = error
            self._record.fail(error)
        if self._record.has_begun:
            self._record.cancellation.request()
        self._producer._end(self._record)

    def _wait(self) -> None:
        """Wait until it is over."""
        self._leave_unbegun()
        while self._unread is None:
            self._receive(self._record.outbox.take())

    async def _wait_soon(self) -> None:
        self._leave_unbegun()
        while self._unread is None:
            self._receive(await self._record.outbox.take_async())

    def _leave_unbegun(self) -> None:
        """End it here where nothing else has to."""
        record = self._record
        if record.leaves(State.NEW, State.OVER):
            record.conclude(None)
            self._unread = deque()
        elif not self._own_process.is_this():
            self._unread = deque()

    async def _close_soon(self) -> None:
        """The engine is free when it returns or raises, however often it is cancelled."""
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
        """Raise what refused the answer, if anything has."""
        if not self._record.has_begun:
            self._error = self._error or self._record.failure
            self._raise_error()

    def _raise_error(self) -> None:
        """Raise what the answer failed by, unless that was done before."""
        error = self._error
        self._error = None
        try:
            if error is not None:
                raise error
        finally:
            del error  # which has this frame

    def _unread_piece(self, end: Exception) -> Piece:
        """The next piece of one that is over, which was not read yet.

        Raises what ended it, and then the end of the iteration.
        """
        if self._unread:
            return self._unread.popleft()
        self._raise_error()
        try:
            raise end
        finally:
            del end  # which has this frame
