"""Texts from before, for a lookup to propose from.

What is known already is not kept twice: of a text that is given again with changes only what
is new is added, with a few tokens around it. Beyond its bound the parts that were of use
longest ago are forgotten.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from array import array
from collections.abc import Sequence

import numpy as np

from localspec.speculative.ngram_index import GAP, SIZES, NgramIndex

MOST_REMEMBERED = 1_000_000  # tokens; about 30 bytes each
_RUN = SIZES[-1]
_KNOWN_RUN = 2 * _RUN  # tokens; a known run as long is not added again
_KEPT_SHARE = 0.75  # of the bound that is left once it is reached


class TextMemory:
    """Texts from before. most_tokens: the bound of all together."""

    def __init__(self, most_tokens: int = MOST_REMEMBERED) -> None:
        self.index = NgramIndex()
        self.num_changes = 0  # whoever found something here looks again after a change
        self._most_tokens = most_tokens
        self._begins: list[int] = []  # of the parts, ascending
        self._used: list[int] = []  # when each was of use: a larger number is later
        self._now = 0
        self.lock = threading.RLock()  # held by whoever reads or changes it

    def __len__(self) -> int:
        """Tokens, with the gaps between them."""
        return len(self.index)

    def add(self, tokens: Sequence[int]) -> None:
        """Remember a text, as far as it is not known already, without gaps in it."""
        with self.lock:
            for text in _without_gaps(tokens):
                if len(text) > SIZES[0]:
                    self._add(text)

    def _add(self, text: array[int]) -> None:
        self._now += 1
        known = self.index.known(np.array(text, np.int32)).astype(np.int8)
        # Where known runs begin and end, by the places at which they end themselves.
        edges = np.flatnonzero(np.diff(known, prepend=0, append=0))
        begin = 0  # of what is new
        for first, end in edges.reshape(-1, 2).tolist():
            known_from = first - _RUN + 1
            if end - known_from >= _KNOWN_RUN:
                self._append(text[max(begin - _RUN, 0) : known_from + _RUN], known_from - begin)
                begin = end
        self._append(text[max(begin - _RUN, 0) :], len(text) - begin)
        self._forget_some()

    def mark_used(self, position: int) -> None:
        """The part at that position of the index's text was of use."""
        self._used[bisect.bisect_right(self._begins, position) - 1] = self._now

    def _append(self, tokens: array[int], num_new: int) -> None:
        """Add a part, of which so many tokens are not known yet."""
        if num_new <= 0:
            return
        self._begins.append(len(self.index))
        self._used.append(self._now)
        tokens.append(GAP)
        self.index.read(tokens)
        self.num_changes += 1

    def _forget_some(self) -> None:
        if len(self.index) <= self._most_tokens:
            return
        ends = [*self._begins[1:], len(self.index)]
        left = int(_KEPT_SHARE * self._most_tokens)
        kept = []
        for number in sorted(range(len(ends)), key=lambda n: (-self._used[n], -n)):
            left -= ends[number] - self._begins[number]
            if left < 0:
                break
            kept.append(number)
        kept.sort()
        text, begins = array("i"), []
        for number in kept:
            begins.append(len(text))
            text += self.index.text[self._begins[number] : ends[number]]
        index = NgramIndex()
        index.read(text)
        self.index, self._begins = index, begins
        self._used = [self._used[number] for number in kept]
        self.num_changes += 1


def _without_gaps(tokens: Sequence[int]) -> list[array[int]]:
    """What is between them."""
    if min(tokens, default=0) > GAP:
        return [array("i", tokens)]
    stretches = itertools.groupby(tokens, lambda token: token > GAP)
    return [array("i", stretch) for is_text, stretch in stretches if is_text]
