"""The line for an engine, or for all models of a server: which answers are admitted or wait.

It is in the process that asks. Nothing after it makes an answer wait: an admitted answer gets a
lane.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class Place:
    """A place in a line, from `Line.join` until `Line.leave`."""

    on_admitted: Callable[[], object] | None
    """Called once, when its turn has come, by the thread that left. It must not wait."""

    model: Hashable = None
    """Places of one model are admitted together; one of another model waits for all of them."""

    conversation: object | None = None
    """A conversation has one answer at a time. Others may pass its waiting places."""

    client: str = ""
    """Clients take turns, independent of how many places each of them has."""

    is_of_main: bool = False
    """Whether the main thread reads the answer."""

    is_admitted: bool = field(default=False, init=False)


class Line:
    """The places of answers that run and of answers that wait. From any thread.

    Waiting places are ordered in rounds: the first place of each client, then the second of
    each, and so on. Places that are admitted count as a client's first ones. Within a round,
    clients come in the order of their last admission; clients without one come first, in the
    order of their arrival.

    Args:
        num_at_once: How many places of a place's model may be admitted at a time.
        most_waiting: How many places may wait; None for any number.
    """

    def __init__(
        self,
        num_at_once: Callable[[Place], int],
        most_waiting: int | None = None,
    ) -> None:
        self._num_at_once = num_at_once
        self._most_waiting = most_waiting
        # Reentrant: a signal handler or a finalizer may need it in the thread that holds it.
        self._lock = threading.RLock()
        self._is_changing = False  # whether the thread that holds the lock changes the places
        self._left: deque[Place] = deque()  # places that were given up and must be removed
        self._working: list[Place] = []
        self._waiting: list[Place] = []  # in the order of their arrival
        self._num_admitted = 0
        self._last_admitted: dict[str, int] = {}  # for each client that has places

    @property
    def num_working(self) -> int:
        """How many places are admitted."""
        return len(self._working)

    @property
    def num_there(self) -> int:
        """How many places are admitted or wait."""
        with self._lock:
            return len(self._working) + len(self._waiting)

    def join(self, place: Place, may_wait: Callable[[list[Place]], None] | None = None) -> bool:
        """Take a place, and admit it if it need not wait.

        Args:
            place: The new place.
            may_wait: Called with the places for which this one would wait; raises if it must
                not wait.

        Returns:
            False if too many places wait. Then this one has not joined.
        """

        def take(admitted: list[Place]) -> bool:
            return self._take(place, may_wait, admitted)

        return self._change(take)

    def _take(
        self,
        place: Place,
        may_wait: Callable[[list[Place]], None] | None,
        admitted: list[Place],
    ) -> bool:
        self._waiting.append(place)
        self._admit(admitted)  # may admit others, too, if `num_at_once` has changed
        if place not in self._waiting:
            return True  # it is admitted, or a signal handler gave it up
        if self._most_waiting is not None and len(self._waiting) > self._most_waiting:
            self._waiting.remove(place)
            return False
        if may_wait is not None:
            self._check(place, may_wait)
        return True

    def _check(self, place: Place, may_wait: Callable[[list[Place]], None]) -> None:
        try:
            may_wait(self._before(place))
        except BaseException:
            self._waiting.remove(place)
            raise

    def join_if_free(self, place: Place) -> bool:
        """Take a place only if it is admitted at once, and no other place waits."""

        def take(admitted: list[Place]) -> bool:
            if self._waiting or not self._may_work(place):
                return False
            self._admit_place(place)
            admitted.append(place)
            return True

        return self._change(take)

    def leave(self, place: Place) -> None:
        """Give up a place, admitted or not, and admit the next ones. Idempotent."""
        place.on_admitted = None  # breaks a cycle: the callback may refer to the place
        self._left.append(place)
        self.admit()

    def admit(self) -> None:
        """Admit waiting places, after places were given up or `num_at_once` has changed."""
        with self._lock:
            if self._is_changing:
                return  # a change runs in this thread, and admits at its end
        self._change(self._admit)

    def _change(self, change: Callable[[list[Place]], Result]) -> Result:
        """Change places while no other thread does.

        Places that a signal handler gives up in the meantime are removed at the end.

        Args:
            change: Changes them, and adds the places that it admits to its argument. Their
                `on_admitted` is called at the end.

        Returns:
            The result of `change`.
        """
        admitted: list[Place] = []
        try:
            # No context manager of our own: Ctrl-C might strike before it releases the lock.
            with self._lock:
                self._is_changing = True
                try:
                    return change(admitted)
                finally:
                    self._is_changing = False
        finally:
            _call(admitted)
            if self._left:
                self.admit()

    def position_of(self, place: Place) -> int:
        """The position of a waiting place, from 1 on; 0 for a place that does not wait."""
        with self._lock:
            order = self._order()
            if place in order:
                return order.index(place) + 1
            return 0

    def _before(self, place: Place) -> list[Place]:
        """The places for which a place waits: those of its conversation, else the admitted."""
        order = self._order()
        earlier = [*self._working, *order[: order.index(place)]]
        same = [other for other in earlier if _is_same_conversation(other, place)]
        return same or self._working[:]

    def _order(self) -> list[Place]:
        """The waiting places in the order in which they will be admitted."""
        num_places = Counter(place.client for place in self._working)
        ranks: dict[Place, tuple[int, int]] = {}
        for place in self._waiting:
            number = num_places[place.client]
            last_admitted = self._last_admitted.get(place.client, 0)
            ranks[place] = (number, last_admitted)
            num_places[place.client] += 1
        return sorted(self._waiting, key=ranks.__getitem__)

    def _admit(self, admitted: list[Place]) -> None:
        """Remove the places that have left, admit all that may run now, and list these."""
        while self._left:
            self._take_out(self._left.popleft())
        passed: list[Place] = []  # waiting places of conversations whose answer runs
        for place in self._order():
            if not self._may_work(place):
                break
            earlier = [*self._working, *passed]
            if any(_is_same_conversation(other, place) for other in earlier):
                passed.append(place)
                continue
            self._waiting.remove(place)
            self._admit_place(place)
            admitted.append(place)

    def _take_out(self, place: Place) -> None:
        for places in (self._working, self._waiting):
            if place in places:
                places.remove(place)
        self._forget_client(place.client)

    def _may_work(self, place: Place) -> bool:
        """Whether there is room for one more place, and for this one's model."""
        is_same_model = all(other.model == place.model for other in self._working)
        return is_same_model and len(self._working) < self._num_at_once(place)

    def _admit_place(self, place: Place) -> None:
        place.is_admitted = True
        self._working.append(place)
        self._num_admitted += 1
        self._last_admitted[place.client] = self._num_admitted

    def _forget_client(self, client: str) -> None:
        """Forget a client's last admission, unless it has more places."""
        if all(place.client != client for place in (*self._working, *self._waiting)):
            self._last_admitted.pop(client, None)


def _is_same_conversation(one: Place, other: Place) -> bool:
    return one.conversation is not None and one.conversation is other.conversation


def _call(admitted: list[Place]) -> None:
    for place in admitted:
        on_admitted = place.on_admitted
        place.on_admitted = None
        if on_admitted is not None:
            on_admitted()
