"""Checks the random numbers themselves: that each is fresh, and how the rule coupled uses them.

What `step_law` enumerates is right for numbers that are uniform, independent and used once. So
each address has to hold a number of its own, always the same one; numbers and pairs of
neighbours have to be spread evenly; and no address may serve two steps. The rule coupled cannot
be enumerated, since its choice depends on the noise of all tokens at once: each choice is
compared with its definition, argmax(log p + Gumbel noise) (Gumbel 1954; Daliri et al., arXiv
2408.07978), for which the law is a theorem.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from localspec.checks.enumeration import Enumeration
from localspec.checks.step_law import RULES
from localspec.errors import Interrupted
from localspec.sampling.distribution import Distribution, Logits, Probs
from localspec.sampling.filters import filtered_distribution
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.randomness import MAX_SEED, Randomness, fresh_seed
from localspec.speculative.rules import Rule, make_rule
from localspec.streaming.cancellation import CancelCheck, never

# No row is certain then, so that every decision takes a number.
UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
_NUM_STEPS = 32768  # of each stream, whose uniforms are looked at: 4 718 592
_NUM_PLACES, _NUM_IDS = 256, 4096  # of noise: 3 145 728
_NUM_PARTS = 16  # of the unit interval
# Deviations of a count. Right numbers exceed it less than once in 10**9 checks; a part of the
# interval that is 3 % too full, or a pair of parts 10 %, hardly ever keeps within it.
_MOST_DEVIATIONS = 7.5
_MOST_EQUAL = 2  # of 53 bits; more are equal less than once in 10**9 checks
_CHOICES = 40  # at each row
_NEAR_TIE = 1e-9  # between two sums, which round
_NUM_NOTED = 4  # steps whose addresses are noted, each with
_ADDRESSED = 2  # draft tokens


@dataclass(slots=True)
class Numbers:
    """The result so far.

    num_numbers: that were drawn. num_choices: of the rule coupled. bugs: in words.
    """

    num_numbers: int = 0
    num_choices: int = 0
    bugs: list[str] = field(default_factory=list)

    def check_streams(self, is_ended: CancelCheck = never) -> None:
        """Uniforms and noise, of a fresh seed and of the next turn, in two orders.

        Takes a second or two. Raises Interrupted soon after is_ended says so.
        """
        seed = fresh_seed() % MAX_SEED
        ids = np.arange(_NUM_IDS)
        self._check_stream(
            "uniforms",
            seed,
            lambda randomness, step: randomness.uniforms(step).ravel(),
            _NUM_STEPS,
            is_ended,
        )
        self._check_stream(
            "noise",
            seed,
            lambda randomness, index: randomness.noise(index, ids),
            _NUM_PLACES,
            is_ended,
        )

    def _check_stream(
        self,
        name: str,
        seed: int,
        read: Callable[[Randomness, int], Probs],
        count: int,
        is_ended: CancelCheck,
    ) -> None:
        def numbers(stream: Randomness, places: Iterable[int]) -> Probs:
            if is_ended():
                raise Interrupted("the check was ended")
            return np.array([read(stream, place) for place in places])

        streams = [Randomness(seed), Randomness(seed, 1), Randomness(seed + 1)]
        first, *others = (numbers(stream, range(count)) for stream in streams)
        # Those of a later answer of the same turn go on from here, in any order.
        backwards = Randomness(seed, num_said=1)
        again = numbers(backwards, reversed(range(count - 1)))[::-1]
        self.num_numbers += 3 * first.size
        if not np.array_equal(again, first[1:]):
            self._tell(f"{name} of an address are not always the same")
        everything = np.concatenate([first, *others])
        if len(np.unique(everything)) < everything.size - _MOST_EQUAL:
            self._tell(f"{name} of two addresses are the same")
        if not (_is_even(everything.ravel()) and _are_pairs_even(everything)):
            self._tell(f"{name} are not uniform and independent")

    def check_choices(self, rows: Logits, params: SamplingParams) -> None:
        """Compare choices of the rule coupled at rows of the target with the definition.

        With the cuts of these params, and once without any.
        """
        for row, cuts in [(rows[0], UNCUT), *((row, params) for row in rows)]:
            self._check_choices_at(filtered_distribution(row, cuts))

    def _check_choices_at(self, row: Distribution) -> None:
        randomness = Randomness(fresh_seed())
        with np.errstate(divide="ignore"):
            weights = np.log(row.probs)
        for index in range(_CHOICES):
            exponential = -np.log1p(-randomness.noise(index, row.ids))
            sums = weights - np.log(exponential)
            chosen = row.ids.searchsorted(randomness.gumbel_max(index, row))
            self.num_choices += 1
            if sums[chosen] < sums.max() - _NEAR_TIE:
                self._tell("the rule coupled does not choose by its noise")

    def _tell(self, bug: str) -> None:
        if bug not in self.bugs:
            self.bugs.append(bug)

    def check_addresses(
        self,
        loop: SpeculativeDecoder,
        prompt: list[int],
        make_request: Callable[[Rule], Request],
    ) -> None:
        """Take a few drafting steps behind a prompt: each has to look at numbers of its own.

        Its numbers are decided at random. make_request: of a rule, with the samplers `UNCUT`.
        Raises Interrupted.
        """
        loop.draft_policy = FixedDraftPolicy(_ADDRESSED)
        for name in RULES:
            numbers = Enumeration(Random())
            rule = make_rule(name, is_greedy=False, seed=None, randomness=numbers)
            earlier: set[Hashable] = set()
            loop.start(prompt)
            for _ in itertools.islice(loop.steps(make_request(rule)), _NUM_NOTED):
                if numbers.used & earlier:
                    self._tell(f"two steps of the rule {name} use the same number")
                    break
                earlier |= numbers.used
                numbers.used.clear()


def _is_even(numbers: Probs) -> bool:
    """Whether every part of the unit interval has its share of the numbers."""
    parts = (numbers * _NUM_PARTS).astype(np.int64)
    return _has_shares(np.bincount(parts, minlength=_NUM_PARTS), len(numbers))


def _are_pairs_even(numbers: Probs) -> bool:
    """(n, m) numbers: the same of pairs of neighbours along both axes."""
    parts = (numbers * _NUM_PARTS).astype(np.int64)
    return all(
        _has_shares(
            np.bincount((_NUM_PARTS * one + other).ravel(), minlength=_NUM_PARTS**2), one.size
        )
        for one, other in ((parts[:-1], parts[1:]), (parts[:, :-1], parts[:, 1:]))
    )


def _has_shares(counts: NDArray[np.int64], total: int) -> bool:
    share = 1.0 / len(counts)
    deviation = np.sqrt(total * share * (1.0 - share))
    return bool(np.all(np.abs(counts - total * share) <= _MOST_DEVIATIONS * deviation))
