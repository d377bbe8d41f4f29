"""The thread that computes for an engine, and what goes between it and whoever reads."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

from localspec.fork_guard import OwnProcess
from localspec.llama.joint_costs import LONGEST_STEP, PieceTimes, RowTimes
from localspec.pictures.cells import end_of_part, has_cells
from localspec.sampling.distribution import Logits
from localspec.speculative.model import Decode
from localspec.streaming.reply import Piece
from localspec.streaming.waiting import taken

if TYPE_CHECKING:
    from localspec.llama.handle import Handle

Found = TypeVar("Found")

# What produces an answer. It is sent the rows of each decode; the reader makes the calls.
ReaderCall = Callable[[], None]
Producing = Generator[Decode | Piece | ReaderCall, Any, None]
Inbox = SimpleQueue[Callable[[], object] | None]  # None ends the thread

_MOST_AHEAD = 32  # pieces that an answer is ahead of its reader
# Seconds of reading with one step of others between two pieces of a prompt; later they have as
# much time as the pieces. What is read soon is written along, not later and alone.
_HURRY_S = 5.0

logger = logging.getLogger(__name__)


class TextClock:
    """A text's time. waited_s: seconds spent waiting for other texts.

    Each text of a joint decode is charged an equal part. num_shared: decodes that were joint or
    waited for.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.num_shared = 0
        self._num_seen = 0  # of these
        self._asked_s = self._own_s = 0.0
        self._num_before = self._num_own = 0  # decodes: of all when it asked, its own since

    def was_alone(self) -> bool:
        """Whether it had the machine for itself since this was asked last."""
        seen, self._num_seen = self._num_seen, self.num_shared
        return seen == self.num_shared

    def now(self) -> float:
        """Seconds, monotonic, which stand still while others have the machine."""
        return time.perf_counter() - self.waited_s

    def ask(self, num_decodes: int) -> None:
        """Note that a decode is asked for, when there were so many."""
        self._asked_s, self._own_s = time.perf_counter(), 0.0
        self._num_before, self._num_own = num_decodes, 0

    def charge(self, seconds: float) -> None:
        """Charge its part of the time of a decode."""
        self._own_s += seconds
        self._num_own += 1

    def go_on(self, num_decodes: int, *, is_joint: bool) -> None:
        """Go on with what was asked for, after so many decodes."""
        if is_joint or num_decodes - self._num_before > self._num_own:
            elapsed_s = time.perf_counter() - self._asked_s
            self.waited_s += max(elapsed_s - self._own_s, 0.0)
            self.num_shared += 1


class AnswerJob:
    """An answer that the worker produces, and its pieces on their way to the reader.

    producing: what does it, until it has ended. clock: of the text that it has.
    """

    def __init__(self) -> None:
        self.producing: Producing | None = None
        self.clock = TextClock()
        self.decode: Decode | None = None  # that it needs next
        self.reading_s = 0.0  # spent so far on the current prompt
        self.is_paused = False  # until its reader has read on
        self._own_process = OwnProcess()
        self._told: SimpleQueue[Piece | ReaderCall | BaseException | None] = SimpleQueue()
        self._num_told = self._num_read = 0  # pieces

    @property
    def is_ahead(self) -> bool:
        """Whether it is far enough ahead of its reader."""
        return self._num_told - self._num_read >= _MOST_AHEAD

    def tell(self, told: Piece | ReaderCall) -> None:
        """Hand that to the reader."""
        self._num_told += isinstance(told, Piece)
        self._told.put(told)

    def end(self, error: BaseException | None) -> None:
        """Tell the reader that it has ended, and why if not by itself."""
        self._told.put(error)

    def pieces(self, worker: Worker) -> Iterator[Piece]:
        """Read them, as they come. Raises what ended the answer, and ForkedError."""
        while True:
            self._own_process.require("the engine")
            told = taken(self._told)
            if told is None:
                return
            if isinstance(told, BaseException):
                raise told
            if not isinstance(told, Piece):
                told()
                continue
            self._num_read += 1
            if self.is_paused and not self.is_ahead:
                worker.wake()
            yield told


class _Times:
    """Times of a context's decodes."""

    def __init__(self) -> None:
        self.rows = RowTimes()
        self.pieces = PieceTimes()
        self.step_s = 0.0  # the last step


