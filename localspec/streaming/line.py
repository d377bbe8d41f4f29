"""The line for an engine, or for all models of a server: which answers run and which wait.

It is in the process that asks. An admitted answer waits for nothing else: it gets a lane.
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
    """Called once, when the place is admitted, in the thread that joined, or that left and made
    room. It must not wait."""

    model: Hashable = None
    """The model that answers. A place waits until no place of another model is admitted."""

    conversation: object | None = None
    """The conversation. It has one answer at a time: while one of its places is admitted, its
    others wait, and later places of the line may overtake them."""

    client: str = ""
    """The client. Clients take turns, however many places each of them has."""

    is_read_by_main: bool = False
    """Whether the main thread reads the answer."""

    is_admitted: bool = field(default=False, init=False)
    """Set when its turn has come, and never reset."""


class Line:
    """The places of answers that run and of answers that wait. Safe to use from any thread.

    Waiting places are ordered in rounds: the first place of each client, then the second of
    each, and so on. A client's admitted places count as its first ones. Within a round, clients
    come in the order of their last admission; clients without one come first, in the order of
    their arrival.

    Args:
        num_at_once: Returns how many places with the given place's model may be admitted at a
            time.
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
        self._given_up: deque[Place] = deque()  # places that are still to be removed
        self._admitted: list[Place] = []
        self._waiting: list[Place] = []  # in the order of their arrival
        self._num_admissions = 0  # since the line was made
        # The number of the last admission of each client that has places.
        self._last_admissions: dict[str, int] = {}

    @property
    def num_admitted(self) -> int:
        """How many places are admitted."""
        return len(self._admitted)

    @property
    def num_places(self) -> int:
        """How many places are admitted or wait."""
        with self._lock:
            return len(self._admitted) + len(self._waiting)

    def join(
        self,
        place: Place,
        check_wait: Callable[[list[Place]], None] | None = None,
    ) -> bool:
        """Add a place, and admit it if it need not wait.

        Args:
            place: The new place.
            check_wait: Called with the places for which the new one would wait. If it raises,
                the new place has not joined.

        Returns:
            False if too many places wait. Then the new one has not joined.
        """

        def join_now(newly_admitted: list[Place]) -> bool:
            return self._join(place, check_wait, newly_admitted)

        return self._change(join_now)

    def _join(
        self,
        place: Place,
        check_wait: Callable[[list[Place]], None] | None,
        newly_admitted: list[Place],
    ) -> bool:
        """`join`, as a change for `_change`."""
        self._waiting.append(place)
        self._admit(newly_admitted)  # may admit others, too, if `num_at_once` has changed
        if place not in self._waiting:
            return True  # it is admitted, or a signal handler gave it up
        if self._most_waiting is not None and len(self._waiting) > self._most_waiting:
            self._waiting.remove(place)
            return False
        if check_wait is not None:
            try:
                check_wait(self._places_to_wait_for(place))
            except BaseException:
                self._waiting.remove(place)
                raise
        return True

    def join_if_free(self, place: Place) -> bool:
        """Add a place only if no other waits and it can be admitted at once.

        Returns whether it was added.
        """

        def join_now(newly_admitted: list[Place]) -> bool:
            if self._waiting or not self._has_room_for(place):
                return False
            self._admit_place(place)
            newly_admitted.append(place)
            return True

        return self._change(join_now)

    def leave(self, place: Place) -> None:
        """Give up a place, admitted or not, and admit the next ones. Idempotent."""
        place.on_admitted = None  # breaks a cycle: the callback may refer to the place
        self._given_up.append(place)
        self.admit()

    def admit(self) -> None:
        """Admit waiting places, after places were given up or `num_at_once` has changed."""
        with self._lock:
            if self._is_changing:
                return  # called within `_change` in this thread, which admits at its end
        self._change(self._admit)

    def _change(self, change: Callable[[list[Place]], Result]) -> Result:
        """Change the line while no other thread does, and notify the admitted places.

        Places that a signal handler gives up during the change are removed after it.

        Args:
            change: Changes the line, and appends the places that it admits to its argument.

        Returns:
            The result of `change`.
        """
        newly_admitted: list[Place] = []
        try:
            # No context manager of our own: Ctrl-C might strike before it releases the lock.
            with self._lock:
                self._is_changing = True
                try:
                    return change(newly_admitted)
                finally:
                    self._is_changing = False
        finally:
            _notify(newly_admitted)
            if self._given_up:
                self.admit()

    def position_of(self, place: Place) -> int:
        """The position of a waiting place, from 1 on; 0 for a place that does not wait."""
        with self._lock:
            order = self._order()
            if place in order:
                return order.index(place) + 1
            return 0

    def _places_to_wait_for(self, place: Place) -> list[Place]:
        """The places for which a waiting place waits.

        The earlier places of its conversation, if there are any, else all admitted places.
        """
        order = self._order()
        earlier = [*self._admitted, *order[: order.index(place)]]
        same = [other for other in earlier if _is_same_conversation(other, place)]
        return same or self._admitted[:]

    def _order(self) -> list[Place]:
        """The waiting places in the order of rounds and clients: see `Line`."""
        num_earlier_places = Counter(place.client for place in self._admitted)
        ranks: dict[Place, tuple[int, int]] = {}
        for place in self._waiting:
            round_number = num_earlier_places[place.client]
            last_admission = self._last_admissions.get(place.client, 0)
            ranks[place] = (round_number, last_admission)
            num_earlier_places[place.client] += 1
        return sorted(self._waiting, key=ranks.__getitem__)

    def _admit(self, newly_admitted: list[Place]) -> None:
        """Remove the places that were given up, and admit all that may run now.

        Args:
            newly_admitted: Gets the admitted places.
        """
        while self._given_up:
            self._remove(self._given_up.popleft())
        overtaken: list[Place] = []  # waiting places of conversations whose answer runs
        for place in self._order():
            if not self._has_room_for(place):
                break
            earlier = [*self._admitted, *overtaken]
            if any(_is_same_conversation(other, place) for other in earlier):
                overtaken.append(place)
                continue
            self._waiting.remove(place)
            self._admit_place(place)
            newly_admitted.append(place)

    def _remove(self, place: Place) -> None:
        for places in (self._admitted, self._waiting):
            if place in places:
                places.remove(place)
        self._forget_client(place.client)

    def _has_room_for(self, place: Place) -> bool:
        """Whether a place may be admitted: only its model runs, and below its limit."""
        is_same_model = all(other.model == place.model for other in self._admitted)
        return is_same_model and len(self._admitted) < self._num_at_once(place)

    def _admit_place(self, place: Place) -> None:
        place.is_admitted = True
        self._admitted.append(place)
        self._num_admissions += 1
        self._last_admissions[place.client] = self._num_admissions

    def _forget_client(self, client: str) -> None:
        """Forget a client's last admission if it has no place any more."""
        if all(place.client != client for place in (*self._admitted, *self._waiting)):
            self._last_admissions.pop(client, None)


def _is_same_conversation(place: Place, other: Place) -> bool:
    return place.conversation is not None and place.conversation is other.conversation


def _notify(admitted: list[Place]) -> None:
    """Call each place's `on_admitted`, and clear it, so that it is called once."""
    for place in admitted:
        on_admitted = place.on_admitted
        place.on_admitted = None
        if on_admitted is not None:
            on_admitted()
