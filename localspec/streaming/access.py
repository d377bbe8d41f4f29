"""The right to work on an engine: so many answers at once, or something else, alone.

A conversation has a line of its own, for one answer at a time. Idle work makes way for an
answer.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable

from localspec.errors import BusyError, EngineError, Interrupted
from localspec.streaming.cancellation import CancelCheck, never

_LOOK_S = 0.05  # between two looks at whether a wait is cancelled


class LineSlot:
    """A slot in a line, and the right to work once it is the first.

    Over when it was ended, at the end of its `with` block at the latest; or when nobody keeps
    it, since an exception of a signal handler can come in front of that block.

    make_way: ends the work of this slot soon, for whoever comes; None if others have to wait.
    is_answer: whether it is for an answer, of which several may run at once.
    """

    def __init__(
        self,
        changed: threading.Condition,
        make_way: Callable[[], None] | None,
        *,
        is_answer: bool,
    ) -> None:
        self.make_way = make_way
        self.is_answer = is_answer
        self.is_over = False
        self.thread = 0  # that has taken it, or waits for it
        self._changed = changed

    @property
    def is_of_this_call(self) -> bool:
        """Whether this very thread has it for a call that it is in, and not for an answer."""
        return not self.is_answer and self.thread == threading.get_ident()

    @property
    def is_ended_here(self) -> bool:
        """Whether it is this very thread that would have to go on for it to be over.

        An answer's reader may be another thread of a pool each time; the main one is in none.
        """
        is_main = threading.current_thread() is threading.main_thread()
        return self.is_of_this_call or (is_main and self.thread == threading.get_ident())

    def end(self) -> None:
        """Let the next one work. Idempotent, also for a slot that was never taken."""
        self.is_over = True
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> LineSlot:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()


class Access:
    """The line for an engine or a conversation: its first may work. First come, first served.

    num_answers: as many of the first may work at once, if they are answers.
    """

    def __init__(self) -> None:
        self.num_answers = 1
        self._changed = threading.Condition()  # a signal handler may come to it within itself
        self._line: list[weakref.ref[LineSlot]] = []

    @property
    def slots(self) -> list[LineSlot]:
        """The slots that are not over, in their order."""
        with self._changed:
            slots = [slot for each in self._line if (slot := each()) and not slot.is_over]
            self._line = [weakref.ref(slot) for slot in slots]
        return slots

    def slot(
        self, make_way: Callable[[], None] | None = None, *, is_answer: bool = False
    ) -> LineSlot:
        """A slot that is not in the line yet. make_way, is_answer: see `LineSlot`."""
        return LineSlot(self._changed, make_way, is_answer=is_answer)

    def take(
        self,
        slot: LineSlot,
        refusal: Callable[[], BusyError],
        *,
        waits: bool = False,
        is_cancelled: CancelCheck = never,
    ) -> None:
        """Have the right, once idle work has ended; with waits also once others are over.

        Raises the refusal where it may not wait, Interrupted once it is cancelled while it
        waits, what `is_cancelled` raises, and EngineError where it would wait for itself.
        """
        slot.thread = threading.get_ident()
        with self._changed:
            self._line.append(weakref.ref(slot))
        while before := self._before(slot):
            first = before[0]
            if slot.make_way or not (first.make_way or waits):
                raise refusal()
            if is_cancelled():
                raise Interrupted("an answer was cancelled before its turn")
            if first.make_way:
                first.make_way()
            else:
                # It would wait for what only this thread could end.
                ended_here = [other.is_ended_here for other in before[: self.num_answers]]
                if all(ended_here) if slot.is_answer else any(ended_here):
                    raise EngineError(
                        "this thread waits for an answer that it has to read to its end itself",
                        "Finish or close that answer first, or read it in a thread of its own.",
                    )
            with self._changed:
                if self._before(slot):
                    self._changed.wait(_LOOK_S)

    def end_here(self) -> None:
        """End the slots that this thread has for calls that it is in."""
        for slot in self.slots:
            if slot.is_of_this_call:
                slot.end()

    def _before(self, slot: LineSlot) -> list[LineSlot]:
        """The slots in front of it, if it has to wait for any of them."""
        slots = self.slots
        before = slots[: slots.index(slot)] if slot in slots else slots
        has_room = len(before) < self.num_answers
        if slot.is_answer and has_room and all(other.is_answer for other in before):
            return []
        return before


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
