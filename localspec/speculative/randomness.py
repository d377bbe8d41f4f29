"""Random numbers, each a pure function of its address, so that none depends on earlier ones.

There are two kinds. Uniforms, for the rules token and block: one for every (seed, turn, step,
purpose, index). Each is used once: if two purposes shared a number, or a later step used it
again, the acceptance rate would look right, but the text would be biased. Noise, for the rule
coupled: one number for every (seed, turn, index in the answer, token id), whatever the step,
the draft and the cache are. Both come from Philox4x64 (Salmon et al., SC 2011); noise is spread
over the token ids by the output function of SplitMix64 (Steele et al., OOPSLA 2014).
"""

from __future__ import annotations

import enum
import secrets

import numpy as np
from numpy.typing import NDArray

from localspec.errors import OptionError, is_whole
from localspec.sampling.distribution import Distribution, Probs, TokenIds
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS

MAX_SEED = 2**63 - 1

_UNIFORMS_CHUNK = 16  # steps whose uniforms are drawn at once
_NOISE_CHUNK = 256  # positions of an answer whose keys are drawn at once
# The constants of SplitMix64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30 = np.uint64(30)
_SHIFT_27 = np.uint64(27)
_SHIFT_31 = np.uint64(31)
_SHIFT_11 = np.uint64(11)  # leaves 53 of 64 bits: those of a float64's fraction
_FEW = 256  # among so few ids, all times are computed: a first selection does not pay


class Purpose(enum.IntEnum):
    """The decision that a uniform is for."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2  # also the bonus token and the token of a target-only step


# The word of Philox's counter that keeps the two kinds of numbers apart
_UNIFORMS_WORD = 0
_NOISE_WORD = len(Purpose)


class Randomness:
    """The random numbers of one answer.

    Raises OptionError for a seed outside 0 … 2**63 - 1.

    Args:
        seed: The seed.
        turn: The number of the answer in its conversation.
        num_said: How many tokens an earlier answer gave, which this answer continues. Steps and
            indices count from here, so that no number is used again: these tokens took at
            most as many steps.
    """

    def __init__(self, seed: int, turn: int = 0, num_said: int = 0) -> None:
        if not is_whole(seed, 0, MAX_SEED):
            raise OptionError(f"seed is {seed!r}", f"Choose a whole number, 0 to {MAX_SEED}.")
        self._key = np.array([seed, turn], dtype=np.uint64)
        self._num_said = num_said
        self._uniforms_chunk = -1
        self._uniforms: Probs = np.empty((0, len(Purpose), MAX_DRAFT_TOKENS))
        self._noise_chunk = -1
        self._noise_keys: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def uniforms(self, step: int) -> Probs:
        """(len(Purpose), MAX_DRAFT_TOKENS) float64 in [0, 1): a row for every purpose."""
        chunk, offset = divmod(self._num_said + step, _UNIFORMS_CHUNK)
        if chunk != self._uniforms_chunk:
            generator = np.random.Generator(self._philox(_UNIFORMS_WORD, chunk))
            self._uniforms = generator.random((_UNIFORMS_CHUNK, len(Purpose), MAX_DRAFT_TOKENS))
            self._uniforms_chunk = chunk
        uniforms: Probs = self._uniforms[offset]
        return uniforms

    def gumbel_max(self, index: int, distribution: Distribution) -> int:
        """Draw a token from `distribution` with the noise at this index of the answer.

        An exponential race: each token id gets a time, -log(1 - u) / p with its own uniform u
        and its probability p, and the shortest time wins. It is Gumbel-max, argmax(log p + g)
        with g = -log(-log(1 - u)), with one logarithm fewer.
        """
        ids = distribution.ids
        masses = distribution.masses
        if len(ids) == 1:
            return int(ids[0])
        uniforms = self.noise(index, ids)
        if len(ids) > _FEW:
            # A time is at least u / p, since -log(1 - u) >= u. A token whose u / p exceeds the
            # likeliest token's time cannot win.
            likeliest = int(np.argmax(masses))
            limit = -np.log1p(-uniforms[likeliest]) / masses[likeliest]
            candidates = np.flatnonzero(uniforms <= limit * masses)
            ids = ids[candidates]
            masses = masses[candidates]
            uniforms = uniforms[candidates]
        with np.errstate(divide="ignore", over="ignore"):
            # A mass of 0, or so small that the division overflows, has an infinite time.
            times = -np.log1p(-uniforms) / masses
        return int(ids[int(np.argmin(times))])

    def noise(self, index: int, ids: TokenIds) -> Probs:
        """(m,) float64 in (0, 1) for the ids: a pure function of (seed, turn, index, id)."""
        chunk, offset = divmod(self._num_said + index, _NOISE_CHUNK)
        if chunk != self._noise_chunk:
            self._noise_keys = self._philox(_NOISE_WORD, chunk).random_raw(_NOISE_CHUNK)
            self._noise_chunk = chunk
        bits = ids.astype(np.uint64)
        bits *= _GOLDEN
        bits += self._noise_keys[offset]
        for shift, factor in ((_SHIFT_30, _MIX_1), (_SHIFT_27, _MIX_2)):
            bits ^= bits >> shift
            bits *= factor
        bits ^= bits >> _SHIFT_31
        # The middle of one of 2**53 equal parts of the interval, so never 0 or 1.
        part_numbers = (bits >> _SHIFT_11).astype(np.float64)
        return (part_numbers + 0.5) * 2.0**-53

    def _philox(self, word: int, chunk: int) -> np.random.Philox:
        """The generator of a chunk of uniforms or of noise."""
        # The generator counts up the first words of the counter.
        counter = np.array([0, 0, word, chunk], dtype=np.uint64)
        return np.random.Philox(key=self._key, counter=counter)


def fresh_seed() -> int:
    """A seed from the operating system, for answers that need not be repeated."""
    return secrets.randbelow(MAX_SEED + 1)
