"""The line for an engine, or for all models of a server: who is admitted, and who waits.

It is in the process that asks. What is behind it admits nobody: an answer that is admitted has
a lane.
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
    """Called once, when its turn has come, by the thread that made way. It must not wait."""

    model: Hashable = None
    """Places of one model are admitted together; one of another model waits for all of them."""

    conversation: object | None = None
    """A conversation has one answer at a time, others may pass those of it that wait."""

    client: str = ""
    """Clients take turns, however many places each of them has."""

    is_of_main: bool = False
    """Whether the main thread reads the answer."""

    is_admitted: bool = field(default=False, init=False)


class Line:
    """Places of those who work and of those who wait, from any thread.

    Waiting places are in rounds: the first of each client, then the second of each, and so on,
    where those that a client has at work count. In a round, clients that were admitted longest
    ago come first, and of those that were not yet, who came first.

    Args:
        num_at_once: how many places of this one's model may be admitted at a time.
        most_waiting: how many may wait; None for any number.
    """

    def __init__(
        self, num_at_once: Callable[[Place], int], most_waiting: int | None = None
    ) -> None:
        self._num_at_once = num_at_once
        self._most_waiting = most_waiting
        # A signal handler or a finalizer may come to it within itself.
        self._lock = threading.RLock()
        self._is_changing = False  # whether the thread that has the lock changes what follows
        self._left: deque[Place] = deque()  # places that were given up, and still have to go
        self._working: list[Place] = []
        self._waiting: list[Place] = []  # in the order of their arrival
        self._num_admitted = 0
        self._last_admitted: dict[str, int] = {}  # of clients that have places

    @property
    def num_working(self) -> int:
        """How many places are admitted."""
        return len(self._working)

    @property
    def num_there(self) -> int:
        """How many places there are, admitted or not."""
        with self._lock:
            return len(self._working) + len(self._waiting)

    def join(self, place: Place, may_wait: Callable[[list[Place]], None] | None = None) -> bool:
        """Take a place, and admit it if it need not wait.

        Args:
            place: the new place.
            may_wait: gets the places that this one would wait for; raises if it must not.

        Returns:
            False if too many wait. Then it has no place.
        """
        return self._change(lambda admitted: self._take(place, may_wait, admitted))

    def _take(
        self,
        place: Place,
        may_wait: Callable[[list[Place]], None] | None,
        admitted: list[Place],
    ) -> bool:
        self._waiting.append(place)
        self._admit(admitted)  # others, too, where `num_at_once` has changed
        if place not in self._waiting:
            return True  # it is admitted, or a signal handler has given it up
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
        """Take a place only if it is admitted at once, and nobody waits."""

        def take(admitted: list[Place]) -> bool:
            is_free = not self._waiting and self._may_work(place)
            if is_free:
                self._admit_place(place)
                admitted.append(place)
            return is_free

        return self._change(take)

    def leave(self, place: Place) -> None:
        """Give up a place, admitted or not, and admit those who may work now. Idempotent."""
        place.on_admitted = None  # it may have what has the place
        self._left.append(place)
        self.admit()

    def admit(self) -> None:
        """Admit those who may work now: places were given up, or `num_at_once` has changed."""
        with self._lock:
            if self._is_changing:
                return  # this thread is amid a change, which sees to it at its end
        self._change(self._admit)

    def _change(self, change: Callable[[list[Place]], Result]) -> Result:
        """Change places while no other thread does.

        Places that a signal handler gives up meanwhile go at the end.

        Args:
            change: does it, and adds the places that it admits to the list that it gets. They
                hear of it at the end.

        Returns:
            What `change` does.
        """
        admitted: list[Place] = []
        try:
            # No context manager of our own: Ctrl-C may strike before it has let go of the lock.
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
        """Its position among those who wait, from 1 on; 0 for a place that does not wait."""
        with self._lock:
            order = self._order()
            if place in order:
                return order.index(place) + 1
            return 0

    def _before(self, place: Place) -> list[Place]:
        """The places that a waiting one waits for: of its conversation if there are any."""
        order = self._order()
        earlier = [*self._working, *order[: order.index(place)]]
        same = [each for each in earlier if _is_same_conversation(each, place)]
        return same or self._working[:]

    def _order(self) -> list[Place]:
        """The waiting places in the order in which they will be admitted."""
        num_places = Counter(place.client for place in self._working)
        ranks: dict[Place, tuple[int, int]] = {}
        for place in self._waiting:
            ranks[place] = num_places[place.client], self._last_admitted.get(place.client, 0)
            num_places[place.client] += 1
        return sorted(self._waiting, key=ranks.__getitem__)

    def _admit(self, admitted: list[Place]) -> None:
        """Take out those who have left, admit all who may work now, and list these."""
        while self._left:
            self._take_out(self._left.popleft())
        passed: list[Place] = []  # of conversations that have an answer at work
        for place in self._order():
            if not self._may_work(place):
                break
            earlier = [*self._working, *passed]
            if any(_is_same_conversation(each, place) for each in earlier):
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
        is_of_model = all(each.model == place.model for each in self._working)
        return is_of_model and len(self._working) < self._num_at_once(place)

    def _admit_place(self, place: Place) -> None:
        place.is_admitted = True
        self._working.append(place)
        self._num_admitted += 1
        self._last_admitted[place.client] = self._num_admitted

    def _forget_client(self, client: str) -> None:
        """Forget when a client was admitted last, unless it has more places."""
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
