"""Random numbers that are used once.

A speculative step draws for three purposes. Were two of them to share a number, or a number
to return in a later step, the acceptance rate would look right and the text would be biased.
Here every uniform has its own address (seed, turn, step, purpose, index) in a counter-based
generator (Philox4x64: Salmon et al., SC 2011), so there is no state to share or to re-seed.
"""

from __future__ import annotations

import enum
import secrets

import numpy as np

from localspec.errors import OptionError
from localspec.sampling import Probs

MAX_SEED = 2**63 - 1


class Purpose(enum.IntEnum):
    """What a uniform decides."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2  # also the bonus token and the token of a plain step


class Randomness:
    """The uniforms of one answer.

    Raises OptionError for a seed outside 0 … 2**63 - 1.
    """

    def __init__(self, seed: int, turn: int = 0) -> None:
        if not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
            raise OptionError(f"seed is {seed!r}", f"Choose a whole number, 0 to {MAX_SEED}.")
        self._key = np.array([seed, turn], dtype=np.uint64)

    def uniforms(self, step: int, purpose: Purpose, count: int) -> Probs:
        """(count,) float64 in [0, 1): indices 0 … count - 1 of this step and purpose.

        The first words of the counter are left to the generator, which counts them up.
        """
        counter = np.array([0, 0, purpose, step], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter)).random(
            count
        )


def fresh_seed() -> int:
    """A seed from the operating system, for answers that nobody asked to repeat."""
    return secrets.randbelow(MAX_SEED + 1)
