"""The requests that wait for a model: first come, first served, up to a limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from localspec.server.refusal import RequestError, stopping


class PlaceInLine:
    """A place in the line. is_first is set when its turn comes."""

    def __init__(self, places: deque[PlaceInLine]) -> None:
        self._places = places
        self.is_first = asyncio.Event()

    @property
    def position(self) -> int:
        """How many requests are ahead, with the one that has its turn."""
        return self._places.index(self) if self in self._places else 0


class WaitingLine:
    """First come, first served. num_waiting: how many may wait behind the first."""

    def __init__(self, num_waiting: int) -> None:
        self._num_waiting = num_waiting
        self._places: deque[PlaceInLine] = deque()
        self._is_closed = False

    @property
    def is_empty(self) -> bool:
        """Whether no request has its turn or waits for it."""
        return not self._places

    def join(self) -> PlaceInLine:
        """A place at the end, to be given up with `leave`.

        Raises RequestError if too many wait, or the line is closed.
        """
        if self._is_closed:
            raise stopping()
        if len(self._places) > self._num_waiting:
            raise RequestError(
                f"{self._num_waiting} requests are waiting already",
                "Ask again later.",
                status=503,
                code="overloaded",
            )
        place = PlaceInLine(self._places)
        self._places.append(place)
        self._tell_first()
        return place

    def close(self) -> None:
        """Refuse whoever joins from now on."""
        self._is_closed = True

    def leave(self, place: PlaceInLine) -> None:
        """Give up the place, anywhere in the line. Idempotent."""
        with contextlib.suppress(ValueError):
            self._places.remove(place)
        self._tell_first()

    def _tell_first(self) -> None:
        if self._places:
            self._places[0].is_first.set()
