"""The right to work on an engine: so many answers at once, or something else, alone.

A conversation has a line of its own, for one answer at a time. Idle work makes way for an
answer.

A signal handler can raise between any two instructions. So nobody gives a right back: a turn is
over when its work is over, and the next in line checks that.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from localspec.errors import BusyError, EngineError, Interrupted
from localspec.streaming.cancellation import CancelCheck, never

_LOOK_S = 0.05  # between two looks at whether a turn has come or is cancelled, if nobody calls

Work = TypeVar("Work", bound=Generator[Any, None, None])


class EngineTurn:
    """A place in a line, and the right to work once it is the first.

    Over when it was ended, or when the generator that it is for has come to its end in any way:
    returned, raised, closed or dropped. A `with` block ends it, and takes nothing: two in a
    row (`with turn, turn`) end it also where an exception comes in the way of one.

    make_way: ends the work of this turn soon, for whoever comes; None if others have to wait.
    is_shared: whether others of that kind may work at the same time.
    """

    def __init__(
        self,
        line: deque[EngineTurn],
        make_way: Callable[[], None] | None,
        *,
        is_shared: bool,
    ) -> None:
        self._line = line
        self.make_way = make_way
        self.is_shared = is_shared
        self.called: SimpleQueue[None] = SimpleQueue()
        self._has_ended = False
        self._work: weakref.ref[Generator[Any, None, None]] | None = None
        self._thread = 0

    def of(self, work: Work) -> Work:
        """The generator, whose end is the turn's from now on."""
        self._work = weakref.ref(work)
        return work

    @property
    def is_over(self) -> bool:
        """Whether the next one may work."""
        if self._has_ended or self._work is None:
            return self._has_ended
        work = self._work()
        return work is None or inspect.getgeneratorstate(work) == inspect.GEN_CLOSED

    @property
    def is_of_this_call(self) -> bool:
        """Whether this very thread has it for a call that it is in, and not for a generator."""
        return self._work is None and self._thread == threading.get_ident()

    @property
    def is_ended_here(self) -> bool:
        """Whether it is this very thread that would have to go on for it to be over.

        An answer's reader may be another thread of a pool each time; the main one is in none.
        """
        is_main = threading.current_thread() is threading.main_thread()
        return self.is_of_this_call or (is_main and self._thread == threading.get_ident())

    def join(self) -> None:
        """Be the last in the line."""
        self._thread = threading.get_ident()
        self._line.append(self)

    def end(self) -> None:
        """Let the next one work. Idempotent, also for a turn that was never taken."""
        self._has_ended = True
        with contextlib.suppress(ValueError):
            self._line.remove(self)
        for other in tuple(self._line):
            other.called.put(None)

    def __enter__(self) -> EngineTurn:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()


class Access:
    """The line for an engine or a conversation: its first may work. First come, first served.

    num_places: as many of the first may work at once, if they share it.
    """

    def __init__(self) -> None:
        self.num_places = 1
        self._line: deque[EngineTurn] = deque()  # of which every change is one call of C

    @property
    def is_free(self) -> bool:
        """Whether nobody works or waits."""
        return not self._present()

    def turn(
        self, make_way: Callable[[], None] | None = None, *, is_shared: bool = False
    ) -> EngineTurn:
        """A turn that is not in the line yet. make_way, is_shared: see `EngineTurn`."""
        return EngineTurn(self._line, make_way, is_shared=is_shared)

    def take(
        self,
        turn: EngineTurn,
        refusal: Callable[[], BusyError],
        *,
        waits: bool = False,
        is_cancelled: CancelCheck = never,
    ) -> None:
        """Have the turn, once idle work has ended; with waits also once others are over.

        Raises the refusal where it may not wait, Interrupted once it is cancelled while it
        waits, what `is_cancelled` raises, and EngineError where it would wait for itself.
        """
        turn.join()
        while before := self._before(turn):
            first = before[0]
            if turn.make_way or not (first.make_way or waits):
                raise refusal()
            if is_cancelled():
                raise Interrupted("an answer was cancelled before its turn")
            if first.make_way:
                first.make_way()
            else:
                # It would wait for what only this thread could end.
                ended_here = [other.is_ended_here for other in before[: self.num_places]]
                if all(ended_here) if turn.is_shared else any(ended_here):
                    raise EngineError(
                        "this thread waits for an answer that it has to read to its end itself",
                        "Finish or close that answer first, or read it in a thread of its own.",
                    )
            with contextlib.suppress(Empty):
                turn.called.get(timeout=_LOOK_S)

    @property
    def is_held_here(self) -> bool:
        """Whether this very thread is in a call that has it, which something interrupted."""
        return any(turn.is_of_this_call for turn in tuple(self._line))

    def end_here(self) -> None:
        """End the turns of this thread that no generator stands for."""
        for turn in tuple(self._line):
            if turn.is_of_this_call:
                turn.end()

    def _before(self, turn: EngineTurn) -> list[EngineTurn]:
        """The turns in front of it, if it has to wait for any of them."""
        present = self._present()
        before = present[: present.index(turn)] if turn in present else present
        has_room = len(before) < self.num_places
        if turn.is_shared and has_room and all(other.is_shared for other in before):
            return []
        return before

    def _present(self) -> list[EngineTurn]:
        """The turns that are not over."""
        present = []
        for turn in tuple(self._line):
            if not turn.is_over:
                present.append(turn)
                continue
            with contextlib.suppress(ValueError):  # another thread has seen it, too
                self._line.remove(turn)
        return present


_WAIT = "Finish or close that answer first, or wait in line for it: queue=True."
# Refusals: of another answer, of another in a conversation, and of anything but an answer.
busy = functools.partial(BusyError, "the engine is producing another answer", _WAIT)
still_answering = functools.partial(
    BusyError, "the last question of this conversation is still being answered", _WAIT
)
in_use = functools.partial(
    BusyError,
    "the engine is producing another answer",
    "Finish or close that answer first; an engine does one at a time.",
)
