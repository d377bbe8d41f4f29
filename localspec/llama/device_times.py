"""The cost of a device: the seconds of a trial, and the figure that decides between devices."""

from __future__ import annotations

from typing import NamedTuple

TRIAL_TOKENS = 512  # tokens that a trial reads at once
# The device that reads and writes these numbers of tokens fastest is chosen.
NUM_READ = 1000
NUM_WRITTEN = 200
MUCH_SLOWER = 10  # a device slower by this factor is not timed further


class Times(NamedTuple):
    """Times of a model on a device."""

    read_s: float
    """Seconds to read `TRIAL_TOKENS` tokens at once."""

    write_s: float
    """Seconds to write one token."""

    @property
    def cost_s(self) -> float:
        """Seconds to read 1,000 tokens and to write 200."""
        return NUM_READ / TRIAL_TOKENS * self.read_s + NUM_WRITTEN * self.write_s

    def scaled(self, factor: float) -> Times:
        """The times multiplied by a factor."""
        return Times(factor * self.read_s, factor * self.write_s)

    def plus(self, other: Times) -> Times:
        """The sum of both times."""
        return Times(self.read_s + other.read_s, self.write_s + other.write_s)

    def beyond(self, other: Times) -> Times:
        """The time in excess of the other's, at least 0."""
        read_s = max(0.0, self.read_s - other.read_s)
        write_s = max(0.0, self.write_s - other.write_s)
        return Times(read_s, write_s)
