"""How many threads decode, chosen at run time: fewer while the machine is busy.

The threads of a decode wait for each other many times in every step. A thread that shares its
core with another program makes all of them wait, so on a busy machine fewer threads are often
several times faster. The cost is in a few very slow steps, so means decide, never medians.

The slowdown of a step is its time divided by the shortest time of any step of its shape, with
any number of threads. Other numbers of threads are tried in turn. Trials may lose a share of
the time that slow steps lose, so there are many trials on a busy machine, and few on a quiet
one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.policy.cost import LARGEST_STEP, SHORT_READ, length_class
from localspec.policy.fastest import FastestDecodes
from localspec.speculative.policy_api import StepRecord, ThreadPolicy, ThreadUse

# Steps over which slowdowns are averaged; a tried number that is faster over all of them stays
TRIAL_STEPS = 16
_SHARE = 1 / 20  # share of the lost time that trials may lose
_NOISE = 1.05  # slowdown of steps on a machine that does nothing else
# The budget of trials at first if other programs were seen. Even if no step is slow, it reaches
# 1, which a trial takes, after TRIAL_STEPS steps: if the programs have ended by then, more
# threads are tried
_BUDGET_IF_BUSY = 1.0 - TRIAL_STEPS * _SHARE * (_NOISE - 1.0)

# Length class, tokens of the target, tokens of the draft, index of the proposer
Shape = tuple[int, int, int, int | None]


class AdaptiveThreads(ThreadPolicy):
    """Chooses the number of threads with which steps were fastest.

    Args:
        counts: The numbers to choose from, as `counts_to_try` gives them; a single one is kept.
        num_free: Cores that other programs left free a moment ago. The largest of `counts` that
            is not above it is the first number; the smallest if all are above.
        count_free_cores: Returns the cores that other programs left free since its last call;
            None if that time is too short to say.
        use_threads: Sets the models' number of threads.
        was_alone: Whether the last step had decodes of its own. Joint decodes say nothing about
            threads.
    """

    def __init__(
        self,
        counts: Sequence[int],
        num_free: int,
        count_free_cores: Callable[[], int | None],
        use_threads: Callable[[int], None],
        was_alone: Callable[[], bool],
    ) -> None:
        first = next((count for count in counts if count <= num_free), counts[-1])
        super().__init__(first)
        self._count_free_cores = count_free_cores
        self._fastest = FastestDecodes()
        self._use_threads = use_threads
        self._was_alone = was_alone
        self._counts = list(counts)
        self._usual = first  # the number outside of trials
        self._candidates = [
            count for count in counts if count != first
        ]  # the next to try is first
        self._was_busy = first < counts[0]  # whether other programs made it begin with fewer
        self._trial: list[float] = []  # slowdowns with the number that is being tried
        self._mean = 1.0  # mean slowdown with the usual number
        self._least = 1.0  # least slowdown with the usual number
        # Time that trials may lose, in steps without a slowdown. A trial takes 1 to begin
        self._budget = 0.0
        self._has_tried = False  # whether another number was ever tried
        if self._was_busy:
            self._budget = _BUDGET_IF_BUSY  # the other programs may have ended
        if first != counts[0]:
            use_threads(first)
        self._shortest: dict[Shape, float] = {}  # seconds

    def thread_use(self) -> ThreadUse:
        """The present number of threads, and whether other programs keep it below the most."""
        # If the usual number had steps without a slowdown, more threads are no faster.
        is_slowed = self._was_busy or self._least > _NOISE
        most = self._counts[0]
        return ThreadUse(
            num_threads=self._num_threads,
            num_usable=most,
            is_busy=self._usual < most and is_slowed,
            slowdown=self._fastest.slowdown(),
        )

    def reset(self) -> None:
        """Begin another answer: its slowdown is measured anew."""
        self._fastest.reset()

    def learn(self, record: StepRecord) -> None:
        """Learn from a finished step. It may begin or end a trial of another number."""
        is_prompt = record.proposer is None and record.num_target_tokens > 1
        is_long = record.num_target_tokens > LARGEST_STEP or record.num_read > SHORT_READ
        has_read = is_prompt or is_long or record.replay_s > 0.0
        if has_read or not self._was_alone():
            return  # the times of reading and of joint decodes say nothing about threads
        self._fastest.learn(record.num_target_tokens, record.num_cached, record.target_time_s)
        seconds = record.draft_time_s + record.target_time_s + record.sampler_time_s
        if seconds <= 0.0:
            return  # too short for the clock
        shape = (
            length_class(record.num_cached),
            record.num_target_tokens,
            record.num_draft_tokens,
            record.proposer,
        )
        if shape not in self._shortest:
            self._shortest[shape] = seconds
            return
        shortest_s = min(self._shortest[shape], seconds)
        self._shortest[shape] = shortest_s
        slowdown = seconds / shortest_s
        if self._num_threads != self._usual:
            self._continue_trial(slowdown)
            return
        self._mean += (slowdown - self._mean) / TRIAL_STEPS
        self._least = min(self._least, slowdown)
        lost = max(self._mean, _NOISE) - 1.0  # by a step on average
        if not self._has_tried:
            lost *= max(lost, 1.0)  # very slow steps bring the first trial sooner
        self._budget += _SHARE * lost
        if self._budget >= 1.0 and self._candidates:
            self._begin_trial()

    def as_dict(self) -> dict[str, Any]:
        """The fastest decodes, to be kept for the next process, in JSON's types."""
        return self._fastest.as_dict()

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue with the fastest decodes in `kept`, which `as_dict` returned."""
        self._fastest.restore(kept)

    def _continue_trial(self, slowdown: float) -> None:
        """Learn from a step with the number that is being tried, and end its trial if possible.

        The trial fails once the number is no faster on average than the usual one. A number
        that is faster over all steps of a trial is the new usual one.
        """
        self._trial.append(slowdown)
        gained = self._mean - slowdown
        self._budget = min(self._budget + gained, 0.0)
        mean = statistics.mean(self._trial)
        if mean >= self._mean:
            self._candidates.append(self._num_threads)
            self._use(self._usual)
        elif len(self._trial) == TRIAL_STEPS:
            self._candidates.append(self._usual)
            self._usual = self._num_threads
            self._mean = mean
            self._least = min(self._trial)
            self._was_busy = False

    def _begin_trial(self) -> None:
        """Try the next number of threads.

        If other programs were seen at first, the first trial takes a number that suits them. If
        there is none, a trial is due again after TRIAL_STEPS steps or sooner.
        """
        count = self._candidates[0]
        if self._was_busy and not self._has_tried:
            suited = self._suited_counts()
            if not suited:
                self._budget = _BUDGET_IF_BUSY
                return
            count = suited[0]
        self._has_tried = True
        self._trial = []
        self._budget = 0.0
        self._candidates.remove(count)
        self._use(count)

    def _suited_counts(self) -> list[int]:
        """The numbers of threads to try beside other programs.

        More threads than now if the programs leave as many cores free, fewer if steps are slow.
        """
        num_free = self._count_free_cores()
        is_slow = self._mean > _NOISE
        suited = []
        for count in self._candidates:
            if count < self._usual:
                is_suited = is_slow
            else:
                is_suited = num_free is not None and count <= num_free
            if is_suited:
                suited.append(count)
        return suited

    def _use(self, count: int) -> None:
        """Decode with a number of threads from the next step on."""
        self._num_threads = count
        self._use_threads(count)


def counts_to_try(most: int) -> list[int]:
    """The numbers of threads to try: `most`, 1 less, then each ¾ of the last one, down to 1."""
    counts = [most]
    if most > 2:
        counts.append(most - 1)  # usually one other program is busy
    while counts[-1] > 1:
        counts.append(counts[-1] * 3 // 4)
    return counts
