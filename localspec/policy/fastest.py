"""By how much an answer's decodes are slower than such decodes have been on this machine.

A decode is compared with the fastest ones of its size. A longer text takes more time, so there
is a fastest one for each class of lengths. Those of other classes are bounds: a decode takes no
more time than behind a longer text, and at most a known factor more than behind a shorter one.
So are those of other sizes, where its own has not been measured. What is longer or larger than
anything before does not look like a busy machine.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

# Decodes of an answer on which a slowdown is based, at least
_FEWEST = 8
# Decodes of a size in a row, of which the median counts: a single one may be lucky
_IN_ROW = 3
# A decode behind so many tokens takes at most twice as long as behind none. Attention takes the
# largest part of the time in small models: with the demo pair it doubles behind some 400
_DOUBLING = 256
_CLASSES = 4  # of lengths, for each doubling of that time
# A decode takes at most so many times as long as a larger one, whose kernel may be better
_WORSE_KERNEL = 2


class FastestDecodes:
    """The fastest decodes of a target, and the present answer's. All times are in seconds."""

    def __init__(self) -> None:
        self._fastest: dict[int, dict[int, float]] = {}
        """Of each size, in tokens, by the class of the text's length."""

        self._last: dict[int, deque[tuple[int, float]]] = {}
        """The last decodes of each size: the class of length, and the time."""

        self.reset()

    def reset(self) -> None:
        """Reset what is of one answer: another begins."""
        self._num_compared = 0
        self._spent_s = 0.0
        self._fastest_s = 0.0

    def learn(self, size: int, num_cached: int, seconds: float) -> None:
        """Take in a decode of `size` tokens behind a text of num_cached tokens."""
        length = math.ceil(_CLASSES * math.log2(1.0 + num_cached / _DOUBLING))
        last = self._last.setdefault(size, deque(maxlen=_IN_ROW))
        last.append((length, seconds))
        if len(last) == _IN_ROW:
            # Where the others belong to a longer text, it is no less than the time of this one.
            shortest = min(length for length, _ in last)
            typical = sorted(seconds for _, seconds in last)[_IN_ROW // 2]
            fastest = self._fastest.setdefault(size, {})
            fastest[shortest] = min(fastest.get(shortest, typical), typical)
        if self._fastest:
            self._num_compared += 1
            self._spent_s += seconds
            self._fastest_s += self._bound_s(size, length)

    def _bound_s(self, size: int, length: int) -> float:
        """What such a decode takes at most while nothing else runs."""
        if size in self._fastest:
            return _least_s(self._fastest[size], length)
        return min(
            max(_WORSE_KERNEL, math.ceil(size / known)) * _least_s(fastest, length)
            for known, fastest in self._fastest.items()
        )

    def slowdown(self) -> float | None:
        """The time of the answer's decodes, in times of the fastest ones; None if unknown."""
        if self._num_compared < _FEWEST or self._fastest_s <= 0.0:
            return None
        return self._spent_s / self._fastest_s

    def as_dict(self) -> dict[str, dict[str, float]]:
        """The fastest decodes, to be kept for the next process, in JSON's types."""
        return {
            str(size): {str(length): round(seconds, 7) for length, seconds in known.items()}
            for size, known in self._fastest.items()
        }

    def restore(self, kept: Mapping[str, Mapping[str, float]]) -> None:
        """Continue from `as_dict`."""
        for size, known in kept.items():
            self._fastest[int(size)] = {int(name): float(each) for name, each in known.items()}


def _least_s(fastest: Mapping[int, float], length: int) -> float:
    """The least of the bounds that each class of lengths is."""
    return min(
        seconds * math.pow(2.0, max(length - known, 0) / _CLASSES)
        for known, seconds in fastest.items()
    )
