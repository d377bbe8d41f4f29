"""From one row of logits to the law the next token is drawn from.

The filters run in llama.cpp's default order: top-k, top-p, min-p, temperature. A law is
kept by its survivors only, so a row of 152 064 logits costs a few passes of NumPy and never
a sort of the vocabulary. This module knows neither models nor drafts nor random streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import DecodeError, OptionError

Logits = NDArray[np.float32]
Probs = NDArray[np.float64]
TokenIds = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The transforms between logits and law. The defaults are llama.cpp's.

    temperature 0 means greedy: a one-hot row at the argmax, whatever the filters say.
    top_k 0, top_p 1 and min_p 0 switch their filter off.

    Raises OptionError for a value outside its range, NaN included.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05

    def __post_init__(self) -> None:
        # Written as "not (inside)" so that NaN, which compares false, is refused too.
        if not 0.0 <= self.temperature <= 100.0:
            raise OptionError(
                f"temperature is {self.temperature}", "Choose 0 to 100; 0 is greedy."
            )
        if self.top_k < 0:
            raise OptionError(f"top_k is {self.top_k}", "Choose 0 (off) or more.")
        if not 0.0 < self.top_p <= 1.0:
            raise OptionError(f"top_p is {self.top_p}", "Choose above 0 up to 1 (off).")
        if not 0.0 <= self.min_p <= 1.0:
            raise OptionError(f"min_p is {self.min_p}", "Choose 0 (off) to 1.")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


class Distribution(NamedTuple):
    """A law over the vocabulary, kept by its survivors.

    ids: (m,) strictly ascending token ids. probs: (m,) float64, sum 1; every id that is not
    listed has probability 0.
    """

    ids: TokenIds
    probs: Probs

    def prob(self, token: int) -> float:
        """Probability of one token id."""
        index = int(np.searchsorted(self.ids, token))
        if index < len(self.ids) and self.ids[index] == token:
            return float(self.probs[index])
        return 0.0

    def draw(self, uniform: float) -> int:
        """The token whose share of the unit interval holds `uniform`, from [0, 1)."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        mass = np.cumsum(self.probs)
        index = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
        # uniform * total can round up to total: stay on the last token that has any mass.
        return int(self.ids[min(index, int(np.searchsorted(mass, mass[-1])))])


def distribution(logits: Logits, params: SamplingParams) -> Distribution:
    """The law of the next token: `logits` (vocab,) after every filter of `params`.

    Among equal logits at the edge of a filter the lowest ids survive. Returns new arrays.
    Raises DecodeError if the row holds NaN or no finite maximum.
    """
    if params.is_greedy:
        best = int(np.argmax(logits))
        _require_finite(logits[best])
        return Distribution(np.array([best], dtype=np.int64), np.ones(1))
    ids, kept = _top_k(logits, params.top_k)
    if params.top_p < 1.0:
        ids, kept = _top_p(ids, kept, params.top_p, params.min_p)
    if params.min_p > 0.0:
        ids, kept = _min_p(ids, kept, params.min_p)
    return Distribution(ids, _softmax(kept, params.temperature))


def _require_finite(largest: np.float32) -> None:
    if not math.isfinite(largest):
        raise DecodeError(
            f"the model returned logits whose maximum is {largest}",
            "The file may be damaged: compare its sha256 with the publisher's.",
        )


def _softmax(logits: Logits, temperature: float) -> Probs:
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()
    scaled /= temperature
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum()
    return scaled


def _top_k(logits: Logits, k: int) -> tuple[TokenIds, Logits]:
    """The k largest logits, by ascending id; everything if k is 0 or reaches the vocabulary."""
    if k == 0 or k >= len(logits):
        _require_finite(logits.max())
        return np.arange(len(logits)), logits
    floor = _kth_largest_at_least(logits, k)
    _require_finite(floor if math.isnan(floor) else logits.max())
    ids = np.flatnonzero(logits >= floor)
    if len(ids) > k:
        # A stable sort of descending logits keeps the lowest ids among ties.
        ids = np.sort(ids[np.argsort(-logits[ids], kind="stable")[:k]])
    return ids, logits[ids]


def _kth_largest_at_least(logits: Logits, k: int) -> np.float32:
    """A lower bound of the k-th largest logit, close to it and cheap.

    The vocabulary is dealt into columns. The k best column maxima belong to k different
    tokens, so the k-th of them is reached by at least k logits. Far cheaper than a
    partition of the whole row, because taking maxima runs at memory speed.
    """
    columns = max(64 * k, 1024)
    rows = len(logits) // columns
    if rows < 2:
        return np.partition(logits, len(logits) - k)[len(logits) - k]  # type: ignore[no-any-return]
    maxima = logits[: rows * columns].reshape(rows, columns).max(axis=0)
    return np.partition(maxima, columns - k)[columns - k]  # type: ignore[no-any-return]


def _top_p(
    ids: TokenIds, logits: Logits, top_p: float, min_p: float
) -> tuple[TokenIds, Logits]:
    """The smallest set of most probable tokens whose mass reaches top_p, by ascending id.

    min-p comes next and drops everything below its floor anyway, so only what lies above a
    floor is ever sorted; without min-p the floor is lowered until the mass above it suffices.
    """
    largest = logits.max()
    weights = np.exp(logits - largest, dtype=np.float64)
    needed = top_p * weights.sum()
    depth = -math.log(min_p) if min_p > 0.0 else 4.0
    while True:
        above = np.flatnonzero(logits >= largest - np.float32(depth))
        if min_p > 0.0 or len(above) == len(ids) or weights[above].sum() >= needed:
            break
        depth *= 2.0
    order = above[np.argsort(-logits[above], kind="stable")]
    mass = np.cumsum(weights[order])
    kept = np.sort(order[: int(np.searchsorted(mass, needed)) + 1])
    return ids[kept], logits[kept]


def _min_p(ids: TokenIds, logits: Logits, min_p: float) -> tuple[TokenIds, Logits]:
    """The tokens at least min_p times as probable as the best, by ascending id."""
    kept = np.flatnonzero(logits >= logits.max() + np.float32(math.log(min_p)))
    return ids[kept], logits[kept]
