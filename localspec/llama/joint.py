"""The line for computing, where several texts share contexts and join their decodes.

Each text has a thread of its own, and there is no other: the first waiting thread becomes the
leader, and decodes for every text that can be joined with its own (`joint_costs`). One decode
runs at a time, of any context, since two would take each other's processors.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from localspec.errors import EngineError
from localspec.llama.alone import Alone, has_ended
from localspec.llama.joint_costs import Block, PieceTimes, RowTimes

LONGEST_STEP = 32  # tokens; a larger decode is part of a prompt
# Of the time of a context's last decode: how long the machine may idle at least until those
# come who had a part in it, and how long anybody waits for them at most.
_IDLE_SHARE = 0.1
_PATIENCE = 0.5
# Seconds of reading for which others have a step between two pieces; then, as much time as the
# pieces take. Who reads soon writes along, which takes less time than writing later and alone.
_HURRY_S = 5.0
_AT_WORK_S = 1.0  # after its last decode a text counts as one that will want another
_LOOK_S = 1.0  # between two looks, if nobody calls


@dataclass(slots=True, eq=False)
class LaneTime:
    """A text's share of the machine. waited_s: seconds spent waiting for other lanes.

    Each text of a joint decode is charged an equal part. num_shared: decodes that were joint or
    waited for. last_s: when its last decode ended. reading_s: time spent so far on the current
    prompt.
    """

    waited_s: float = 0.0
    num_shared: int = 0
    last_s: float = -1e9
    reading_s: float = 0.0
    _num_seen: int = 0  # of those that were shared

    def was_alone(self) -> bool:
        """Whether it had the machine for itself since this was asked last."""
        seen, self._num_seen = self._num_seen, self.num_shared
        return seen == self.num_shared

    def clock(self) -> float:
        """Seconds, monotonic, which stand still while others have the machine."""
        return time.perf_counter() - self.waited_s


class Computes(Protocol):
    """A text's model. handle: of the context, which other texts share."""

    lane: LaneTime

    @property
    def handle(self) -> Interruptible: ...

    @property
    def is_interrupted(self) -> bool: ...


class Interruptible(Protocol):
    """A context whose decode can be ended. graph_size: tokens that are computed at once."""

    graph_size: int

    def interrupt(self) -> None: ...

    def allow(self) -> None: ...


def _shut() -> threading.Lock:
    """Make a lock that is taken.

    A SimpleQueue waits for ever where a signal handler outlasts its timeout (CPython 3.11).
    """
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class Work:
    """A text's wish to decode, or to have all contexts for itself.

    decode: does it for itself and others, in their order; None for work alone. num_tokens: that
    it decodes. error: of its own part, once it is done.
    """

    model: Computes
    num_tokens: int
    waits: LaneTime
    decode: Callable[[Sequence[Work]], None] | None = None
    tokens: Sequence[int] = ()
    num_logits: int = 0
    sequence: int = 0
    takes_rows: bool = False
    may_pad: bool = True
    is_piece: bool = False  # of a prompt, of which more follows
    arrived_s: float = field(default_factory=time.perf_counter)
    began_s: float = 0.0
    is_passed: bool = False  # a decode went by that it could not be joined with
    is_taken: bool = False  # into a decode that runs
    is_done: bool = False
    has_left: bool = False
    error: BaseException | None = None
    called: threading.Lock = field(default_factory=_shut)  # released: to look again
    thread: int = 0  # that waits for it
    holder: FrameType | None = None  # whose block has all contexts

    def call(self) -> None:
        """Have its thread look again."""
        with contextlib.suppress(RuntimeError):  # it was called before, and has not looked yet
            self.called.release()

    @property
    def is_long(self) -> bool:
        """Whether it is part of a prompt."""
        return self.is_piece or self.num_tokens > LONGEST_STEP

    @property
    def is_whole(self) -> bool:
        """Whether it finished without error, so that its time may be used as a sample."""
        return self.is_done and self.error is None


