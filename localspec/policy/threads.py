"""How many threads decode, chosen at run time: fewer while the machine is busy.

The threads of a decode wait for each other many times in every step. A thread that shares its
core with another program makes all of them wait, so on a busy machine fewer threads are often
several times faster. The cost is in a few very slow steps, so means decide, never medians.

The slowdown of a step is its time divided by the shortest time of any step of its shape, with
any number of threads. Numbers are tried in turn. Trials may lose a share of the time that slow
steps lose, so there are many trials on a busy machine, and few on a quiet one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.policy.cost import LARGEST_STEP, SHORT_READ, fill
from localspec.policy.fastest import FastestDecodes
from localspec.speculative.policy_api import StepRecord, ThreadPolicy, ThreadUse

# Steps over which slowdowns are averaged; a tried number that is faster over all of them stays
TRIAL_STEPS = 16
_SHARE = 1 / 20  # share of the lost time that trials may lose
_NOISE = 1.05  # slowdown of steps on a machine that does nothing else
# Time that trials may lose at first if other programs were seen. After a trial's number of
# steps the policy looks again: if the programs are gone, more threads are tried, even if no
# step was slow
_SOON = 1.0 - TRIAL_STEPS * _SHARE * (_NOISE - 1.0)

# Class of lengths, tokens of the target, tokens of the draft, index of the proposer
Shape = tuple[int, int, int, int | None]


class AdaptiveThreads(ThreadPolicy):
    """Chooses the number of threads with which steps were fastest.

    Args:
        counts: The numbers to choose from, as `counts_to_try` gives them; a single one is kept.
        num_free: Cores that other programs left free a moment ago. It begins with as many
            threads.
        look_again: Gives the cores that they left free since its last call; None if that time
            is too short to say.
        use_threads: Sets the models' number of threads.
        was_alone: Whether the last step had decodes of its own. Joint decodes say nothing about
            threads.
    """

    def __init__(
        self,
        counts: Sequence[int],
        num_free: int,
        look_again: Callable[[], int | None],
        use_threads: Callable[[int], None],
        was_alone: Callable[[], bool],
    ) -> None:
        begun = next((count for count in counts if count <= num_free), counts[-1])
        super().__init__(begun)
        self._look_again = look_again
        self._fastest = FastestDecodes()
        self._use_threads = use_threads
        self._was_alone = was_alone
        self._counts = list(counts)
        self._now = begun  # the number outside of trials
        self._others = [count for count in counts if count != begun]  # the next to try is first
        self._was_busy = begun < counts[0]  # whether other programs made it begin with fewer
        self._trial: list[float] = []  # slowdowns with the number that is being tried
        self._mean = 1.0  # mean slowdown with the number outside of trials
        self._least = 1.0  # least slowdown with that number
        self._saved = 0.0  # time that trials may lose, in fastest steps
        self._has_tried = False  # whether another number was ever tried
        if self._was_busy:
            self._saved = _SOON  # the other programs may have ended
        if begun != counts[0]:
            use_threads(begun)
        self._shortest: dict[Shape, float] = {}  # seconds

    def thread_use(self) -> ThreadUse:
        # If the number in use had the fastest steps, more threads are no faster.
        is_slowed = self._was_busy or self._least > _NOISE
        is_busy = self._now < self._counts[0] and is_slowed
        return ThreadUse(self._num_threads, self._counts[0], is_busy, self._fastest.slowdown())

    def reset(self) -> None:
        self._fastest.reset()

    def learn(self, record: StepRecord) -> None:
        is_prompt = record.proposer is None and record.num_target_tokens > 1
        is_long = record.num_target_tokens > LARGEST_STEP or record.num_read > SHORT_READ
        if not self._was_alone() or is_prompt or is_long or record.replay_s > 0.0:
            return  # the time of reading says nothing about steps
        self._fastest.learn(record.num_target_tokens, record.num_cached, record.target_time_s)
        seconds = record.draft_time_s + record.target_time_s + record.sampler_time_s
        shape = (
            fill(record.num_cached),
            record.num_target_tokens,
            record.num_draft_tokens,
            record.proposer,
        )
        shortest = self._shortest.get(shape)
        self._shortest[shape] = min(shortest or seconds, seconds)
        if shortest is None:
            return
        slowdown = seconds / self._shortest[shape]
        if self._num_threads != self._now:
            self._continue_trial(slowdown)
            return
        self._mean += (slowdown - self._mean) / TRIAL_STEPS
        self._least = min(self._least, slowdown)
        lost = max(self._mean, _NOISE) - 1.0
        if not self._has_tried:
            lost *= max(lost, 1.0)  # very slow steps bring the first trial sooner
        self._saved += _SHARE * lost
        if self._saved >= 1.0 and self._others:
            self._begin_trial()

    def as_dict(self) -> dict[str, Any]:
        return self._fastest.as_dict()

    def restore(self, kept: Mapping[str, Any]) -> None:
        self._fastest.restore(kept)

    def _continue_trial(self, slowdown: float) -> None:
        self._trial.append(slowdown)
        self._saved = min(self._saved + self._mean - slowdown, 0.0)
        mean = statistics.mean(self._trial)
        if mean >= self._mean:
            self._others.append(self._num_threads)
            self._use(self._now)
        elif len(self._trial) == TRIAL_STEPS:
            self._others.append(self._now)
            self._now = self._num_threads
            self._mean = mean
            self._least = min(self._trial)
            self._was_busy = False

    def _begin_trial(self) -> None:
        """Try the next number of threads; while other programs are busy, wait if none fits."""
        count = self._others[0]
        if self._was_busy and not self._has_tried:
            fitting = self._fitting()
            if not fitting:
                self._saved = _SOON
                return
            count = fitting[0]
        self._has_tried = True
        self._trial = []
        self._saved = 0.0
        self._others.remove(count)
        self._use(count)

    def _fitting(self) -> list[int]:
        """Numbers to try beside other programs: more threads if they are seen to leave the
        cores, fewer if steps are slow."""
        free = self._look_again()
        is_slow = self._mean > _NOISE
        fitting = []
        for count in self._others:
            is_fewer = count < self._now
            is_free = free is not None and count <= free
            if (is_fewer and is_slow) or (is_free and not is_fewer):
                fitting.append(count)
        return fitting

    def _use(self, count: int) -> None:
        self._num_threads = count
        self._use_threads(count)


def counts_to_try(most: int) -> list[int]:
    """The numbers of threads that are tried, the largest first. most: the largest."""
    counts = [most]
    if most > 2:
        counts.append(most - 1)  # usually one other program is busy
    while counts[-1] > 1:
        counts.append(counts[-1] * 3 // 4)
    return counts
