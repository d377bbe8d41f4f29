"""How much slower an answer's decodes are than the fastest such decodes on this machine.

A decode is compared with the fastest decodes of its size. A longer text takes more time, so
there is a fastest decode for each class of lengths. The other classes give upper bounds: a
decode takes no more time than after a longer text, and at most a known factor more than after a
shorter one. Where a size has not been measured, or only while the machine may have been busy,
the other sizes give bounds, too. So a text that is longer, or a decode that is larger, than all
before does not look like a busy machine.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

# The least number of decodes of an answer on which a slowdown is based
_FEWEST = 8
# The median of this number of decodes of a size in a row counts: a single one may be lucky
_IN_ROW = 3
# Decodes that take this factor longer than the fastest may be those of a busy machine
_SLOW = 1.5
# After this number of tokens a decode takes at most twice as long as after none. Attention
# takes the largest part of the time in small models: with the demo pair it doubles after about
# 400
_DOUBLING = 256
_CLASSES = 4  # classes of lengths for each doubling of that time
# A decode takes at most this factor longer than a larger one, whose kernel may be better
_WORSE_KERNEL = 2


class FastestDecodes:
    """The fastest decodes of a target, and the present answer's. All times are in seconds."""

    def __init__(self) -> None:
        self._fastest: dict[int, dict[int, float]] = {}
        """The shortest time of decodes of each size (in tokens), by the text's length class."""

        self._last: dict[int, deque[tuple[int, float]]] = {}
        """The last decodes of each size: length class and time."""

        self.reset()

    def reset(self) -> None:
        """Reset what belongs to one answer."""
        # As `_fastest`, of sizes that are new: until decodes of other sizes show that the
        # machine is not busy, these times may be slow ones
        self._unproven: dict[int, dict[int, float]] = {}
        self._num_compared = 0  # decodes
        self._spent_s = 0.0  # in these decodes
        self._fastest_s = 0.0  # that the fastest such decodes take
        # The same of those decodes whose size is not new
        self._num_known = 0
        self._known_spent_s = 0.0
        self._known_fastest_s = 0.0

    def learn(self, size: int, num_cached: int, seconds: float) -> None:
        """Learn from a decode of `size` tokens after a text of num_cached tokens."""
        num_doublings = math.log2(1.0 + num_cached / _DOUBLING)
        length = math.ceil(_CLASSES * num_doublings)
        last = self._last.setdefault(size, deque(maxlen=_IN_ROW))
        last.append((length, seconds))
        is_known = size in self._fastest or not self._fastest
        if len(last) == _IN_ROW:
            # The median bounds the time of the shortest text from above: longer ones take more.
            shortest = min(length for length, _ in last)
            typical_s = statistics.median(seconds for _, seconds in last)
            by_size = self._fastest if is_known else self._unproven
            fastest = by_size.setdefault(size, {})
            fastest_s = fastest.get(shortest, typical_s)
            fastest[shortest] = min(fastest_s, typical_s)
        if self._fastest:
            bound_s = self._bound_s(size, length)
            self._num_compared += 1
            self._spent_s += seconds
            self._fastest_s += bound_s
            if is_known:
                self._compare_known(seconds, bound_s)

    def _compare_known(self, seconds: float, fastest_s: float) -> None:
        """Compare a decode of a known size, which may prove the times of new sizes.

        Args:
            seconds: The decode's time.
            fastest_s: That of the fastest such decode.
        """
        self._num_known += 1
        self._known_spent_s += seconds
        self._known_fastest_s += fastest_s
        is_slow = self._known_spent_s > _SLOW * self._known_fastest_s
        if self._num_known >= _IN_ROW and not is_slow:
            self._fastest.update(self._unproven)
            self._unproven.clear()

    def _bound_s(self, size: int, length: int) -> float:
        """The most seconds that a decode takes while no other program runs.

        Args:
            size: Tokens of the decode.
            length: The text's length class.
        """
        if size in self._fastest:
            return _least_s(self._fastest[size], length)
        least_s = math.inf
        # Several decodes with as many tokens in all take no less time than one.
        for other_size, fastest in self._fastest.items():
            factor = max(_WORSE_KERNEL, math.ceil(size / other_size))
            least_s = min(least_s, factor * _least_s(fastest, length))
        return least_s

    def slowdown(self) -> float | None:
        """The time of the answer's decodes ÷ that of the fastest such decodes.

        None for an answer with too few decodes that could be compared.
        """
        if self._num_compared < _FEWEST or self._fastest_s <= 0.0:
            return None
        return self._spent_s / self._fastest_s

    def as_dict(self) -> dict[str, dict[str, float]]:
        """The fastest decodes, to be kept for the next process, in JSON's types."""
        kept: dict[str, dict[str, float]] = {}
        for size, fastest in self._fastest.items():
            by_length = {}
            for length, seconds in fastest.items():
                by_length[str(length)] = round(seconds, 7)
            kept[str(size)] = by_length
        return kept

    def restore(self, kept: Mapping[str, Mapping[str, float]]) -> None:
        """Continue with the fastest decodes in `kept`, which `as_dict` returned."""
        for size, by_length in kept.items():
            fastest = {}
            for length, seconds in by_length.items():
                fastest[int(length)] = float(seconds)
            self._fastest[int(size)] = fastest


def _least_s(fastest: Mapping[int, float], length: int) -> float:
    """The least of the bounds that the fastest decodes give for a length class, in seconds.

    Args:
        fastest: The fastest times of decodes of one size, by length class.
        length: The length class.
    """
    least_s = math.inf
    for other_length, seconds in fastest.items():
        doublings = max(length - other_length, 0) / _CLASSES
        least_s = min(least_s, seconds * math.pow(2.0, doublings))
    return least_s
