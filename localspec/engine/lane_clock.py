"""The time that one text takes, without the time that other texts take in between."""

from __future__ import annotations

import time


class LaneClock:
    """A lane's clock, which stands still while decodes of other lanes are made.

    Each text of a joint decode is charged an equal part of its time.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0
        """Seconds spent waiting for other texts."""

        self.num_shared = 0
        """Decodes that were joint, or waited for others."""

        self._num_seen = 0  # `num_shared` at the last call of `was_alone`
        self._wanted_s = 0.0  # when the decode was wanted
        self._num_before = 0  # decodes of all lanes at that time
        self._charged_s = 0.0  # seconds charged to this lane since then
        self._num_charged = 0  # decodes charged to this lane since then

    def now(self) -> float:
        """Seconds, monotonic."""
        return time.perf_counter() - self.waited_s

    def was_alone(self) -> bool:
        """Whether the lane had the machine to itself since the last call."""
        num_seen = self._num_seen
        self._num_seen = self.num_shared
        return num_seen == self.num_shared

    def want(self, num_decodes: int) -> None:
        """Note that a decode is wanted. num_decodes: of all lanes so far."""
        self._wanted_s = time.perf_counter()
        self._num_before = num_decodes
        self._charged_s = 0.0
        self._num_charged = 0

    def charge(self, seconds: float) -> None:
        """Charge the lane's part of the time of a decode."""
        self._charged_s += seconds
        self._num_charged += 1

    def done(self, num_decodes: int, *, is_joint: bool) -> None:
        """Note that the decode is made. num_decodes: of all lanes so far."""
        if is_joint or num_decodes - self._num_before > self._num_charged:
            elapsed_s = time.perf_counter() - self._wanted_s
            self.waited_s += max(elapsed_s - self._charged_s, 0.0)
            self.num_shared += 1
