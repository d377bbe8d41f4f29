"""What a text had of the machine, among others."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, eq=False)
class LaneTime:
    """What a text had of the machine. waited_s: seconds in which others had it instead.

    Of a joint decode each has an equal part. num_shared: decodes that were joint or waited for.
    last_s: when its last decode ended. reading_s: what the pieces of its prompt took that it
    reads.
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
    """A text's model, as it is known here. handle: of the context, which others share."""

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
