"""The costs of decodes on this machine, learned by timing the ones that happen anyway.

For the target this is v(n) = T(n) / T(1), the cost of decoding n tokens at once, in target-only
steps. It decides whether a draft pays. It is not monotone (a kernel for 4 tokens can be cheaper
than one for 3), so every n is measured separately, as an average in which later times weigh
more. T(1) is the time of the last few target-only steps, because it changes with the load of
the machine and the length of the text.

Two things change the time of a decode during an answer. A slower processor slows all decodes by
the same factor. Other programs that use the memory slow target-only steps, which wait for
memory, but hardly slow steps of many tokens. Which of the two happens is not known at once, so
T(n) is assumed to change with a power of T(1) between 0 and 1, the elasticity, until steps are
timed again.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.speculative.policy_api import MAX_DRAFT_TOKENS

# Tokens of the largest step whose cost is measured for its own size [long answers]
LARGEST_STEP = MAX_DRAFT_TOKENS + 1

_NUM_SAMPLES = 9  # times of a draft token that are kept; their median counts [noisy steps]
_NUM_TRUSTED = 3  # samples that are needed for a median [noisy steps]
# Target-only steps whose median counts; the first ones of a process can take twice as long
# [noisy steps, busy processor]
_NUM_PLAIN = 5
# Steps after a target-only one that are compared with it; later ones belong to another moment
# [memory bursts, wandering]
FRESH_STEPS = 16
# Target-only steps in a row after which v(n) may have changed [stale costs]
_RESTED_STEPS = 64
# Timed steps of a size that count beside a new one: at most, and if they are old or of another
# process [noisy steps, wandering, stale costs]
_MOST_WEIGHT, _OLD_WEIGHT = 6.0, 0.5
# Largest change of the logarithm of v(n) that one timed step shows [noisy steps]
_OUTLIER = 0.3
# Elasticity: d log T(n) / d log T(1), the same for all n ≥ 2 [memory bursts, busy processor]
_ELASTICITY = 0.5
# Largest change of log T(1) that counts; beyond it the step was interrupted [busy processor]
_LARGEST_CHANGE = 0.3
# Kernels for several rows come in multiples of this many tokens, and may be cheap
# [long answers]
TILE = 4
# Most tokens that are read in front of a draft in an ordinary step [long answers]
SHORT_READ = 2
_TIMED_READ = 8  # fewest tokens of a read that shows what one of many costs [long prompts]
# Pessimistic cost of one more token, in target-only steps, where that was not measured
# [never right]
_PESSIMISTIC_SLOPE = 0.6
# Optimistic cost of the same, as long as no prompt was read
# [no scenario: a target whose prompt was cached]
_OPTIMISTIC_SLOPE = 0.1
# Optimistic cost of one more token, as a share of the cost of a token of a prompt
# [short answers]
_OPTIMISTIC_SHARE = 0.5
# Cost of a token that is read, as a share of a drafted one, until either was timed
# [no scenario: a target whose prompt was cached]
_READ_SHARE = 0.5


class TargetCost:
    """Seconds that the target takes for a step of n tokens.

    target_only_s: of a target-only step now; None before the first one in this process.
    prefill_token_s: of a token among many; None before the first prompt. version: changes with
    the ratios. steps_since_target_only: of several tokens.
    """

    def __init__(self) -> None:
        self.version = 0
        self.target_only_s: float | None = None
        self.prefill_token_s: float | None = None
        self.steps_since_target_only = 0
        self._target_only: deque[float] = deque(maxlen=_NUM_PLAIN)
        self._plain_in_a_row = 0
        self._logs = np.zeros(LARGEST_STEP + 1)  # of v(n), at the time of `_ratios_s`
        self._counts: NDArray[np.int64] = np.zeros(LARGEST_STEP + 1, dtype=np.int64)
        self._weights = np.zeros(LARGEST_STEP + 1)
        self._ratios_s: float | None = None  # target_only_s when the ratios were updated

    @property
    def is_timed(self) -> bool:
        """Whether T(1) was timed lately."""
        return bool(self._target_only)

    @property
    def is_old(self) -> bool:
        """Whether v(n) may have changed: no step of several tokens was timed for long."""
        return self._plain_in_a_row >= _RESTED_STEPS

    def learn(self, num_tokens: int, seconds: float) -> None:
        """Learn from a timed decode of num_tokens."""
        if num_tokens > LARGEST_STEP:
            self.prefill_token_s = seconds / num_tokens
            self.version += 1
        elif num_tokens == 1:
            self.steps_since_target_only = 0
            self._plain_in_a_row += 1
            self._target_only.append(seconds)
            # Of too few the smallest counts, since disturbances only add time.
            is_enough = len(self._target_only) >= _NUM_PLAIN
            typical = statistics.median if is_enough else min
            self.target_only_s = typical(self._target_only)
        else:
            self.steps_since_target_only += 1
            if self.is_old:
                np.minimum(self._weights, _OLD_WEIGHT, out=self._weights)
            self._plain_in_a_row = 0
            is_fresh = self.steps_since_target_only <= FRESH_STEPS
            if self.target_only_s and (is_fresh or not self._counts[num_tokens]):
                self.learn_ratio(num_tokens, seconds / self.target_only_s)

    def learn_ratio(self, size: int, ratio: float) -> None:
        """Learn v(size), timed beside a target-only step."""
        self._logs += math.log(self.change())
        self._ratios_s = self.target_only_s
        missed = math.log(ratio) - self._logs[size]
        if self._counts[size] and abs(missed) > _OUTLIER:
            # It was interrupted, or the machine has changed: then the next one counts more.
            missed = math.copysign(_OUTLIER, missed)
            self._weights[size] /= 2
        self._logs[size] += missed / (1.0 + self._weights[size])
        self._weights[size] = min(self._weights[size] + 1.0, _MOST_WEIGHT)
        self._counts[size] += 1
        self.version += 1

    def forget_target_only(self) -> None:
        """Discard the times of target-only steps, which are too old."""
        self._target_only.clear()

    def change(self) -> float:
        """The probable change of v(n), n ≥ 2, since the ratios were updated, as a factor."""
        if not self.target_only_s or not self._ratios_s:
            return 1.0
        change = math.log(self.target_only_s / self._ratios_s)
        change = min(max(change, -_LARGEST_CHANGE), _LARGEST_CHANGE)
        return math.exp((_ELASTICITY - 1.0) * change)

    def measured(self) -> dict[int, float]:
        """n → v(n) of the measured sizes, 1 included."""
        change = self.change()
        sizes = np.flatnonzero(self._counts).tolist()
        return {1: 1.0, **{size: math.exp(self._logs[size]) * change for size in sizes}}

    def ratios(self, *, optimistic: bool) -> list[float]:
        """(LARGEST_STEP + 1,) v(n) for n = 0, 1, 2 …; v(0) is 0.

        Sizes that were not measured get a guess. With the optimistic guess, sizes that might
        pay are tried, and so measured; it ends at twice the largest measured size. The
        pessimistic guess is what such a trial may cost.
        """
        known = self.measured()
        slope = _PESSIMISTIC_SLOPE
        if optimistic:
            slope = _OPTIMISTIC_SLOPE
            if self.prefill_token_s is not None and self.target_only_s:
                # A token among many is the cheapest; the optimistic guess is a share of that.
                slope = _OPTIMISTIC_SHARE * min(self.prefill_token_s / self.target_only_s, 1.0)
        ratios = [0.0]
        for size in range(1, LARGEST_STEP + 1):
            if size in known:
                ratios.append(known[size])
            elif optimistic:
                ratios.append(_optimistic_ratio(known, ratios, slope))
            else:
                ratios.append(ratios[-1] + slope)
        return ratios

    def sizes_to_measure(self) -> list[int]:
        """Sizes of steps that lack samples, once for each missing sample."""
        return [
            size
            for size in range(2, LARGEST_STEP)
            for _ in range(_NUM_TRUSTED - int(self._counts[size]))
        ]

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {
            "target_only_s": self.target_only_s,
            "ratios": [
                [size, round(ratio, 4), int(self._counts[size])]
                for size, ratio in self.measured().items()
                if size > 1
            ],
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`. On ValueError, TypeError or KeyError nothing is changed."""
        target_only_s = kept["target_only_s"]
        if target_only_s is not None and not 0 < target_only_s < math.inf:
            raise ValueError(f"a target-only step took {target_only_s} seconds")
        for size, ratio, count in kept["ratios"]:
            is_size = 1 < size <= LARGEST_STEP
            if not (is_size and 0 < ratio < math.inf and 0 < count < math.inf):
                raise ValueError(f"v({size}) is {ratio}, timed {count} times")
        rows = [
            (int(size), math.log(ratio), int(count)) for size, ratio, count in kept["ratios"]
        ]
        self._ratios_s = target_only_s
        for size, log, count in rows:
            self._logs[size], self._counts[size] = log, count
            self._weights[size] = _OLD_WEIGHT  # the machine may have been in another state
        self.version += 1


