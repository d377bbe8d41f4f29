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

        self._num_shared_before = 0  # `num_shared` at the last call of `was_alone`
        self._wanted_s = 0.0  # when the present decode was wanted
        self._num_decodes_before = 0  # decodes of all lanes at that time
        self._charged_s = 0.0  # seconds charged to this lane since then
        self._num_charged = 0  # decodes charged to this lane since then

    def now(self) -> float:
        """The time in seconds, monotonic, without the time spent waiting for other texts."""
        return time.perf_counter() - self.waited_s

    def was_alone(self) -> bool:
        """Whether no decode of this lane was joint, or waited, since the last call."""
        num_shared_before = self._num_shared_before
        self._num_shared_before = self.num_shared
        return self.num_shared == num_shared_before

    def want(self, num_decodes: int) -> None:
        """Note that the lane wants a decode. num_decodes: of all lanes so far."""
        self._wanted_s = time.perf_counter()
        self._num_decodes_before = num_decodes
        self._charged_s = 0.0
        self._num_charged = 0

    def charge(self, seconds: float) -> None:
        """Charge this lane for a decode: the seconds are the lane's part of its time."""
        self._charged_s += seconds
        self._num_charged += 1

    def done(self, num_decodes: int, *, is_joint: bool) -> None:
        """Note that the wanted decode is made.

        Args:
            num_decodes: The decodes of all lanes so far.
            is_joint: Whether it was made together with decodes of other lanes.
        """
        num_made = num_decodes - self._num_decodes_before  # also for other lanes
        if is_joint or num_made > self._num_charged:
            elapsed_s = time.perf_counter() - self._wanted_s
            self.waited_s += max(elapsed_s - self._charged_s, 0.0)
            self.num_shared += 1
