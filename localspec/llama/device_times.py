"""What a device costs: the seconds of a trial, and what decides between devices."""

from __future__ import annotations

from typing import NamedTuple

TRIAL_TOKENS = 512  # that a trial reads at once
NUM_READ = 1000
NUM_WRITTEN = 200  # tokens, whose time decides
MUCH_SLOWER = 10  # times: such a device is not timed further


class Times(NamedTuple):
    """Seconds to read `TRIAL_TOKENS` tokens at once, and to write one."""

    read_s: float
    write_s: float

    @property
    def cost_s(self) -> float:
        """Seconds to read 1,000 tokens and to write 200."""
        return NUM_READ / TRIAL_TOKENS * self.read_s + NUM_WRITTEN * self.write_s

    def scaled(self, factor: float) -> Times:
        """So many times as long."""
        return Times(factor * self.read_s, factor * self.write_s)

    def plus(self, other: Times) -> Times:
        """With the other's time in addition."""
        return Times(self.read_s + other.read_s, self.write_s + other.write_s)

    def beyond(self, other: Times) -> Times:
        """What it takes longer than the other, 0 at least."""
        return Times(
            max(0.0, self.read_s - other.read_s), max(0.0, self.write_s - other.write_s)
        )
