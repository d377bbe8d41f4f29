"""The thread that computes for an engine, and what goes between it and whoever reads."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import BusyError, EngineError
from localspec.llama.joint_costs import LONGEST_STEP, PieceTimes, RowTimes
from localspec.pictures.cells import end_of_part, has_cells
from localspec.sampling.distribution import Logits
from localspec.speculative.model import Decode
from localspec.streaming.exchange import Exchange
from localspec.streaming.reply import Piece
from localspec.streaming.waiting import taken

if TYPE_CHECKING:
    from localspec.llama.handle import Handle

Found = TypeVar("Found")

# What produces an answer. It is sent the rows of each decode; the reader makes the calls.
ReaderCall = Callable[[], None]
Producing = Generator[Decode | Piece | ReaderCall, Any, None]
Inbox = SimpleQueue[Callable[[], object] | None]  # None ends the thread

_BUSY = "the engine is producing another answer"
_ASKED = "the last question of this conversation is still being answered"
_WAIT = "Finish or close that answer first, or wait in line for it: queue=True."
# Seconds of reading with one step of others between two pieces of a prompt; later they have as
# much time as the pieces. What is read soon is written along, not later and alone.
_HURRY_S = 5.0

logger = logging.getLogger(__name__)


class LaneWork:
    """The work of a lane: its answer, which decode that needs next, and its text's time.

    exchange: of the answer; None while the lane is free. waited_s: seconds spent waiting for
    other texts. Each text of a joint decode is charged an equal part. num_shared: decodes that
    were joint or waited for.
    """

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.producing: Producing | None = None  # the answer, until that has ended
        self.decode: Decode | None = None
        self.reading_s = 0.0  # spent so far on the current prompt
        self.is_paused = False  # until its reader has read on
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

    def free(self) -> None:
        """Have no answer any more; what produced it is closed."""
        producing, self.producing, self.decode = self.producing, None, None
        self.exchange, self.is_paused = None, False
        if producing is not None:
            producing.close()

    def ask(self, decode: Decode, num_decodes: int) -> None:
        """Ask for a decode, when there were so many."""
        self.decode = decode
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


class _Times:
    """Times of a context's decodes."""

    def __init__(self) -> None:
        self.rows = RowTimes()
        self.pieces = PieceTimes()
        self.step_s = 0.0  # the last step


