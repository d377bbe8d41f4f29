"""The costs of decodes on this machine, learned by timing the ones that happen anyway.

For the target this is v(n) = T(n) / T(1), the cost of decoding n tokens at once, in target-only
steps. It decides whether a draft pays. It is not monotone (a kernel for 4 tokens can be cheaper
than one for 3), so every n is measured separately (`StepRatios`). T(1) is the time of the last
few target-only steps, because it changes with the load of the machine and the length of the
text; v(n) is corrected for the T(1) at its measurement.

The cost of a step of n tokens, in target-only steps, drifts within minutes while other programs
run. The logarithm of v(n) is modelled as a random walk, and each timed step is a noisy
measurement of it (the scalar case of Kalman, 1960). So an old measurement is less certain, and
weighs less than a new one.

Two things change the time of a decode during an answer. A slower processor slows all decodes by
the same factor. Other programs that use the memory slow target-only steps, which wait for
memory, but hardly slow steps of many tokens. Which of the two happens is not known at once, so
T(n) is assumed to change with a power of T(1) between 0 and 1, the elasticity, until steps are
timed again.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
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
# Time without steps of several tokens after which their cost is less certain, in target-only
# steps [stale costs]
_RESTED_STEPS = 64
# Texts shorter than this cost the same; above it each doubling is a class of its own
# [no scenario: no simulated machine has attention to long texts]
FILL_TOKENS = 2048
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
# Time of the first step of its size, in optimistic guesses, above which it does not count:
# kernels are loaded then, and graphs recorded [no scenario: tests/test_heads.py]
_FIRST_FACTOR = 2.0
# Cost of a token that is read, as a share of a drafted one, until either was timed
# [no scenario: a target whose prompt was cached]
_READ_SHARE = 0.5
_NOISE = 0.08**2  # variance of the logarithm of one timed step [noisy steps]
# The same of the first step of its size, which often takes longer [noisy steps]
_FIRST_NOISE = 4 * _NOISE
# Growth of the variance of a size during one target-only step [wandering, stale costs]
_DRIFT = 3e-5
_MAX_VARIANCE = 0.15**2  # largest variance of a size [stale costs]
# Elasticity: d log T(n) / d log T(1), the same for all n ≥ 2 [memory bursts, busy processor]
_ELASTICITY = 0.5
# Largest change of log T(1) that counts; beyond it the step was interrupted [busy processor]
_LARGEST_CHANGE = 0.3
_OUTLIER = 3.0  # standard deviations that a timed step counts as at most [noisy steps]


class StepRatios:
    """v(n) after texts of about one length.

    known: (largest + 1,) whether a step of n tokens was timed; counts: how many were.
    """

    def __init__(self, largest: int) -> None:
        self.counts: NDArray[np.int64] = np.zeros(largest + 1, dtype=np.int64)
        self._target_only_s = 0.0  # of a target-only step, at the time of these ratios
        self._logs = np.zeros(largest + 1)
        self._variances = np.zeros(largest + 1)  # of the logarithms

    @property
    def known(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self.counts > 0
        return known

    def at(self, target_only_s: float | None) -> dict[int, float]:
        """n → v(n) of the known sizes, while a target-only step takes target_only_s."""
        change = 1.0
        if target_only_s is not None and self._target_only_s:
            change = ratio_change(target_only_s / self._target_only_s)
        return {
            int(size): math.exp(self._logs[size]) * change
            for size in np.flatnonzero(self.known)
        }

    def spread(self) -> NDArray[np.float64]:
        """(largest + 1,) standard deviations of the logarithms of v(n); 0 for n < 2.

        A size that is not known has the mean of the others.
        """
        spread: NDArray[np.float64] = np.sqrt(self._variances)
        spread[~self.known] = spread[self.known].mean() if self.known.any() else 0.0
        spread[:2] = 0.0
        return spread

    def pass_by(self, num_plain: float) -> None:
        """Make the ratios less certain, after the time of so many target-only steps."""
        self._variances[self.known] += _DRIFT * num_plain
        np.minimum(self._variances, _MAX_VARIANCE, out=self._variances)

    def learn(self, size: int, ratio: float, target_only_s: float) -> None:
        """Take a step of that size into account. target_only_s: T(1) within an answer."""
        if self._target_only_s:
            change = ratio_change(target_only_s / self._target_only_s)
            self._logs[self.known] += math.log(change)
        self._target_only_s = target_only_s
        self._observe(size, math.log(ratio))
        self.counts[size] += 1

    def _observe(self, size: int, log: float) -> None:
        if not self.known[size]:
            self._logs[size] = log
            self._variances[size] = _FIRST_NOISE
            return
        variance = self._variances[size] + _NOISE
        gain = self._variances[size] / variance
        most = _OUTLIER * math.sqrt(variance)
        self._logs[size] += gain * min(max(log - self._logs[size], -most), most)
        self._variances[size] *= 1.0 - gain

    def as_rows(self) -> list[list[float]]:
        """[n, v(n), target_only_s, how often it was timed] for each known size."""
        return [
            [size, round(ratio, 4), round(self._target_only_s, 7), int(self.counts[size])]
            for size, ratio in self.at(None).items()
        ]

    def restore(self, size: int, ratio: float, target_only_s: float, count: int) -> None:
        """Restore a saved ratio, with the largest variance."""
        if not self._target_only_s:
            self._target_only_s = target_only_s
        change = ratio_change(self._target_only_s / target_only_s)
        self._logs[size] = math.log(ratio * change)
        self.counts[size] = count
        self._variances[size] = _MAX_VARIANCE  # the machine may have been in another state


def ratio_change(target_only_change: float) -> float:
    """The factor by which v(n) = T(n) / T(1) changes when T(1) changes by that factor."""
    change = min(max(math.log(target_only_change), -_LARGEST_CHANGE), _LARGEST_CHANGE)
    return math.exp((_ELASTICITY - 1.0) * change)


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
        self._ratios: dict[int, StepRatios] = {}  # by fill
        self._slow_firsts: set[int] = set()  # sizes whose first step did not count
        self._num_passed = 0.0  # in target-only steps: time since the ratios were updated
        self._target_only: deque[float] = deque(maxlen=_NUM_PLAIN)
        self._answer_plain_s: float | None = None  # target_only_s of an answer, within `apart`
        self.steps_since_target_only = 0
        self._plain_in_a_row = 0

    @property
    def is_old(self) -> bool:
        """Whether v(n) may have changed: no step of several tokens was timed for long."""
        return self._plain_in_a_row >= _RESTED_STEPS

    def learn(self, num_tokens: int, num_cached: int, seconds: float) -> bool:
        """Learn from a timed decode of num_tokens after num_cached others.

        Returns whether it counts: a first one of its size that was slow says nothing.
        """
        if num_tokens > LARGEST_STEP:
            self.prefill_token_s = seconds / num_tokens
            return True
        if self.target_only_s:
            self._num_passed += seconds / self.target_only_s
        if num_tokens == 1:
            self.steps_since_target_only = 0
            self._plain_in_a_row += 1
            self._target_only.append(seconds)
            # Of too few the smallest counts, since disturbances only add time.
            is_enough = len(self._target_only) >= _NUM_PLAIN
            typical = statistics.median if is_enough else min
            self.target_only_s = typical(self._target_only)
            if self._num_passed >= _RESTED_STEPS:
                self._pass_by()
            return True
        self.steps_since_target_only += 1
        self._plain_in_a_row = 0
        ratios = self._ratios_at(fill(num_cached))
        is_fresh = self.steps_since_target_only <= FRESH_STEPS
        if self.target_only_s and (is_fresh or not ratios.known[num_tokens]):
            self._pass_by()
            ratio = seconds / self.target_only_s
            is_first = not ratios.known[num_tokens] and num_tokens not in self._slow_firsts
            guess = self.ratios(num_cached, optimistic=True)[num_tokens] if is_first else ratio
            if ratio > _FIRST_FACTOR * guess:
                self._slow_firsts.add(num_tokens)
                return False
            ratios.learn(num_tokens, ratio, self._answer_plain_s or self.target_only_s)
        return True

    def _ratios_at(self, fill: int) -> StepRatios:
        if fill not in self._ratios:
            self._ratios[fill] = StepRatios(LARGEST_STEP)
        return self._ratios[fill]

    def _pass_by(self) -> None:
        for ratios in self._ratios.values():
            ratios.pass_by(self._num_passed)
        self._num_passed = 0.0
        self.version += 1

    def forget_target_only(self) -> None:
        """Discard the times of target-only steps, which are too old."""
        self._target_only.clear()

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """A context for timing steps in idle time, when a target-only step may take longer than
        in an answer. The steps are compared with each other, and only their ratios are kept.
        """
        before = self._target_only, self.target_only_s, self.steps_since_target_only
        self._target_only, self.target_only_s = deque(maxlen=_NUM_PLAIN), None
        self._answer_plain_s = before[1]
        try:
            yield
        finally:
            self._target_only, self.target_only_s, self.steps_since_target_only = before
            self._answer_plain_s = None

    def ratio_change(self, target_only_s: float) -> float:
        """The probable change of v(n), n ≥ 2, since T(1) was target_only_s, as a factor."""
        return ratio_change((self.target_only_s or target_only_s) / target_only_s)

    def measured(self, num_cached: int) -> dict[int, float]:
        """n → v(n) of the measured sizes, 1 included, for a text of that length."""
        known = {1: 1.0}
        nearest = fill(num_cached)
        # The nearest measured length counts, since similar lengths have similar curves.
        for length in sorted(self._ratios, key=lambda length: -abs(length - nearest)):
            # After a text of another length, T(1) differs for another reason.
            known |= self._ratios[length].at(self.target_only_s if length == nearest else None)
        return known

    def spread(self, num_cached: int) -> NDArray[np.float64]:
        """(LARGEST_STEP + 1,) standard deviations of the logarithm of v(n)."""
        return self._ratios_at(fill(num_cached)).spread()

    def ratios(self, num_cached: int, *, optimistic: bool) -> list[float]:
        """(LARGEST_STEP + 1,) v(n) for n = 0, 1, 2 …; v(0) is 0.

        Sizes that were not measured get a guess. With the optimistic guess, sizes that might
        pay are tried, and so measured; it ends at twice the largest measured size. The
        pessimistic guess is what such a trial may cost.
        """
        known = self.measured(num_cached)
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

    def sizes_to_measure(self, num_cached: int) -> list[int]:
        """Sizes of steps that lack samples after such a text, once for each missing sample."""
        counts = self._ratios_at(fill(num_cached)).counts
        return [
            size
            for size in range(2, LARGEST_STEP)
            for _ in range(_NUM_TRUSTED - int(counts[size]))
        ]

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {
            "ratios": [
                [fill, *row]
                for fill, ratios in sorted(self._ratios.items())
                for row in ratios.as_rows()
            ],
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`."""
        self._ratios = {}
        for fill, size, ratio, target_only_s, count in kept["ratios"]:
            num_timed = min(count, _NUM_TRUSTED)
            self._ratios_at(fill).restore(size, ratio, target_only_s, num_timed)
        self.version += 1


