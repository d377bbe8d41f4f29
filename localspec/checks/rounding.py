"""How much the logits of a batch of several tokens differ from those of a batch of one.

Both compute the same row of logits with different kernels. The choice between two tokens may
differ only where they are nearly tied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.sampling.distribution import Logits
from localspec.speculative.model import Model

_NEAR_TOP = 10.0  # logits; tokens further below the best are never chosen
_BATCH_SIZES = (2, 4, 9, 17)  # of steps with 1, 3, 8 and 16 draft tokens


@dataclass(slots=True)
class Rounding:
    """Differences between rows of logits from batches of one and of several tokens.

    num_equal: rows that are equal to the bit. largest_size: tokens of the largest batch.
    largest_difference: of a logit near the top of its row. widest_gap_changed: the widest gap,
    in logits, between two best tokens that changed places.
    """

    num_rows: int = 0
    num_equal: int = 0
    largest_size: int = 1
    num_argmax_changed: int = 0
    largest_difference: float = 0.0
    widest_gap_changed: float = 0.0

    @property
    def bound(self) -> float:
        """Tokens closer than this, in logits, may change places: both can move."""
        return 2.0 * self.largest_difference

    def add(self, single: Logits, batched: Logits) -> None:
        """Compare two (vocab,) rows."""
        near = single >= single.max() - _NEAR_TOP
        self.num_rows += 1
        self.num_equal += np.array_equal(single, batched)
        difference = float(np.abs(single[near] - batched[near]).max())
        self.largest_difference = max(self.largest_difference, difference)
        best, other = int(single.argmax()), int(batched.argmax())
        if best != other:
            self.num_argmax_changed += 1
            gap = float(single[best] - single[other])
            self.widest_gap_changed = max(self.widest_gap_changed, gap)

    def measure(self, target: Model, rows: Logits, tokens: Sequence[int]) -> None:
        """Compare rows, each decoded in a batch of one, with those of batches of other sizes.

        rows: after each of the last len(rows) tokens. The cache keeps some of the tokens.
        """
        num_before = len(tokens) - len(rows)
        for size in sorted({min(size, target.max_outputs) for size in _BATCH_SIZES}):
            self.largest_size = max(self.largest_size, size)
            target.truncate(min(num_before, target.num_cached))
            if missing := tokens[target.num_cached : num_before]:
                target.decode(missing, 0)  # a sliding window could not be cut that far
            for begin in range(0, len(rows) - size + 1, size):
                at = num_before + begin
                batch = target.decode(tokens[at : at + size], size)
                for single, batched in zip(rows[begin:], batch, strict=False):
                    self.add(single, batched)
