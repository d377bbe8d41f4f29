"""The times of a model on a device, from a trial, and the cost that decides between devices."""

from __future__ import annotations

from typing import NamedTuple

TRIAL_TOKENS = 512  # tokens of a prompt that a trial reads at once
# The device is chosen that is fastest at an answer with a prompt of NUM_READ tokens, and
# NUM_WRITTEN tokens of its own.
NUM_READ = 1000
NUM_WRITTEN = 200
MUCH_SLOWER = 10  # a device slower by this factor is not timed further


class Times(NamedTuple):
    """Times of a model on a device, or of a part of its work."""

    read_s: float
    """Seconds to read `TRIAL_TOKENS` tokens at once."""

    write_s: float
    """Seconds to write one token."""

    @property
    def cost_s(self) -> float:
        """Seconds to read NUM_READ tokens and to write NUM_WRITTEN."""
        num_trials = NUM_READ / TRIAL_TOKENS
        return num_trials * self.read_s + NUM_WRITTEN * self.write_s

    def scaled(self, factor: float) -> Times:
        """Both times multiplied by a factor."""
        return Times(factor * self.read_s, factor * self.write_s)

    def plus(self, other: Times) -> Times:
        """The sums of the reading times and of the writing times."""
        return Times(self.read_s + other.read_s, self.write_s + other.write_s)

    def excess_over(self, other: Times) -> Times:
        """By how much each time is longer than the other's; 0 if it is not."""
        read_s = max(0.0, self.read_s - other.read_s)
        write_s = max(0.0, self.write_s - other.write_s)
        return Times(read_s, write_s)