class Computing:
    """The line of those who want to compute. most_tokens: of a piece of a prompt."""

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._changing = threading.Lock()
        self._line: list[Work] = []
        self._at_work: Work | None = None
        self._parts: list[Work] = []  # of the joint decode that runs
        self._running: tuple[Computes, ...] = ()  # whose decode can be ended
        # Held where that changes: else a late wish would end the next one's decode. A signal
        # handler may come to it within itself.
        self._ending = threading.RLock()
        # By context: who is waited for; what the last step took, and its end; prompts' pieces.
        self._expected: dict[Interruptible, set[LaneTime]] = {}
        self._last: dict[Interruptible, tuple[float, float]] = {}
        self._piece_times: dict[Interruptible, PieceTimes] = defaultdict(PieceTimes)
        self._row_times: dict[Interruptible, RowTimes] = defaultdict(RowTimes)
        self._num_rows = 0  # of the joint decode that runs
        self._idle_since = 0.0
        # The last piece of a prompt: whose, in which context, what it took; and that minus what
        # others had since, or 0 where that is enough.
        self._piece: tuple[LaneTime, Interruptible | None, float] = (LaneTime(), None, 0.0)
        self._owed_s = 0.0

    def end_if_unwanted(self) -> None:
        """End the running decode, waiting for none, if all who have a part are interrupted."""
        with self._ending:
            running = self._running
            if running and all(model.is_interrupted for model in running):
                running[0].handle.interrupt()

    def piece_size(self, model: Computes) -> int:
        """How many tokens of a long text to decode at once."""
        recent_s = time.perf_counter() - _AT_WORK_S
        steps = [work for work in tuple(self._line) if work.num_tokens and not work.is_long]
        writing = {work.model.lane for work in steps}
        expected = {lane for group in tuple(self._expected.values()) for lane in tuple(group)}
        # Who reads, too, waits for no next token.
        writing |= {each for each in expected if each.last_s > recent_s and not each.reading_s}
        is_alone = writing <= {model.lane}
        return min(self._piece_times[model.handle].size(is_alone=is_alone), self._most_tokens)

    def alone(
        self,
        model: Computes,
        num_tokens: int,
        lane: LaneTime | None = None,
        *,
        is_piece: bool = False,
    ) -> Alone[Work]:
        """In the block nobody else uses any context. num_tokens: that it decodes.

        lane: of the text that waits for that, if it is not the model's own. is_piece: whether
        it is part of a prompt however few these are. Raises as `decode` does.
        """
        work = Work(model, num_tokens, waits=lane or model.lane, is_piece=is_piece)
        return Alone(work, self._enter, self._leave)

    def _enter(self, work: Work) -> None:
        self._wait(work)
        self._begin((work.model,))

    def decode(self, work: Work) -> None:
        """Have it decoded, here or by another. Raises what came in the way of its own part.

        Raises EngineError in the midst of another decode of this thread: a signal handler and
        the collector of garbage come to that.
        """
        try:
            try:
                self._wait(work)
                if not work.is_done:
                    self._lead(work)
            finally:
                self._leave(work)
        finally:
            self._leave(work)  # Ctrl-C may have struck before the first began
        if work.error is not None:
            raise work.error

    def _begin(self, models: tuple[Computes, ...]) -> None:
        with self._ending:
            models[0].handle.allow()
            self._running = models
            self.end_if_unwanted()

    def _wait(self, work: Work) -> None:
        """Until it is done, or next."""
        has_waited, work.thread = False, threading.get_ident()
        self._pass_over(work)
        self._line.append(work)
        with self._changing:
            if len(self._line) == 1 and self._at_work is None and not self._waits(work):
                self._at_work, work.began_s = work, work.arrived_s
                return
            self._call_all()  # somebody may have waited for it
        while not work.is_done:
            patience_s = None
            with self._changing:
                if self._at_work is None:
                    first, patience_s = self._next()
                    if first is work:  # at once, so that no interrupted work began at 0
                        self._at_work, work.began_s = work, time.perf_counter()
                        break
                    if first is not None:  # who looked earlier may not know that it is
                        first.call()
            has_waited = True
            if not work.called.acquire(timeout=_LOOK_S if patience_s is None else patience_s):
                self._pass_over(work)
        work.began_s = time.perf_counter()
        if has_waited and not work.is_done:
            work.waits.waited_s += work.began_s - work.arrived_s
            work.waits.num_shared += 1

    def _pass_over(self, work: Work) -> None:
        """Take from the line the blocks that have ended without a word."""
        for other in tuple(self._line):
            if has_ended(other.holder, work.holder) and other is not work:
                self._leave(other)
            elif other.thread == work.thread and other is not work:
                raise EngineError(
                    "this thread is in the midst of what it computes for another answer",
                    "Ask in another thread, or when that answer has been read.",
                )

    def _waits(self, work: Work) -> bool:
        """Whether one that is alone in the line may have to wait for others to come."""
        expected = self._expected.get(work.model.handle, ())
        return work.is_long or (work.decode is not None and len(expected) > 1)

    def _next(self) -> tuple[Work | None, float | None]:
        """The next work to do; or None, and the seconds until there may be one."""
        now = time.perf_counter()
        soonest: float | None = None
        line = self._line
        if self._owed_s > 0.0:  # a step goes before the next piece
            line = sorted(line, key=lambda work: work.is_long)
        for work in line:
            if work.is_done or (work.is_long and soonest is not None):
                continue  # a piece of a prompt goes before nobody who only waits for others
            left_s = self._patience_s(work, now)
            if left_s <= 0.0:
                return work, None
            soonest = left_s if soonest is None else min(soonest, left_s)
        return None, soonest

    def _patience_s(self, work: Work, now: float) -> float:
        """How long it still waits for others; not above 0 if it does not."""
        idle_since = max(self._idle_since, work.arrived_s)
        if work.is_long:
            (last, _, piece_s), lane = self._piece, work.model.lane
            is_owing = lane is last or lane.reading_s > _HURRY_S
            is_owing &= 0.0 < self._owed_s < piece_s
            return idle_since + _IDLE_SHARE * piece_s - now if is_owing else 0.0
        if work.decode is None or work.is_passed:
            return 0.0
        handle = work.model.handle
        here = {
            each.model.lane
            for each in self._line
            if each.decode and not each.is_done and each.model.handle is handle
        }
        expected = self._expected.get(handle)
        if not expected or expected <= here:
            return 0.0
        last_s, ended_s = self._last.get(handle, (0.0, 0.0))
        # Between two decodes each does what this one did, by turns: Python runs one at a time.
        between_s = max(work.arrived_s - work.model.lane.last_s, 0.0)
        idle_s = max(_IDLE_SHARE * last_s, len(expected) * between_s)
        waits_since = max(work.arrived_s, ended_s)  # before, it waited for the machine
        left_s = min(idle_since + idle_s, waits_since + _PATIENCE * last_s) - now
        if left_s <= 0.0:
            expected &= here  # nobody waits for the others until they come again
        return left_s

    def _lead(self, work: Work) -> None:
        """Decode for all that can be joined."""
        with self._changing:
            parts = self._parts = self._joined(work)
        started = time.perf_counter()
        try:
            self._begin(tuple(part.model for part in parts))
            assert work.decode is not None
            work.decode(parts)
        finally:
            self._running = ()
            with self._changing:
                self._account(parts, started)

    def _joined(self, work: Work) -> list[Work]:
        """The works that are decoded with this one, which is the first; they are taken."""
        parts = [work]
        block = Block(work.sequence, work.sequence, work.num_tokens)
        left = [
            other
            for other in self._line
            if other.decode is not None
            and other.model.handle is work.model.handle
            and other.takes_rows == work.takes_rows
            and not (other is work or other.is_done or other.is_long or work.is_long)
        ]
        while found := next((o for o in left if self._fits(block, parts, o)), None):
            left.remove(found)
            parts.append(found)
            block = block.with_part(found.sequence, found.num_tokens)
        for other in left:
            other.is_passed = True
        for part in parts:
            part.is_taken = True
        self._num_rows = block.num_rows
        return parts

    def _fits(self, block: Block, parts: list[Work], other: Work) -> bool:
        """Whether another work is to be decoded with these."""
        wider = block.with_part(other.sequence, other.num_tokens)
        # The rows that heads read come in the order of the graphs, in which texts are mixed.
        if wider.num_rows > other.model.handle.graph_size:
            return False
        if wider.num_rows == sum(part.num_tokens for part in parts) + other.num_tokens:
            return True
        times = self._row_times.get(other.model.handle) if other.may_pad else None
        return times is not None and times.pays(
            [block.num_rows, other.num_tokens], wider.num_rows
        )

    def _account(self, parts: list[Work], started: float) -> None:
        """Charge the parts for the time that they had the machine."""
        now = time.perf_counter()
        handle = parts[0].model.handle
        if not parts[0].is_long:
            if all(part.is_whole for part in parts):
                self._row_times[handle].learn(self._num_rows, now - started)
            self._expected.setdefault(handle, set()).update(part.model.lane for part in parts)
        for part in parts:
            lane = part.model.lane
            if part is not parts[0]:
                lane.waited_s += started - part.arrived_s
            lane.waited_s += (now - started) * (1.0 - 1.0 / len(parts))
            lane.last_s = now
            if not parts[0].is_long:
                lane.reading_s = 0.0
            lane.num_shared += len(parts) > 1

    def _leave(self, work: Work) -> None:
        """Leave the line. Called twice: Ctrl-C may strike in the midst of the first time."""
        while not (work.has_left or self._has_left(work)):
            work.called.acquire()  # another decodes for it

    def _has_left(self, work: Work) -> bool:
        """Leave unless another decodes for it; whether it has left."""
        with self._changing:
            if work.is_taken and self._at_work is not work:
                return False
            if self._at_work is work:
                for part in self._parts:
                    part.is_taken = False  # and waits again if it was not done
                self._at_work, self._running, self._parts = None, (), []
                self._has_worked(work)
            if work in self._line:
                self._line.remove(work)
            self._call_all()
            work.has_left = True
            return True

    def _call_all(self) -> None:
        """Have everybody in the line look again."""
        for each in self._line:
            each.call()

    def _has_worked(self, work: Work) -> None:
        """Note when, and for how long."""
        now, lane = time.perf_counter(), work.model.lane
        took_s = now - work.began_s
        self._idle_since = lane.last_s = now
        if work.is_long:
            lane.reading_s += took_s
            self._piece, self._owed_s = (lane, work.model.handle, took_s), took_s
            if work.num_tokens and work.is_whole:  # else a picture was encoded
                step_s, _ = self._last.get(work.model.handle, (0.0, 0.0))
                self._piece_times[work.model.handle].learn(work.num_tokens, took_s, step_s)
            return
        if not (work.num_tokens and work.is_whole):
            return  # a state was kept or taken back
        self._last[work.model.handle] = took_s, now
        lane.reading_s = 0.0
        last, handle, _ = self._piece
        if lane is not last:
            is_step = work.model.handle is handle
            is_enough = is_step and last.reading_s <= _HURRY_S
            self._owed_s = 0.0 if is_enough else self._owed_s - took_s
