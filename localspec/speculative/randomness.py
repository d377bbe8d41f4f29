"""Random numbers that are used once, by address and without state.

There are two kinds. Uniforms, for the rules token and block: one for every (seed, turn, step,
purpose, index). If two purposes shared a number, or a number returned in a later step, the
acceptance rate would look right and the text would be biased. Noise, for the rule coupled:
one number for every (seed, turn, index in the answer, token id), in any step, with any draft
and cache. Both come from Philox4x64 (Salmon et al., SC 2011); noise is spread over the token
ids by the output function of SplitMix64 (Steele et al., OOPSLA 2014).
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
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30 = np.uint64(30)
_SHIFT_27 = np.uint64(27)
_SHIFT_31 = np.uint64(31)
_SHIFT_11 = np.uint64(11)
_FEW = 256  # up to this number of survivors, all are raced without a first selection


class Purpose(enum.IntEnum):
    """The decision that a uniform is for."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2  # also the bonus token and the token of a target-only step


_NOISE = len(Purpose)  # the counter's word of noise; that of uniforms is 0


class Randomness:
    """The random numbers of one answer.

    Raises OptionError for a seed outside 0 … 2**63 - 1.

    Args:
        seed: The seed.
        turn: The number of the answer in its conversation.
        num_said: Tokens that the answer already has. It continues with the numbers after
            theirs: these tokens took at most that number of steps.
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
            generator = np.random.Generator(self._philox(0, chunk))
            self._uniforms = generator.random((_UNIFORMS_CHUNK, len(Purpose), MAX_DRAFT_TOKENS))
            self._uniforms_chunk = chunk
        uniforms: Probs = self._uniforms[offset]
        return uniforms

    def gumbel_max(self, index: int, distribution: Distribution) -> int:
        """The token that wins the race of `distribution` at this index of the answer.

        The time of each token id is an exponentially distributed number divided by its
        probability, and the shortest time wins. That draws from the distribution, and it is
        Gumbel-max with noise = -log(exponential): argmax(log p + noise), with one logarithm.
        """
        ids = distribution.ids
        masses = distribution.masses
        if len(ids) == 1:
            return int(ids[0])
        uniforms = self.noise(index, ids)
        if len(ids) > _FEW:
            # -log(1 - u) >= u: a token that does not beat the favourite by u alone cannot win.
            favourite = int(np.argmax(masses))
            limit = -np.log1p(-uniforms[favourite]) / masses[favourite]
            able = np.flatnonzero(uniforms <= limit * masses)
            ids = ids[able]
            masses = masses[able]
            uniforms = uniforms[able]
        with np.errstate(divide="ignore", over="ignore"):
            # A mass that underflowed, also to nearly 0, has an infinite time.
            times = -np.log1p(-uniforms) / masses
        return int(ids[int(np.argmin(times))])

    def noise(self, index: int, ids: TokenIds) -> Probs:
        """(m,) float64 in (0, 1): a pure function of (seed, turn, index, id)."""
        chunk, offset = divmod(self._num_said + index, _NOISE_CHUNK)
        if chunk != self._noise_chunk:
            self._noise_keys = self._philox(_NOISE, chunk).random_raw(_NOISE_CHUNK)
            self._noise_chunk = chunk
        bits = ids.astype(np.uint64)
        bits *= _GOLDEN
        bits += self._noise_keys[offset]
        for shift, factor in ((_SHIFT_30, _MIX_1), (_SHIFT_27, _MIX_2)):
            bits ^= bits >> shift
            bits *= factor
        bits ^= bits >> _SHIFT_31
        # The middle of one of 2**53 equal parts, so the result is neither 0 nor 1.
        parts = (bits >> _SHIFT_11).astype(np.float64)
        return (parts + 0.5) * 2.0**-53

    def _philox(self, kind: int, number: int) -> np.random.Philox:
        # The generator counts up the first words of the counter.
        counter = np.array([0, 0, kind, number], dtype=np.uint64)
        return np.random.Philox(key=self._key, counter=counter)


def fresh_seed() -> int:
    """A seed from the operating system, for answers that need not be repeated."""
    return secrets.randbelow(MAX_SEED + 1)
