"""Finds earlier occurrences of the last tokens of a text, in time that does not grow with it.

Runs of 2, 6 and 16 tokens are hashed. All positions with the same hash are linked, the latest
first, as in compressors of the LZ77 family. A search follows a few links for each size. A
suffix automaton takes more memory and cannot be cut back; a suffix array has to be sorted again
(docs/inside.md has the figures).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SIZES = (2, 6, 16)  # tokens of the runs that are hashed
NUM_COMPARED = 8  # how many positions of a hash are compared, the latest first
GAP = -1  # stands between texts, and for a picture's cells; it is never proposed
_NOWHERE = -1
_FEWEST_BITS = 10  # a table has at least 2**10 slots
_WORD = 32  # bits of a hash
_MASK = (1 << _WORD) - 1
# The base of the polynomial hash: the sum of token * _BASE**n, n = 1 for a run's last token.
# Odd, and none of its first 16 powers times 1 … 8 comes near 0 modulo 2**32, so that runs with
# similar ids are in slots far apart.
_BASE = 0x90608919
# By size, the weight of a run's first token once another token is added, so that the first one
# has to leave the run.
_FIRST_WEIGHTS = tuple(pow(_BASE, size + 1, 1 << _WORD) for size in SIZES)
# New tokens are linked in one pass with all others if they are more than this number, and more
# than the text ÷ _MANY_SHARE
_MANY = 256
_MANY_SHARE = 4


def run_hashes(end: Sequence[int]) -> list[int]:
    """The hashes of the last 2, 6 and 16 tokens; only those for which `end` is long enough."""
    hashes = []
    hash_ = 0
    power = 1
    for number, token in enumerate(reversed(end[-SIZES[-1] :]), 1):
        power = power * _BASE & _MASK
        hash_ += token * power
        if number in SIZES:
            hashes.append(hash_ & _MASK)
    return hashes


class NgramIndex:
    """A text, and where each of its runs of 2, 6 and 16 tokens occurs in it."""

    def __init__(self) -> None:
        self.text = array("i")
        self._link_all()

    def __len__(self) -> int:
        return len(self.text)

    @property
    def end_hashes(self) -> list[int]:
        """The result of `run_hashes` for the end of the text."""
        hashes = []
        for size, hash_ in zip(SIZES, self._hashes, strict=True):
            if size <= len(self.text):
                hashes.append(hash_)
        return hashes

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text, and index them. The cells of pictures become gaps."""
        if min(tokens, default=0) < GAP:
            tokens = [max(token, GAP) for token in tokens]
        text = self.text
        shift = self._shift
        hashes = self._hashes
        position = len(text)
        is_many = len(tokens) > max(_MANY, position // _MANY_SHARE)
        if is_many or position + len(tokens) > len(self._latest[0]):
            text.extend(tokens)
            self._link_all()
            return
        for token in tokens:
            text.append(token)
            for level, size, first_weight, latest, link in self._levels:
                first = text[position - size] if position >= size else 0  # leaves the run
                hash_ = ((hashes[level] + token) * _BASE - first * first_weight) & _MASK
                hashes[level] = hash_
                if position < size - 1:
                    link.append(_NOWHERE)
                    continue
                slot = hash_ >> shift
                link.append(latest[slot])
                latest[slot] = position
            position += 1

    def truncate(self, num_tokens: int) -> None:
        """Keep the first num_tokens."""
        if num_tokens >= len(self.text):
            return
        for size, latest, link in zip(
            SIZES,
            self._latest,
            self._links,
            strict=True,
        ):
            first = max(num_tokens, size - 1)
            begin = first - size + 1  # of the first run that is cut
            tokens = np.array(self.text[begin:], np.int32)
            slots = self._run_slots(tokens, size).tolist()
            # Backwards, so that each slot gets the last position that is kept.
            for position in range(len(self.text) - 1, first - 1, -1):
                latest[slots[position - first]] = link[position]
            del link[num_tokens:]
        del self.text[num_tokens:]
        self._hash_end()

    def contains_runs(self, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        """(n,) whether the index has the run of 16 tokens that ends at each position."""
        size = SIZES[-1]
        level = len(SIZES) - 1
        is_found = np.zeros(len(tokens), np.bool_)
        if min(len(self.text), len(tokens)) < size:
            return is_found
        text = np.array(self.text, np.int32)
        link = np.array(self._links[level], np.int32)
        latest = np.array(self._latest[level], np.int32)
        slots = self._run_slots(tokens, size)
        # The ends of the runs that are not found yet, and for each a position in the text at
        # which an equal run may end.
        ends = np.arange(size - 1, len(tokens))
        candidates = latest[slots]
        for _ in range(NUM_COMPARED):
            ends = ends[candidates >= 0]
            candidates = candidates[candidates >= 0]
            is_same = _are_equal_runs(text, candidates, tokens, ends)
            is_found[ends[is_same]] = True
            ends = ends[~is_same]
            candidates = link[candidates[~is_same]]
        return is_found

    def ends(self, level: int, hash_: int, run: array[int]) -> list[int]:
        """The positions after the latest occurrences of a run, the latest first.

        An occurrence at the end of the text does not count, because nothing follows it.

        Args:
            level: The index of the run's size in SIZES.
            hash_: The run's hash: see `run_hashes`.
            run: The run.
        """
        text = self.text
        link = self._links[level]
        size = SIZES[level]
        position = self._latest[level][hash_ >> self._shift]
        if position == len(text) - 1 and position >= 0:
            position = link[position]
        ends = []
        for _ in range(NUM_COMPARED):
            if position < 0:
                break
            if text[position - size + 1 : position + 1] == run:
                ends.append(position + 1)
            position = link[position]
        return ends

    def _run_slots(self, tokens: NDArray[np.int32], size: int) -> NDArray[np.uint32]:
        """The slot of each run of `size` tokens, in order; empty for fewer tokens."""
        hashes = hashes_of(tokens, size)[size - 1 :]  # those of whole runs
        return hashes >> np.uint32(self._shift)

    def _hash_end(self) -> None:
        """Hash the end of the text. `read` updates these hashes with each token."""
        padding = [0] * SIZES[-1]  # zeros in front do not change a hash
        self._hashes = run_hashes([*padding, *self.text[-SIZES[-1] :]])

    def _link_all(self) -> None:
        """Index the whole text anew, in tables with room for a text twice as long."""
        num_tokens = len(self.text)
        bits = max(num_tokens.bit_length(), _FEWEST_BITS)
        self._shift = _WORD - bits
        self._latest: list[array[int]] = []
        self._links: list[array[int]] = []
        tokens = np.array(self.text, np.int32)
        for size in SIZES:
            latest = np.full(1 << bits, _NOWHERE, np.int32)
            link = np.full(num_tokens, _NOWHERE, np.int32)
            if num_tokens >= size:
                slots = self._run_slots(tokens, size)
                order = _order(slots)
                sorted_slots = slots[order]
                positions = (order + (size - 1)).astype(np.int32)
                # Each position links to the one before it in the same slot.
                is_same = sorted_slots[1:] == sorted_slots[:-1]
                link[positions[1:][is_same]] = positions[:-1][is_same]
                is_last = np.append(~is_same, True)
                latest[sorted_slots[is_last]] = positions[is_last]
            self._latest.append(_as_array(latest))
            self._links.append(_as_array(link))
        # The values that `read` needs for each token. The arrays are changed in place.
        levels = range(len(SIZES))
        self._levels = tuple(
            zip(
                levels,
                SIZES,
                _FIRST_WEIGHTS,
                self._latest,
                self._links,
                strict=True,
            )
        )
        self._hash_end()


def _are_equal_runs(
    text: NDArray[np.int32],
    text_ends: NDArray[np.int32],
    tokens: NDArray[np.int32],
    ends: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """(m,) whether each run of 16 tokens in `text` equals its counterpart in `tokens`.

    Args:
        text: A text.
        text_ends: (m,) the positions of the last tokens of m runs in it.
        tokens: Another text.
        ends: (m,) as `text_ends`, for the counterparts in the other text.
    """
    are_equal: NDArray[np.bool_] = text[text_ends] == tokens[ends]
    for back in range(1, SIZES[-1]):
        equal = are_equal.nonzero()[0]  # the runs whose last tokens are equal so far
        text_tokens = text[text_ends[equal] - back]
        are_equal[equal] = text_tokens == tokens[ends[equal] - back]
    return are_equal


def hashes_of(tokens: NDArray[np.int32], size: int) -> NDArray[np.uint32]:
    """(n,) the hash of the `size` tokens that end at each position; of fewer at the front."""
    ids = tokens.astype(np.uint32)
    hashes = np.zeros(len(ids), np.uint32)
    power = 1
    for back in range(min(size, len(ids))):
        power = power * _BASE & _MASK
        num_ends = len(ids) - back  # positions that have a token so far back
        hashes[back:] += ids[:num_ends] * np.uint32(power)
    return hashes


def _order(slots: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Positions sorted by slot, ascending within each; radix sorts of 16 bits each."""
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    upper = (slots >> np.uint32(16)).astype(np.uint16)
    return order[np.argsort(upper[order], kind="stable")]


def _as_array(values: NDArray[np.int32]) -> array[int]:
    copied = array("i")
    copied.frombytes(values.tobytes())
    return copied