class Worker:
    """The thread in which an engine computes, and its inbox.

    The decodes that answers need are made in turns, and at once where that is faster. While
    there is nothing to do it keeps nothing of the engine. num_lanes: answers at once.
    """

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self._inbox: Inbox = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last_thread: threading.Thread | None = None  # also one that was told to end
        self._starting = threading.RLock()  # a signal handler may come to it within itself
        self._active: list[AnswerJob] = []
        self._num_decodes = 0
        self._times: weakref.WeakKeyDictionary[Handle, _Times] = weakref.WeakKeyDictionary()
        # What texts that write have still to get for the last piece of a prompt, and where that
        # was read; while a prompt has not taken long, a step there is enough.
        self._owed_s = 0.0
        self._read_in: Handle | None = None
        self._is_hurried = True

    # In any thread

    def start(self, job: AnswerJob, producing: Producing) -> None:
        """Have an answer produced."""

        def begin() -> None:
            job.producing = producing
            self._active.append(job)
            self._go_on(job, None, None)

        self._put(begin)

    def close(self, job: AnswerJob, end: Callable[[], Found]) -> Found | None:
        """End an answer, by a function whose result this is, once that is done.

        The worker's own thread, where a collector of garbage may come to this, does not wait.
        """

        def close() -> Found:
            producing = self._left(job)
            if producing is not None:
                producing.close()
                job.end(None)
            return end()

        if threading.current_thread() is self._thread:
            self._put(close)
            return None
        try:
            return self.call(close)
        except BaseException:  # of a signal handler, which may be passed over
            self.call(close)
            raise

    def wake(self) -> None:
        """Have it look again which answers may go on."""
        self._put(lambda: None)

    def call(self, function: Callable[[], Found]) -> Found:
        """The function's result, or what it raises, called between two decodes."""
        results: SimpleQueue[tuple[Found | None, BaseException | None]] = SimpleQueue()

        def work() -> None:
            try:
                results.put((function(), None))
            except BaseException as error:
                results.put((None, error))

        self._put(work)
        found, error = taken(results)
        if error is not None:
            raise error
        return cast(Found, found)

    def stop(self) -> None:
        """End the thread, once what it was given is done. More to do starts another."""
        with self._starting:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _put(self, work: Callable[[], object]) -> None:
        with self._starting:  # behind the word to end nothing would be done
            if self._thread is None:
                self._inbox = SimpleQueue()
                self._thread = self._last_thread = threading.Thread(
                    target=self._run,
                    args=(self._inbox, self._last_thread),
                    name="localspec-worker",
                    daemon=True,
                )
                self._thread.start()
            self._inbox.put(work)

    # In the thread

    def _run(self, inbox: Inbox, before: threading.Thread | None) -> None:
        if before is not None:  # it may have been told to end, and still compute
            before.join()
        while True:
            self._resume()
            try:
                work = inbox.get(block=all(job.is_paused for job in self._active))
            except Empty:
                self._try_step()
                continue
            if work is None:
                return
            try:
                work()
            except BaseException:
                logger.exception("what an engine was asked for failed")
            del work  # while it waits for more, it keeps nothing of the last

    def _resume(self) -> None:
        """Let answers go on whose readers have read on."""
        for job in self._active[:]:
            if job.is_paused and not job.is_ahead:
                self._go_on(job, None, None)

    def _left(self, job: AnswerJob) -> Producing | None:
        """Take an answer from the active ones; what produced it, if it had not ended."""
        if job in self._active:
            self._active.remove(job)
        producing, job.producing = job.producing, None
        return producing

    def _go_on(self, job: AnswerJob, rows: Logits | None, error: BaseException | None) -> None:
        """Produce an answer up to its next decode, or as far as its reader follows."""
        assert job.producing is not None
        producing, job.is_paused, job.decode = job.producing, False, None
        try:
            told = producing.send(rows) if error is None else producing.throw(error)
            while not isinstance(told, Decode):
                job.tell(told)
                if job.is_ahead:
                    job.is_paused = True
                    return
                told = next(producing)
        except StopIteration:
            self._left(job)
            job.end(None)
        except BaseException as raised:
            self._left(job)
            job.end(raised)
        else:
            job.decode = told
            job.clock.ask(self._num_decodes)

    def _try_step(self) -> None:
        try:
            self._step()
        except BaseException as error:  # not of a decode, whose answer would have it
            for job in self._active[:]:
                self._go_on(job, None, error)

    def _step(self) -> None:
        """Make one decode: of texts that write, or of a piece of a prompt."""
        asked = [(job, job.decode) for job in self._active if job.decode is not None]
        long = [each for each in asked if _is_long(each[1])]
        short = [each for each in asked if not _is_long(each[1])]
        if long and (not short or self._owed_s <= 0.0):
            self._read(*long[0], is_alone=not short)
            return
        # Drafts go before the target, where the texts meet again.
        first = min((decode for _, decode in short), key=lambda d: _model(d).num_weight_bytes)
        handle = _model(first).handle
        self._write([each for each in short if _model(each[1]).handle is handle])

    def _write(self, asked: Sequence[tuple[AnswerJob, Decode]]) -> None:
        """Decode for the first answer, and for others of the same model that can be joined."""
        # These load libllama.
        from localspec.llama.joint_decode import JointPart, decode_parts, joinable

        model, started = _model(asked[0][1]), time.perf_counter()
        times = self._times_of(model)
        parts = [JointPart(_model(decode), *decode[1:]) for _, decode in asked]
        chosen, num_rows = joinable(parts, times.rows)
        decode_parts(chosen)
        took_s = time.perf_counter() - started
        if all(part.error is None for part in chosen):
            times.rows.learn(num_rows, took_s)
            times.step_s = took_s
        is_enough = self._is_hurried and model.handle is self._read_in
        self._owed_s = 0.0 if is_enough else max(self._owed_s - took_s, 0.0)
        self._num_decodes += 1
        for (job, _), part in zip(asked, parts, strict=True):
            if part in chosen:
                job.reading_s = 0.0
                job.clock.charge(took_s / len(chosen))
                self._served(job, part.rows, part.error, is_joint=len(chosen) > 1)

    def _read(self, job: AnswerJob, decode: Decode, *, is_alone: bool) -> None:
        """Decode a piece of a prompt, and of its rest what no piece can be made of."""
        from localspec.llama.model import LlamaModel  # loads libllama

        model, tokens, num_logits = _model(decode), *decode[1:]
        times, started = self._times_of(model), time.perf_counter()
        size, rows = len(tokens), None
        error: BaseException | None = None
        if isinstance(model, LlamaModel):
            most = model.batch_size
            if self._num_lanes > 1:
                most = min(times.pieces.size(is_alone=is_alone), most)
            size = end_of_part(tokens, min(most, size))
        is_whole = size > len(tokens) - max(num_logits, 1)
        try:
            if is_whole:
                size, rows = len(tokens), model.decode(tokens, num_logits)
            else:
                model.read_piece(tokens[:size], len(tokens) - size)
        except BaseException as raised:
            error = raised
        took_s = time.perf_counter() - started
        if error is None and not has_cells(tokens[:size]):
            times.pieces.learn(size, took_s, times.step_s)
        job.reading_s += took_s
        self._owed_s, self._read_in = took_s, model.handle
        self._is_hurried = job.reading_s <= _HURRY_S
        self._num_decodes += 1
        job.clock.charge(took_s)
        if is_whole or error is not None:
            self._served(job, rows, error, is_joint=False)
        else:
            self._last(job)
            job.decode = decode._replace(tokens=tokens[size:])

    def _served(
        self,
        job: AnswerJob,
        rows: Logits | None,
        error: BaseException | None,
        *,
        is_joint: bool,
    ) -> None:
        job.clock.go_on(self._num_decodes, is_joint=is_joint)
        self._last(job)
        self._go_on(job, rows, error)

    def _last(self, job: AnswerJob) -> None:
        """Let others go before it next time."""
        self._active.remove(job)
        self._active.append(job)

    def _times_of(self, model: Any) -> _Times:
        return self._times.setdefault(model.handle, _Times())


def _model(decode: Decode) -> Any:
    """Its model, which is libllama's here."""
    return decode.model


def _is_long(decode: Decode) -> bool:
    """Whether it is part of a prompt, of which a piece is decoded at a time."""
    return len(decode.tokens) > LONGEST_STEP or has_cells(decode.tokens)