class DraftCost:
    """Seconds that a proposer takes. share: of a target-only step's, until it is measured."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._reads: deque[float] = deque(maxlen=_NUM_SAMPLES)

    @property
    def is_measured(self) -> bool:
        """Whether enough drafted tokens were timed."""
        return len(self._tokens) >= _NUM_TRUSTED

    @property
    def knows_reading(self) -> bool:
        """Whether a read of many tokens was timed."""
        return bool(self._reads)

    def learn(
        self, num_read: int, num_drafted: int, seconds: float, target_only_s: float
    ) -> None:
        """Learn from a timed proposal that read num_read tokens and proposed num_drafted."""
        if num_read >= _TIMED_READ:
            others_s = max(num_drafted - 1, 0) * self.token_s(target_only_s)
            self._reads.append(max(seconds - others_s, 0.0) / num_read)
        elif num_drafted > 0 and num_read <= SHORT_READ:
            self._tokens.append(seconds / num_drafted)
            if target_only_s > 0:
                self._share = statistics.median(self._tokens) / target_only_s

    def token_s(self, target_only_s: float) -> float:
        """Seconds of a drafted token, while a target-only step takes target_only_s."""
        if self.is_measured:
            return statistics.median(self._tokens)
        return self._share * target_only_s

    def read_token_s(self, target_only_s: float, prefill_token_s: float | None) -> float:
        """Seconds of a token that is read among many.

        prefill_token_s: the target's cost of such a token, if it is known.
        """
        if self._reads:
            return statistics.median(self._reads)
        if prefill_token_s is not None:
            return self._share * prefill_token_s
        return _READ_SHARE * self.token_s(target_only_s)

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {"share": round(self._share, 5)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`. On ValueError, TypeError or KeyError nothing is changed."""
        share = float(kept["share"])
        if not 0 <= share < math.inf:
            raise ValueError(f"the draft's share is {share}")
        self._share = share


def _optimistic_ratio(known: Mapping[int, float], ratios: list[float], slope: float) -> float:
    """The optimistic guess of the next ratio. slope: the cost of one more token."""
    size = len(ratios)
    if size > max(TILE, 2 * max(known)):
        return math.inf
    hope = ratios[-1] + slope
    above = [other for other in known if other > size]
    if above:
        # On a staircase, few sizes cost less than the line between their neighbours.
        low, high = max(other for other in known if other < size), min(above)
        share = (size - low) / (high - low)
        hope = max(hope, known[low] + share * (known[high] - known[low]))
    if size == TILE:
        # This size has its own kernel, so sizes 2 and 3 do not predict its cost.
        hope = min(hope, 1.0 + (TILE - 1) * slope)
    elif size % TILE == 0:
        hope = min(hope, ratios[size // 2] + slope)
    return min([hope, *(known[other] for other in above)])