class DraftCost:
    """Seconds that a proposer takes. share: of a target-only step's, until it is measured."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._read_share: float | None = None  # the same of a token that is read among many
        self._tokens: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._reads: deque[float] = deque(maxlen=_NUM_SAMPLES)

    @property
    def is_measured(self) -> bool:
        """Whether enough drafted tokens were timed."""
        return len(self._tokens) >= _NUM_TRUSTED

    @property
    def knows_reading(self) -> bool:
        """Whether a read of many tokens was timed, in this process or before."""
        return self._read_share is not None

    def learn(
        self, num_read: int, num_drafted: int, seconds: float, target_only_s: float
    ) -> None:
        """Learn from a timed proposal that read num_read tokens and proposed num_drafted."""
        if num_read >= _TIMED_READ:
            others_s = max(num_drafted - 1, 0) * self.token_s(target_only_s)
            self._reads.append(max(seconds - others_s, 0.0) / num_read)
            if target_only_s > 0:
                self._read_share = statistics.median(self._reads) / target_only_s
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
        if self._read_share is not None:
            return self._read_share * target_only_s
        if prefill_token_s is not None:
            return self._share * prefill_token_s
        return _READ_SHARE * self.token_s(target_only_s)

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        read_share = None if self._read_share is None else round(self._read_share, 5)
        return {"share": round(self._share, 5), "read_share": read_share}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`."""
        self._share, self._read_share = kept["share"], kept["read_share"]


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


def fill(num_cached: int) -> int:
    """The class of text lengths with about the same costs, for a text of so many tokens."""
    return (num_cached // FILL_TOKENS).bit_length()
