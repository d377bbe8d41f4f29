"""The requests that wait for a model: first come, first served, up to a limit."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from localspec.server.refusal import overloaded, stopping
from localspec.server.served_models import ServedModel


@dataclass(slots=True, eq=False)
class PlaceInLine:
    """A place in the line, for a model; None: for work on any of them, which is done alone.

    has_turn is set when its turn comes.
    """

    model: ServedModel | None
    has_turn: asyncio.Event = field(default_factory=asyncio.Event)


class WaitingLine:
    """First come, first served.

    The first has its turn, and with it those behind it that ask the same model, as many as that
    answers at once. num_waiting: how many may wait behind these. is_closed: nobody may join.
    """

    def __init__(self, num_waiting: int) -> None:
        self._num_waiting = num_waiting
        self._places: list[PlaceInLine] = []
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        """Whether no request has its turn or waits for it."""
        return not self._places

    @property
    def num_working(self) -> int:
        """How many have their turn."""
        return sum(each.has_turn.is_set() for each in self._places)

    def join(self, model: ServedModel | None) -> PlaceInLine:
        """A place at the end, to be given up with `leave`.

        Raises RequestError if too many wait, or the line is closed.
        """
        if self.is_closed:
            raise stopping()
        place = PlaceInLine(model)
        self._places.append(place)
        self.look()
        if self.position_of(place) > self._num_waiting:
            self._places.remove(place)
            raise overloaded(f"{self._num_waiting} requests are waiting already")
        return place

    def join_free(self, model: ServedModel) -> PlaceInLine | None:
        """A place that has its turn at once; None if there is none, or others wait for it."""
        if self.is_closed:
            return None
        place = PlaceInLine(model)
        self._places.append(place)
        self.look()
        if place.has_turn.is_set():
            return place
        self._places.remove(place)
        return None

    def close(self) -> None:
        """Refuse whoever joins from now on."""
        self.is_closed = True

    def leave(self, place: PlaceInLine) -> None:
        """Give up the place, anywhere in the line. Idempotent."""
        with contextlib.suppress(ValueError):
            self._places.remove(place)
        self.look()

    def look(self) -> None:
        """Give whoever may work now its turn; also called when a model was loaded."""
        model = self._places[0].model if self._places else None
        num_at_once = 1 if model is None else model.num_at_once
        for place in self._places[:num_at_once]:
            if place.model is not model:
                break
            place.has_turn.set()

    def position_of(self, place: PlaceInLine) -> int:
        """The place among the requests that wait, from 1 on; 0 when its turn has come."""
        waiting = [each for each in self._places if not each.has_turn.is_set()]
        return waiting.index(place) + 1 if place in waiting else 0
