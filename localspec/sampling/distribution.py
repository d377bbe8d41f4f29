"""A distribution of the next token, and the arrays that it is made of.

`filters` and `chain` turn logits into one. Nothing here knows a model, a draft or a random
stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Probs = NDArray[np.float64]
TokenIds = NDArray[np.int64]

CERTAIN: Probs = np.ones(1)  # the probabilities of every distribution that leaves one token
CERTAIN.setflags(write=False)


class Distribution(NamedTuple):
    """A distribution over the vocabulary, kept by its survivors.

    ids: (m,) strictly ascending token ids. probs: (m,) float64, sum 1; every id that is not
    listed has probability 0. Of a row without a cut every id is listed, also the banned ones.
    """

    ids: TokenIds
    probs: Probs

    @property
    def has_first_ids(self) -> bool:
        """Whether the ids are 0, 1, … m - 1, as of a row without a cut."""
        return len(self.ids) == int(self.ids[-1]) + 1

    def prob(self, token: int) -> float:
        """Probability of one token id."""
        index = int(self.ids.searchsorted(token))
        if index < len(self.ids) and self.ids[index] == token:
            return float(self.probs[index])
        return 0.0

    def draw(self, uniform: float) -> int:
        """The token whose share of the unit interval holds `uniform`, from [0, 1)."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        mass = self.probs.cumsum()
        index = int(mass.searchsorted(uniform * mass[-1], side="right"))
        # uniform * total can round up to total: stay on the last token that has any mass.
        return int(self.ids[min(index, int(mass.searchsorted(mass[-1])))])
