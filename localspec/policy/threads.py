"""How many threads decode, chosen at run time: fewer while the machine is busy.

The threads of a decode wait for each other many times in every step. A thread that shares its
core with another program makes all of them wait, so on a busy machine fewer threads are often
several times faster. The cost is in a few very slow steps, so means decide, never medians.

The slowdown of a step is its time divided by the shortest time of any step of its shape, with
any number of threads. Each number of threads has the mean slowdown of its latest steps, and its
least slowdown, which is close to that on a quiet machine. The number with the smallest mean is
used. Others are tried for a share of the time that is probably lost without them; the share
shrinks the longer the present number was the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localspec.policy.cost import LARGEST_STEP, SHORT_READ, fill
from localspec.speculative.policy_api import StepRecord, ThreadUse

_WINDOW = 16  # steps over which a number of threads is averaged, the latest weighing most
# Another number has to be this many times as fast; a smaller difference is noise
_BETTER = 1.05
# Share of the probable loss that trials may lose, in the end and at first; between them it is
# one over the root of the number of steps
_LEAST_SHARE, _LARGEST_SHARE = 1 / 64, 1 / 8
# Time that has to be saved up for a trial, in fastest steps; so much is there at the beginning
_TRIAL_STEPS = 1.0
_MAX_DEBT_STEPS = 256.0  # largest debt of a trial; the rest of its loss is forgiven
_ADOPTED_AFTER = 8  # steps after which a tried number that is faster is no longer a trial
# Steps after which the least slowdown of a number counts half as one of a quiet machine
_KNOWN_STEPS = 16
_FEWER_SHARE = 0.9  # optimistic time of fewer threads, as a share of the time with more
_NEGLIGIBLE_S = 1e-9  # a decayed sum of step times below this many seconds counts as none

# Class of lengths, tokens of the target, tokens of the draft, index of the proposer or -1
Shape = tuple[int, int, int, int]


@dataclass(slots=True)
class Threads:
    """A number of threads, and how long steps took with it.

    seconds, weight: decayed sums, of the seconds of each shape and of the number of steps.
    shortest: seconds of the fastest step of each shape. least: the least slowdown. left_at: the
    step at which another number replaced it last.
    """

    count: int
    seconds: dict[Shape, float] = field(default_factory=dict)
    weight: float = 0.0
    shortest: dict[Shape, float] = field(default_factory=dict)
    least: float = math.inf
    num_steps: int = 0
    left_at: int = 0

    def pass_by(self, num_steps: int) -> None:
        """Let the older steps count less, after so many new ones."""
        share = (1.0 - 1.0 / _WINDOW) ** num_steps
        kept = ((s, total) for s, total in self.seconds.items() if total > _NEGLIGIBLE_S)
        self.seconds = {shape: share * total for shape, total in kept}
        self.weight *= share

    def add(self, shape: Shape, seconds: float, slowdown: float) -> None:
        """Take a step into account."""
        self.pass_by(1)
        self.seconds[shape] = self.seconds.get(shape, 0.0) + seconds
        self.weight += 1.0
        self.shortest[shape] = min(self.shortest.get(shape, math.inf), seconds)
        self.least = min(self.least, slowdown)
        self.num_steps += 1


class AdaptiveThreads:
    """Chooses the number of threads with which steps were fastest.

    most: the best number on a quiet machine, with which it begins. use_threads: sets the
    models' number of threads. was_alone: whether the last step had decodes of its own; others
    say nothing about threads.
    """

    def __init__(
        self,
        most: int,
        use_threads: Callable[[int], None],
        was_alone: Callable[[], bool],
    ) -> None:
        self._use_threads = use_threads
        self._was_alone = was_alone
        self._numbers = [Threads(count) for count in counts_to_try(most)]
        self._now = self._numbers[0]
        self._previous: Threads | None = None  # the number before a trial, during the trial
        self._trial_length = 0  # steps
        self._saved_steps = _TRIAL_STEPS  # time that trials may lose, in fastest steps
        self._num_steps = 0
        self._best_since = 0  # step since which the number outside of trials was the best
        # The smallest slowdowns of the other numbers, which change only when those are used.
        self._expected_of_others = self._optimistic_of_others = math.inf
        self._update_others()
        self._shortest: dict[Shape, float] = {}  # seconds

    def choose(self) -> int:
        return self._now.count

    def use(self) -> ThreadUse:
        most, now = self._numbers[0], self._now
        # It was faster with all threads before.
        return ThreadUse(now.count, most.count, most.least * _BETTER < now.least)

    def learn(self, record: StepRecord) -> None:
        is_prompt = record.proposer is None and record.num_target_tokens > 1
        is_long = record.num_target_tokens > LARGEST_STEP or record.num_read > SHORT_READ
        if not self._was_alone() or is_prompt or is_long or record.replay_s > 0.0:
            return  # reading takes its own time, and says nothing about steps
        seconds = record.draft_time_s + record.target_time_s + record.sampler_time_s
        proposer = -1 if record.proposer is None else record.proposer
        sizes = record.num_target_tokens, record.num_draft_tokens
        shape = (fill(record.num_cached), *sizes, proposer)
        slowdown = self._slowdown(shape, seconds)
        if slowdown is None:
            return
        self._num_steps += 1
        now = self._now
        is_new = slowdown < now.least
        now.add(shape, seconds, slowdown)
        if self._previous is not None:
            self._continue_trial(self._previous, slowdown)
            return
        if is_new:
            self._update_others()
        if self._is_better(self._expected_of_others):
            self._best_since = self._num_steps
            self._move_to(min(self._others(), key=self._expected))
        elif self._is_better(self._optimistic_of_others):
            num_steps = self._num_steps - self._best_since
            share = min(max(num_steps**-0.5, _LEAST_SHARE), _LARGEST_SHARE)
            self._save(share * (self._mean(now) - self._optimistic_of_others))
            if self._saved_steps >= _TRIAL_STEPS:
                self._start_trial()

    def _slowdown(self, shape: Shape, seconds: float) -> float | None:
        """The slowdown of a step; None for the first step of its shape, which has none yet."""
        now = self._now
        shortest = self._shortest.get(shape)
        if shortest is None:
            # The first one is assumed to be as slow as other steps are expected to be now.
            is_first = self._num_steps == 0
            self._shortest[shape] = seconds / (1.0 if is_first else self._expected(now))
            return 1.0 if is_first else None
        if seconds < shortest:
            # So the steps of other numbers had a larger slowdown than it seemed.
            self._shortest[shape] = seconds
            for number in self._numbers:
                if shape in number.shortest:
                    timed = number.shortest.items()
                    number.least = min(taken / self._shortest[each] for each, taken in timed)
            self._update_others()
            return 1.0
        return seconds / shortest

    def _mean(self, number: Threads) -> float:
        """The mean slowdown of its latest steps; without any, its least slowdown."""
        if number.weight == 0.0:
            return number.least
        timed = number.seconds.items()
        return sum(taken / self._shortest[shape] for shape, taken in timed) / number.weight

    def _start_trial(self) -> None:
        """Try a number that may be better: of several, the one not used for longest."""
        candidates = [one for one in self._others() if self._is_better(self._optimistic(one))]
        number = min(candidates, key=lambda one: one.left_at)
        # Its old times may no longer hold: the trial is to find out.
        number.seconds, number.weight = {}, 0.0
        self._previous, self._trial_length = self._now, 0
        self._move_to(number)

    def _continue_trial(self, previous: Threads, slowdown: float) -> None:
        self._trial_length += 1
        previous_mean = self._mean(previous)
        self._save(previous_mean - slowdown)
        if self._mean(self._now) >= previous_mean:
            self._previous = None
            self._move_to(previous)
        elif self._trial_length >= _ADOPTED_AFTER:
            self._previous = None
            self._best_since = self._num_steps
            self._update_others()

    def _save(self, steps: float) -> None:
        self._saved_steps = min(
            max(self._saved_steps + steps, -_MAX_DEBT_STEPS), 2 * _TRIAL_STEPS
        )

    def _move_to(self, number: Threads) -> None:
        self._now.left_at = self._num_steps
        number.pass_by(self._num_steps - number.left_at)
        self._use_threads(number.count)
        self._now = number
        self._update_others()

    def _update_others(self) -> None:
        """Compute again what the other numbers promise, as expected and at best."""
        others = self._others()
        self._expected_of_others = min(map(self._expected, others), default=math.inf)
        self._optimistic_of_others = min(map(self._optimistic, others), default=math.inf)

    def _others(self) -> list[Threads]:
        return [number for number in self._numbers if number is not self._now]

    def _is_better(self, slowdown: float) -> bool:
        return slowdown * _BETTER < self._mean(self._now)

    def _expected(self, number: Threads) -> float:
        """The expected slowdown of a step with it."""
        if number.num_steps > 0:
            return self._mean(number)
        # Compared with the next larger number that was timed, as if no time went by waiting.
        timed = [n for n in self._numbers if n.num_steps > 0 and n.count > number.count]
        larger = timed[-1] if timed else self._numbers[0]
        return larger.least * larger.count / number.count

    def _optimistic(self, number: Threads) -> float:
        """The slowdown of a step with it at best."""
        # At best, more threads are faster in proportion, and fewer ones hardly faster at all.
        # After many steps, its own least slowdown shows what it reaches on a quiet machine.
        gain = max(number.count / self._now.count, 1.0 / _FEWER_SHARE)
        best = min(self._now.least / gain, number.least)
        share = _KNOWN_STEPS / (_KNOWN_STEPS + number.num_steps)
        return share * best + (1.0 - share) * number.least if number.num_steps > 0 else best

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {
            "shortest": [
                [*shape, round(seconds, 7)] for shape, seconds in self._shortest.items()
            ],
            "numbers": [
                [number.count, round(number.least, 4), number.num_steps]
                for number in self._numbers
                if number.num_steps > 0
            ],
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`. Of no use after an error, as of a damaged file."""
        self._shortest = {(a, b, c, d): seconds for a, b, c, d, seconds in kept["shortest"]}
        known = {count: (least, num_steps) for count, least, num_steps in kept["numbers"]}
        for number in self._numbers:
            if number.count in known:
                number.least, num_steps = known[number.count]
                number.num_steps = min(num_steps, _KNOWN_STEPS)
        self._update_others()


def counts_to_try(most: int) -> list[int]:
    """The numbers of threads that are tried, the largest first."""
    counts = [most]
    if most > 2:
        counts.append(most - 1)  # one busy neighbour is the usual case
    while counts[-1] > 1:
        counts.append(counts[-1] * 3 // 4)
    return counts
