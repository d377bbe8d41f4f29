"""How often what a lookup finds comes true: counted, by the length and by who agrees."""

from __future__ import annotations

from typing import NamedTuple

# Percent of tokens that came as found, as counted first: versions of this project's files in
# the order in which they were written, its files after the others, and novels. A row for
# matches of 2, 4, 8, 16, 32, 64 tokens and more; in it, for 1, 2, 3 and more occurrences that
# go on alike, the shares where 0, 1, 2 and more others go on differently. The last rows are
# for 1 token, and 2 or 3, near where the text was followed before.
_FIRST = (
    ((34, 13, 10, 7), (61, 29, 25, 16), (77, 46, 33, 28), (78, 63, 57, 42)),
    ((62, 29, 23, 18), (81, 45, 36, 33), (86, 65, 49, 47), (92, 76, 63, 61)),
    ((84, 31, 30, 20), (86, 52, 44, 43), (96, 80, 55, 50), (95, 78, 73, 60)),
    ((94, 32, 35, 36), (94, 65, 50, 58), (96, 80, 60, 60), (96, 85, 75, 70)),
    ((99, 42, 50, 55), (99, 75, 73, 75), (99, 85, 80, 80), (98, 90, 85, 85)),
    ((99, 50, 60, 60), (99, 82, 85, 85), (99, 90, 90, 90), (99, 92, 95, 95)),
    ((70,) * 4,) * 4,
    ((90,) * 4,) * 4,
)
_NUM_RESUMED = 2  # rows
RESUMED_BELOW = 1 << _NUM_RESUMED  # tokens of a match
_FIRST_WEIGHT = 8  # tokens that the first counts weigh as much as
_MOST_COUNTED = 256  # tokens of a kind, after which the older ones count half


class FindingKind(NamedTuple):
    """A kind of finding, as `_FIRST` has them: the number of its row, and its place there."""

    length: int
    alike: int
    different: int

    @classmethod
    def of(
        cls, length: int, num_alike: int, num_different: int, *, is_resumed: bool
    ) -> FindingKind:
        """length: tokens that match. num_alike: occurrences that go on as found, 1 or more.

        is_resumed: whether it is near where the text was followed before.
        """
        num_others = len(_FIRST) - _NUM_RESUMED
        if is_resumed and length < RESUMED_BELOW:
            row = num_others + length.bit_length() - 1
        else:
            row = min(length.bit_length() - 2, num_others - 1)
        return cls(row, min(num_alike, 4) - 1, min(num_different, 3))


class LookupOdds:
    """What is known so far of each kind of finding."""

    def __init__(self) -> None:
        self._right = [
            [[_FIRST_WEIGHT * percent / 100 for percent in alike] for alike in row]
            for row in _FIRST
        ]
        self._seen = [[[float(_FIRST_WEIGHT)] * len(alike) for alike in row] for row in _FIRST]

    def chance(self, kind: FindingKind) -> float:
        """The share of such tokens that came as they were found, 0 … 1."""
        length, alike, different = kind
        return self._right[length][alike][different] / self._seen[length][alike][different]

    def learn(self, kind: FindingKind, *, came: bool) -> None:
        """Count a token that was found: whether it is what came."""
        length, alike, different = kind
        right, seen = self._right[length][alike], self._seen[length][alike]
        right[different] += came
        seen[different] += 1
        if seen[different] > _MOST_COUNTED:
            right[different] /= 2
            seen[different] /= 2