class Worker:
    """The thread in which an engine computes, and its inbox.

    As many answers as there are lanes run at once; others wait in line, first come, first
    served, or are refused. A conversation has one answer at a time. The decodes that answers
    need are made in turns, and at once where that is faster. Idle work makes way for whatever
    is asked. While there is nothing to do it keeps nothing of the engine. num_asked: answers
    and wishes to end that were asked for, which idle work follows.
    """

    def __init__(self, num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self.num_asked = 0
        self._inbox: Inbox = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last_thread: threading.Thread | None = None  # also one that was told to end
        self._starting = threading.RLock()  # a signal handler may come to it within itself
        self._line: list[tuple[Exchange, Callable[[], None]]] = []  # who waits, and what then
        self.admitted: list[Exchange] = []  # until they are over
        self._make_way: Callable[[], None] | None = None  # ends idle work
        self._active: list[LaneWork] = []
        self._num_decodes = 0
        self._times: weakref.WeakKeyDictionary[Handle, _Times] = weakref.WeakKeyDictionary()
        # What texts that write have still to get for the last piece of a prompt, and where that
        # was read; while a prompt has not taken long, a step there is enough.
        self._owed_s = 0.0
        self._read_in: Handle | None = None
        self._is_hurried = True

    # In any thread

    def ask(self, exchange: Exchange, go_on: Callable[[], None]) -> None:
        """Let an answer wait in line. go_on: what its reader does once it is admitted."""
        self.num_asked += 1
        self._put(lambda: self._join(exchange, go_on))

    def start(self, exchange: Exchange, begin: Callable[[], LaneWork]) -> None:
        """Have an answer produced that is admitted. begin: gives its lane, in the thread."""

        def work() -> None:
            if exchange.is_over:
                return
            try:
                exchange.begin()
                exchange.has_begun = True
                lane = begin()
            except Exception as error:
                exchange.outbox.put(error)
            else:
                self._active.append(lane)
                self._go_on(lane, None, None)

        self._put(work)

    def end(self, exchange: Exchange) -> None:
        """End an answer behind what was read of it, and tell its reader."""
        self._put(lambda: self._end(exchange))

    def wake(self) -> None:
        """Have it look again which answers may go on."""
        self._put(lambda: None)

    def alone(self, function: Callable[[], Found]) -> Found:
        """The function's result, called while no answer runs. Raises BusyError if one does."""

        def work() -> Found:
            if self.is_busy:
                raise BusyError(_BUSY, "Finish or close that answer first.")
            return function()

        return self.call(work)

    def use_idle_time(
        self,
        function: Callable[[], None],
        make_way: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Call a function while nothing is asked. make_way: ends it soon, from any thread."""

        def work() -> None:
            self._make_way = make_way
            try:
                if not self.is_busy and is_wanted() and self._inbox.empty():
                    function()
            finally:
                with self._starting:  # behind it nobody makes way
                    self._make_way = None

        if self._make_way is None:
            try:
                self.call(work, is_idle_work=True)
            except BaseException:
                with self._starting:
                    if self._make_way is make_way:
                        make_way()  # Ctrl-C has ended the waiting, and not the work
                raise

    @property
    def is_busy(self) -> bool:
        """Whether an answer runs or waits."""
        return bool(self.admitted or self._line)

    @property
    def is_this_thread(self) -> bool:
        """Whether this thread is the worker's, as where a collector of garbage runs in it."""
        return threading.current_thread() is self._last_thread

    def call(self, function: Callable[[], Found], *, is_idle_work: bool = False) -> Found:
        """The function's result, or what it raises, called between two decodes."""
        if self.is_this_thread:
            return function()
        results: SimpleQueue[Future[Found]] = SimpleQueue()

        def work() -> None:
            outcome: Future[Found] = Future()
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)
            results.put(outcome)
            del outcome  # an error has this frame

        self._put(work, is_idle_work=is_idle_work)
        return taken(results).result()

    def stop(self) -> None:
        """End the thread, once what it was given is done. More to do starts another."""
        with self._starting:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _put(self, work: Callable[[], object], *, is_idle_work: bool = False) -> None:
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
            if self._make_way is not None and not is_idle_work:
                self._make_way()

    # In the thread

    def _run(self, inbox: Inbox, before: threading.Thread | None) -> None:
        if before is not None:  # it may have been told to end, and still compute
            before.join()
        while True:
            self._resume()
            try:
                work = inbox.get(block=all(lane.is_paused for lane in self._active))
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

    def _join(self, exchange: Exchange, go_on: Callable[[], None]) -> None:
        """Let an answer in, or wait in line, or be refused."""
        if exchange.is_over:
            return
        entry = (exchange, go_on)
        self._line.append(entry)
        self._admit()
        if entry not in self._line:
            return
        same = [each for each in self._others(exchange) if each.owner is exchange.owner]
        is_asked = exchange.owner is not None and bool(same)
        before = same if is_asked else self.admitted
        error: Exception | None = None
        if not exchange.options.queue:
            error = BusyError(_ASKED if is_asked else _BUSY, _WAIT)
        elif exchange.is_of_main and all(each.is_of_main for each in before):
            error = EngineError(
                "this thread waits for an answer that it has to read to its end itself",
                "Finish or close that answer first, or read it in a thread of its own.",
            )
        if error is not None:
            self._line.remove(entry)
            exchange.outbox.put(error)

    def _others(self, exchange: Exchange) -> list[Exchange]:
        """The answers that run, and those that wait before one."""
        waiting = [each for each, _ in self._line]
        return [*self.admitted, *waiting[: waiting.index(exchange)]]

    def _admit(self) -> None:
        """Let in those that need not wait any more."""
        for entry in self._line[:]:
            if len(self.admitted) >= self.num_lanes:
                return
            exchange, go_on = entry
            owners = [each.owner for each in self._others(exchange)]
            if exchange.owner is None or exchange.owner not in owners:
                self._line.remove(entry)
                self.admitted.append(exchange)
                exchange.is_admitted = True
                exchange.outbox.put(go_on)

    def _end(self, exchange: Exchange) -> None:
        if exchange.is_over:
            exchange.outbox.put([])
            return
        self._line = [entry for entry in self._line if entry[0] is not exchange]
        rest: list[Piece] = []
        try:
            for lane in self._active[:]:
                if lane.exchange is exchange:
                    self._active.remove(lane)
                    lane.free()
            rest = exchange.conclude()
        finally:
            if exchange in self.admitted:
                self.admitted.remove(exchange)
            exchange.outbox.put(rest)
            exchange.is_over = True  # only now: who ends it again must find its result
            self._admit()

    def _resume(self) -> None:
        """Let answers go on whose readers have read on."""
        for lane in self._active[:]:
            if lane.is_paused and lane.exchange is not None and not lane.exchange.is_ahead:
                self._go_on(lane, None, None)

    def _go_on(self, lane: LaneWork, rows: Logits | None, error: BaseException | None) -> None:
        """Produce an answer up to its next decode, or as far as its reader follows."""
        assert lane.producing is not None
        assert lane.exchange is not None
        producing, lane.is_paused, lane.decode = lane.producing, False, None
        exchange = lane.exchange
        try:
            told = producing.send(rows) if error is None else producing.throw(error)
            while not isinstance(told, Decode):
                exchange.num_told += isinstance(told, Piece)
                exchange.outbox.put(told)
                if exchange.is_ahead:
                    lane.is_paused = True
                    return
                told = next(producing)
        except BaseException as raised:
            self._active.remove(lane)
            lane.free()
            # At its end one that is new, which keeps nothing of what produced it.
            is_end = isinstance(raised, StopIteration)
            exchange.outbox.put(StopIteration() if is_end else raised)
        else:
            lane.ask(told, self._num_decodes)
        finally:
            del error  # which has this frame

    def _try_step(self) -> None:
        try:
            self._step()
        except BaseException as error:  # of no decode, whose answer would have it
            asking = next(lane for lane in self._active if lane.decode is not None)
            self._go_on(asking, None, error)

    def _step(self) -> None:
        """Make one decode: of texts that write, or of a piece of a prompt."""
        asked = [(lane, lane.decode) for lane in self._active if lane.decode is not None]
        long = [each for each in asked if _is_long(each[1])]
        short = [each for each in asked if not _is_long(each[1])]
        if long and (not short or self._owed_s <= 0.0):
            self._read(*long[0], is_alone=not short)
            return
        # Drafts go before the target, where the texts meet again.
        decodes = (decode for _, decode in short)
        first = min(decodes, key=lambda d: (_model(d).num_weight_bytes, len(d.tokens)))
        handle = _model(first).handle
        self._write([each for each in short if _model(each[1]).handle is handle])

    def _write(self, asked: Sequence[tuple[LaneWork, Decode]]) -> None:
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
        for (lane, _), part in zip(asked, parts, strict=True):
            if part in chosen:
                lane.reading_s = 0.0
                lane.charge(took_s / len(chosen))
                error, part.error = part.error, None  # whose frames have the part
                self._served(lane, part.rows, error, is_joint=len(chosen) > 1)
                del error

    def _read(self, lane: LaneWork, decode: Decode, *, is_alone: bool) -> None:
        """Decode a piece of a prompt, and of its rest what no piece can be made of."""
        from localspec.llama.model import LlamaModel  # loads libllama

        model, tokens, num_logits = _model(decode), *decode[1:]
        times, started = self._times_of(model), time.perf_counter()
        size, rows = len(tokens), None
        error: BaseException | None = None
        if isinstance(model, LlamaModel):
            most = model.batch_size
            if self.num_lanes > 1:
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
        lane.reading_s += took_s
        self._owed_s, self._read_in = took_s, model.handle
        self._is_hurried = lane.reading_s <= _HURRY_S
        self._num_decodes += 1
        lane.charge(took_s)
        if is_whole or error is not None:
            self._served(lane, rows, error, is_joint=False)
        else:
            self._last(lane)
            lane.decode = decode._replace(tokens=tokens[size:])
        del error  # which has this frame

    def _served(
        self,
        lane: LaneWork,
        rows: Logits | None,
        error: BaseException | None,
        *,
        is_joint: bool,
    ) -> None:
        lane.go_on(self._num_decodes, is_joint=is_joint)
        self._last(lane)
        self._go_on(lane, rows, error)
        del error  # whose frames were called by this one

    def _last(self, lane: LaneWork) -> None:
        """Let others go before it next time."""
        self._active.remove(lane)
        self._active.append(lane)

    def _times_of(self, model: Any) -> _Times:
        return self._times.setdefault(model.handle, _Times())


def _model(decode: Decode) -> Any:
    """Its model, which is libllama's here."""
    return decode.model


def _is_long(decode: Decode) -> bool:
    """Whether it is part of a prompt, of which a piece is decoded at a time."""
    return len(decode.tokens) > LONGEST_STEP or has_cells(decode.tokens)
