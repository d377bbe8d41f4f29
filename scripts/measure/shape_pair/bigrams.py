"""The text of a pair: what follows each token, for the target and for its draft.

All words lie on a circle. After a word the target likes its neighbour best, so greedy text
walks the circle and does not repeat itself before it is round; a few words further along are
less likely alternatives. The draft has the same distribution after the tokens it agrees on, and
after the others the distribution of some other place, which shares no word with the right one.
So the chance that a drafted token is kept is the agreement, at every temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.errors import OptionError

TokenIds = NDArray[np.int64]
NUM_FOLLOWERS = 8
# Of texts that a head drafts: by them it sees whether a row is that of the token before.
PHASES = 8
MAX_ENTROPY = 2.0  # nats; eight followers reach 2.08
_BEST_LOGIT = 25.0  # of the likeliest token; the unlisted ones are around 0


@dataclass(frozen=True, slots=True)
class TextSpec:
    """The properties of the text.

    entropy: of the next token at temperature 1, nats. agreement: one share for the whole
    text, or several that take turns, `segment` tokens each. period: greedy text repeats
    itself after so many tokens; None: not before it has used every word.
    """

    entropy: float
    agreement: tuple[float, ...]
    segment: int
    period: int | None
    seed: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.entropy <= MAX_ENTROPY:
            raise OptionError(f"the entropy is {self.entropy}", f"Choose 0 to {MAX_ENTROPY}.")
        if not self.agreement or not all(0.0 <= share <= 1.0 for share in self.agreement):
            raise OptionError(f"the agreement is {self.agreement}", "Choose shares of 0 to 1.")
        if self.segment < 1 or self.seed < 0 or (self.period is not None and self.period < 1):
            raise OptionError(
                f"segment {self.segment}, period {self.period}, seed {self.seed}",
                "Segment and period are at least 1, the seed at least 0.",
            )
        if self.period is not None and self.period % self.turn:
            raise OptionError(
                f"a period of {self.period} tokens cuts the turns of {self.turn} tokens",
                "Choose a period that is a multiple of segment times number of agreements.",
            )

    @property
    def turn(self) -> int:
        """Tokens until the agreements repeat; 1 if there is only one."""
        if len(self.agreement) > 1:
            return self.segment * len(self.agreement)
        return 1


class Bigrams:
    """The tokens that follow each of vocab_size tokens, for both models. words: (n,) ids.

    num_phases: each token has one of so many phases, and its followers have the next one.
    """

    def __init__(
        self, spec: TextSpec, words: TokenIds, vocab_size: int, num_phases: int
    ) -> None:
        if spec.period is not None and spec.period % num_phases:
            raise OptionError(
                f"a period of {spec.period} tokens cuts the {num_phases} phases of the text",
                f"Choose a multiple of {num_phases}.",
            )
        random = np.random.default_rng(spec.seed)
        # Alternatives lie whole strides ahead, so that a text that takes one stays in phase
        # with the agreements, and in a loop of the same length.
        stride = math.lcm(spec.period or spec.turn, num_phases)
        num_strides = len(words) // stride
        self._circle = random.permutation(words)[: num_strides * stride]
        self._loop = spec.period or len(self._circle)
        # Control tokens and bytes lead into the circle and are never reached again.
        self._place = np.arange(vocab_size) % max(1, len(self._circle))
        self._place[self._circle] = np.arange(len(self._circle))
        self.logits = _BEST_LOGIT + np.log(follower_probs(spec.entropy) + 1e-300)
        self.logits -= self.logits[0] - _BEST_LOGIT
        steps = _steps_ahead(random, len(self.logits), num_strides)
        self._ahead = steps[0] * stride
        self._astray = steps[1] * stride
        self._agrees = _agreeing(random, spec, len(self._circle))
        self.phases = self._place % num_phases  # of each token: (vocab_size,)

    def target_followers(self, tokens: TokenIds) -> TokenIds:
        """The tokens that may follow, likeliest first: (len(tokens), m)."""
        return self._followers(self._next(tokens))

    def draft_followers(self, tokens: TokenIds) -> TokenIds:
        """The draft's tokens for them: (len(tokens), m)."""
        agrees = self._agrees[self._place[tokens]]
        return self._followers(self._next(tokens) + np.where(agrees, 0, self._astray))

    def _next(self, tokens: TokenIds) -> TokenIds:
        place = self._place[tokens]
        return place - place % self._loop + (place + 1) % self._loop

    def _followers(self, places: TokenIds) -> TokenIds:
        followers: TokenIds = self._circle[(places[:, None] + self._ahead) % len(self._circle)]
        return followers


def follower_probs(entropy: float) -> NDArray[np.float64]:
    """Geometric over NUM_FOLLOWERS tokens, with this entropy in nats; (1,) for 0."""
    if entropy == 0.0:
        return np.ones(1)
    low = 0.0
    high = 1.0
    while True:
        ratio = (low + high) / 2
        probs = np.power(ratio, np.arange(NUM_FOLLOWERS), dtype=np.float64)
        probs /= probs.sum()
        found = -float(probs @ np.log(probs))
        if math.isclose(found, entropy, rel_tol=1e-6):
            return probs
        low, high = (ratio, high) if found < entropy else (low, ratio)


def _agreeing(
    random: np.random.Generator, spec: TextSpec, num_places: int
) -> NDArray[np.bool_]:
    """Where the draft is right: (num_places,).

    Each segment has its share as exactly as whole tokens allow, so that short texts, too,
    have the agreement that was asked for.
    """
    num_segments = -(-num_places // spec.segment)
    shares = np.resize(np.array(spec.agreement), num_segments)
    ranks = random.random((num_segments, spec.segment)).argsort(axis=1)
    ranks_and_a_bit = ranks + random.random((num_segments, 1))
    return (ranks_and_a_bit < spec.segment * shares[:, None]).reshape(-1)[:num_places]


def _steps_ahead(
    random: np.random.Generator, num_followers: int, num_strides: int
) -> tuple[TokenIds, int]:
    """Strides to each follower, and strides by which a wrong draft is off.

    Going astray by the latter never leads to one of the former again.
    """
    needed = num_followers * (num_followers - 1) + 2
    if num_strides < needed:
        raise OptionError(
            f"the circle of words has {num_strides} places of the same phase; "
            f"{needed} are needed",
            "Choose a shorter period or segment, or a larger vocabulary.",
        )
    ahead = np.concatenate(
        ([0], 1 + random.choice(num_strides - 1, num_followers - 1, replace=False))
    )
    taken = (ahead[:, None] - ahead) % num_strides
    free = np.setdiff1d(np.arange(1, num_strides), taken)
    return ahead, int(random.choice(free))
