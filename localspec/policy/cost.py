"""Costs of decodes on this machine, in units of a target-only step, learned during answers.

v(n) = T(n) / T(1) is the cost of decoding n tokens right after another decode of n tokens. It
is not monotone (a kernel for 4 tokens can be cheaper than one for 3), so each size has its own
`Estimate`. A decode of another size than the last decode costs a *change* more: a GPU's graph
has to be captured again, or threads have to wake.

Costs are fixed when an answer begins, so that a repeated question takes the same steps.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, ProposerKind

# Tokens of the largest step whose cost is measured for its own size
LARGEST_STEP = MAX_DRAFT_TOKENS + 1
# The most tokens that a proposer reads before it drafts in an ordinary step
SHORT_READ = 2
# Sizes that are timed while idle; the only ones that decodes change to where a change is dear
STEADY_SIZES = (1, 2, 4, 8, 16)
_TILE = 4  # kernels for several tokens compute a multiple of this many
_NUM_SAMPLES = 9  # samples for the median; a third of them is enough to fix a cost
# A fixed cost is replaced between answers if measurements differ from it by this factor, and
# within an answer if they differ by its square
_CHANGED = 1.25
_STEADY = 2  # expected number of steps in a row of one size, which share the cost of a change
# The first step of a size is not counted if it takes more than this factor times as long as
# expected
_FIRST_OF_SIZE = 2.0
_FIRST_CLASS_TOKENS = 2048  # texts below this length are in the length class 0
_NEGLIGIBLE_COST = 0.1  # steps; costs below it count as equal, and a cheaper change as free
# Until a prompt was timed: the cost of a token of a prefill. One more token in a small decode
# counts half of that
_PREFILL_TOKEN_GUESS = 0.2

Row = NDArray[np.float64]


class Estimate:
    """A cost that is measured.

    The value follows the first samples at once. Later it is fixed during an answer, unless
    measurements are far from it.
    """

    def __init__(self, guess: float | None = None) -> None:
        self.value = guess
        """The cost for decisions; None without a guess or a sample."""

        self._is_fixed = False
        self._samples: deque[float] = deque(maxlen=_NUM_SAMPLES)

    @property
    def num_lacking(self) -> int:
        """The number of samples to wait for before the value can be fixed."""
        if self._is_fixed:
            return 0
        return max(_NUM_SAMPLES // 3 - len(self._samples), 0)

    def learn(self, sample: float) -> bool:
        """Take a sample into account. Returns whether a fixed value has changed."""
        self._samples.append(sample)
        if not self._is_fixed:
            self.value = _typical(self._samples)
            return False
        if len(self._samples) <= _NUM_SAMPLES // 2:
            return False
        return self._update(_CHANGED**2)

    def settle(self) -> None:
        """Fix the value for an answer."""
        if self._is_fixed and len(self._samples) == _NUM_SAMPLES:
            self._update(_CHANGED)
        self._is_fixed = self.num_lacking == 0

    def _update(self, factor: float) -> bool:
        """Replace the value by that of the samples, which are then dropped, if they differ.

        Returns whether it was replaced. Two costs below _NEGLIGIBLE_COST count as equal.

        Args:
            factor: The larger value has to be at least this many times the smaller one.
        """
        typical = _typical(self._samples)
        low, high = sorted((self.value or 0.0, typical))
        if high < max(factor * low, _NEGLIGIBLE_COST):
            return False
        self.value = typical
        self._samples.clear()
        return True

    def value_to_keep(self) -> float | None:
        """The value to keep; None for a guess."""
        is_known = self._is_fixed or self._samples
        if is_known and self.value is not None:
            return round(self.value, 4)
        return None

    def restore(self, value: float | None) -> None:
        """Continue with a value that was kept."""
        if value is not None:
            self.value = max(float(value), 0.0)
            self._is_fixed = True


class Costs:
    """The costs of target and proposers, for one number of threads and one `length_class`.

    Their unit is a target-only step. Names that end with `_s` are in seconds.

    Args:
        draft_shares: Guesses of what a draft token of each kind of proposer costs.

    Attributes:
        plain_s: The time of a target-only step.
        prefill_token_s: The time of a token of the target's prefill.
        estimates: All other costs, by name. "change" is a target-only step just after a decode
            of another size. A number n in digits is v(n). A kind of proposer is the drafting of
            one token, or of a whole block; "read" and a kind is one token of its prefill.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float]) -> None:
        self._shares = draft_shares
        self.plain_s: float | None = None
        self.prefill_token_s: float | None = None
        self.estimates: dict[str, Estimate] = defaultdict(Estimate, {"change": Estimate(1.0)})
        self._guess_draft_costs()
        self._plain: deque[float] = deque(maxlen=_NUM_SAMPLES // 2 + 1)  # seconds
        self._tables: dict[int, tuple[Row, list[int]]] = {}  # results of `step_costs`

    def _guess_draft_costs(self) -> None:
        for kind, share in self._shares.items():
            self.estimates[kind.value] = Estimate(share)

    @property
    def is_change_dear(self) -> bool:
        """Whether a change of size costs enough to be avoided."""
        return self.change_cost > _NEGLIGIBLE_COST

    @property
    def change_cost(self) -> float:
        """The extra cost of a decode whose size differs from the last decode's."""
        return max((self.estimates["change"].value or 1.0) - 1.0, 0.0)

    @property
    def needs_plain(self) -> bool:
        """Whether target-only steps have to be timed before other steps."""
        # A single time may have been disturbed. A restored plain_s needs none.
        return self.plain_s is None or len(self._plain) == 1

    def settle(self) -> None:
        """Fix all costs for an answer."""
        for estimate in self.estimates.values():
            estimate.settle()
        self._tables.clear()

    def learn_plain(self, seconds: float) -> bool:
        """Learn the time of a target-only step just after another target-only step.

        Returns whether to time another one, because this one differs much from the others.
        """
        self._plain.append(seconds)
        typical_s = _typical(self._plain)
        self.plain_s = typical_s
        fast_s = min(seconds, typical_s)
        slow_s = max(seconds, typical_s)
        return slow_s >= _CHANGED**2 * fast_s

    def learn_size(self, size: int, ratio: float) -> bool:
        """Learn v(size) from a step. Returns whether plain_s may be outdated.

        Args:
            size: Tokens of the step.
            ratio: Its time ÷ plain_s.
        """
        is_new = str(size) not in self.estimates
        estimate = self.estimates[str(size)]  # adds a new size
        # The first decode of a size may include loading kernels and capturing graphs.
        if is_new and ratio > _FIRST_OF_SIZE * self.ratios()[size]:
            return False
        self._tables.clear()
        return estimate.learn(ratio)

    def learn_change(self, ratio: float) -> None:
        """Learn the cost of a change from a target-only step just after a larger decode.

        Args:
            ratio: The step's time ÷ plain_s.
        """
        was_dear = self.is_change_dear
        self.estimates["change"].learn(ratio)
        if self.is_change_dear and not was_dear:
            self._guess_draft_costs()  # what was measured includes changes of size
        self._tables.clear()

    def learn_in_idle_time(
        self,
        size: int,
        plain_s: float,
        seconds: list[float],
        back_s: float,
    ) -> None:
        """Learn v(size) and the cost of a change from decodes between answers.

        Their times can be longer than in an answer, so only their ratios count, once plain_s is
        known.

        Args:
            size: The size of these decodes.
            plain_s: The seconds of a target-only step just after another.
            seconds: The seconds of successive decodes of this size, without the first.
            back_s: The seconds of a target-only step just after them.
        """
        if self.plain_s is None:
            self.plain_s = plain_s
        estimate = self.estimates[str(size)]
        for size_s in seconds:
            estimate.learn(size_s / plain_s)
        self.learn_change(back_s / plain_s)

    def learn_draft(
        self,
        kind: ProposerKind,
        num_read: int,
        num_decodes: int,
        seconds: float,
    ) -> None:
        """Learn what it costs this kind of proposer to read a token, or to draft one.

        Nothing is learned before a target-only step was timed.

        Args:
            kind: The proposer.
            num_read: Tokens of the text that it read before it drafted.
            num_decodes: Decodes that it took to draft. The first also read the tokens; 0 if it
                only read.
            seconds: The time of reading and drafting together.
        """
        if not self.plain_s:
            return
        cost = seconds / self.plain_s
        # Reads of sizes between the two bounds teach nothing: they are mostly fixed overhead.
        if num_read > LARGEST_STEP:
            later_decodes = max(num_decodes - 1, 0)
            read_cost = cost - later_decodes * self.draft_token_cost(kind)
            read_cost = max(read_cost, 0.0)
            self.estimates[f"read {kind.value}"].learn(read_cost / num_read)
        elif num_decodes > 0 and num_read <= SHORT_READ:
            self.estimates[kind.value].learn(cost / num_decodes)

    def draft_token_cost(self, kind: ProposerKind) -> float:
        """The cost of drafting a token, or a whole block; 0 while it is unknown."""
        return self.estimates[kind.value].value or 0.0

    def read_token_cost(self, kind: ProposerKind) -> float:
        """The cost of a token of a proposer's prefill.

        Until it is measured it is guessed: it is to a token of the target's prefill as a draft
        token is to a target-only step.
        """
        measured = self.estimates[f"read {kind.value}"].value
        if measured is None:
            return self._prefill_token_cost * self.draft_token_cost(kind)
        return measured

    @property
    def _prefill_token_cost(self) -> float:
        """The cost of a token of the target's prefill; at most that of a target-only step."""
        if self.prefill_token_s is None or not self.plain_s:
            return _PREFILL_TOKEN_GUESS
        return min(self.prefill_token_s / self.plain_s, 1.0)

    def measured_sizes(self) -> dict[int, float]:
        """n → v(n) for the timed sizes n > 1."""
        measured = {}
        for name, estimate in self.estimates.items():
            if name.isdecimal() and estimate.value is not None:
                measured[int(name)] = estimate.value
        return dict(sorted(measured.items()))

    def ratios(self) -> list[float]:
        """(LARGEST_STEP + 1,) v(n) for n = 0, 1, 2 …

        It is interpolated linearly between timed sizes. For sizes up to twice the largest timed
        one, and for those up to _TILE, it is a guess, which is low enough for these sizes to be
        tried. For larger sizes it is infinite.
        """
        timed_ratios = {0: 0.0, 1: 1.0, **self.measured_sizes()}
        largest = max(timed_ratios)
        timed_sizes = list(timed_ratios)
        sizes = np.arange(LARGEST_STEP + 1)
        ratios = np.interp(sizes, timed_sizes, list(timed_ratios.values()))
        # Each token above the largest timed size is guessed to cost half a token of a prefill,
        # where a size counts as the next power of two.
        exponents = np.ceil(np.log2(np.maximum(sizes, 1)))
        num_guessed = np.where(sizes > largest, 2.0**exponents - largest, 0)
        ratios += self._prefill_token_cost / 2 * num_guessed
        largest_guessed = max(_TILE, 2 * largest)
        ratios[sizes > largest_guessed] = np.inf
        return ratios.tolist()

    def step_costs(self, last_size: int) -> tuple[Row, list[int]]:
        """The cost of a step of 0, 1, 2 … tokens, and the size to which each is padded.

        A step of another size than the last one has a part of the cost of the change: the steps
        that are expected to keep the new size share it. After a target-only step, the change
        back is added.

        Args:
            last_size: The size of the last decode.

        Returns:
            Both with LARGEST_STEP + 1 entries. They must not be changed.
        """
        is_dear = self.is_change_dear
        key = 1
        if is_dear:
            key = last_size
        if key in self._tables:
            return self._tables[key]
        ratios = self.ratios()
        change = 0.0
        if is_dear:
            change = self.change_cost / _STEADY
            if last_size == 1:
                change *= 2
        step_costs = np.zeros(LARGEST_STEP + 1)
        padded = [0] * (LARGEST_STEP + 1)
        best = LARGEST_STEP  # the cheapest of the sizes so far
        best_cost = float("inf")
        for size in range(LARGEST_STEP, 0, -1):
            cost = ratios[size]
            if size != last_size:
                cost += change
            is_allowed = not is_dear or size in STEADY_SIZES or size == last_size
            # Of equal costs the larger size is best: it fills a kernel's tile at no extra cost.
            # A single token is not padded.
            if is_allowed and (cost < best_cost or size == 1):
                best = size
                best_cost = cost
            step_costs[size] = best_cost
            padded[size] = best
        table = (step_costs, padded)
        self._tables[key] = table
        return table

    def sizes_to_time(self) -> list[int]:
        """The sizes of STEADY_SIZES above 1 whose costs need more samples."""
        lacking = []
        for size in STEADY_SIZES[1:]:
            estimate = self.estimates.get(str(size))
            if estimate is None or estimate.num_lacking:
                lacking.append(size)
        return lacking

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        kept: dict[str, Any] = {"plain_s": self.plain_s}
        for name, estimate in self.estimates.items():
            kept[name] = estimate.value_to_keep()
        return kept

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue with the costs in `kept`, which `as_dict` returned."""
        if kept["plain_s"] is not None:
            self.plain_s = float(kept["plain_s"])
        for name, value in kept.items():
            if name != "plain_s":
                self.estimates[name].restore(value)
        self._tables.clear()  # they were made from other costs


def _typical(samples: Collection[float]) -> float:
    """The median; of one or two samples the minimum, since disturbances only add time."""
    if len(samples) < 3:
        return min(samples)
    return statistics.median(samples)


def length_class(num_cached: int) -> int:
    """The class of a text of num_cached tokens: 0 below 2048, then 1 more per doubling."""
    return (num_cached // _FIRST_CLASS_TOKENS).bit_length()
