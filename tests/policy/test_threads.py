"""The number of threads follows the load: on machines whose steps take what a test says."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from localspec.policy.threads import AdaptiveThreads, counts_to_try
from localspec.speculative.policy_api import StepRecord

Seconds = Callable[[int, float, np.random.Generator], float]  # of a step: threads, now


def record(seconds: float, num_threads: int, num_drafted: int = 0, **more) -> StepRecord:
    fields = {
        "proposer": 0 if num_drafted else None,
        "confidences": [0.9] * num_drafted,
        "num_accepted": num_drafted,
        "num_emitted": num_drafted + 1,
        "num_read": 1 if num_drafted else 0,
        "num_target_tokens": num_drafted + 1,
        "num_cached": 100,
        "draft_time_s": 0.0,
        "target_time_s": seconds,
        "sampler_time_s": 0.0,
        "num_threads": num_threads,
    }
    return StepRecord(**{**fields, **more})


class Run:
    """Steps on such a machine. spent: seconds; counts: threads of each step."""

    def __init__(
        self,
        most: int,
        seconds: Seconds,
        seed: int = 0,
        num_free: int | None = None,
        free_later: int | None = None,
    ) -> None:
        self.used: list[int] = []
        self.policy = AdaptiveThreads(
            counts_to_try(most),
            num_free or most,
            lambda: free_later or most,
            self.used.append,
            lambda: True,
        )
        self.now = 0.0
        self.counts: list[int] = []
        self._seconds = seconds
        self._random = np.random.default_rng(seed)

    def go(self, num_steps: int) -> float:
        """Seconds that so many steps take."""
        begun = self.now
        for _ in range(num_steps):
            count = self.policy.choose()
            seconds = self._seconds(count, self.now, self._random)
            self.now += seconds
            self.counts.append(count)
            self.policy.learn(record(seconds, count))
        return self.now - begun

    def fixed(self, count: int, num_steps: int) -> float:
        """The same with a number that stays, on the machine as it is now."""
        random, now = np.random.default_rng(1), self.now
        for _ in range(num_steps):
            now += self._seconds(count, now, random)
        return now - self.now


def quiet(alone_s: float, speedup: float, noise: float = 0.05) -> Seconds:
    """alone_s: with one thread. speedup: of two, and by as much again for each doubling."""

    def seconds(count: int, now: float, random: np.random.Generator) -> float:
        factor = math.exp(noise * random.standard_normal())
        return alone_s / speedup ** math.log2(count) * factor

    return seconds


def beside(idle: Seconds, num_cores: int, num_busy: int, stall_s: float) -> Seconds:
    """Every thread that shares a core lets a step wait now and then, sometimes for long."""

    def seconds(count: int, now: float, random: np.random.Generator) -> float:
        taken = idle(count, now, random)
        shared = max(count + num_busy - num_cores, 0)
        for _ in range(min(shared, count)):
            if random.random() < 0.3:
                taken += random.exponential(stall_s)
        # What is left of the processors' time.
        return taken * max(1.0, (min(count, 1) + num_busy) / num_cores)

    return seconds


QUIET = {
    "a small model": quiet(0.0015, 1.8),
    "a large one": quiet(0.24, 1.9),
    "no faster with more": quiet(0.01, 1.0),
    "memory alone": quiet(0.1, 1.3),
}


@pytest.mark.parametrize("name", QUIET)
@pytest.mark.parametrize("num_cores", [2, 8])
def test_on_a_quiet_machine_all_of_them_compute(name, num_cores):
    run = Run(num_cores, QUIET[name])
    best = run.fixed(num_cores, 2000)
    assert best / run.go(2000) > 0.98  # others are tried, too
    assert not run.policy.thread_use().is_busy
    best = run.fixed(num_cores, 2000)
    assert best / run.go(2000) > 0.99


@pytest.mark.parametrize("stall", [2.0, 10.0, 60.0])
@pytest.mark.parametrize("num_busy", [1, 2])
def test_beside_busy_programs_as_good_as_the_best_fixed_number(stall, num_busy):
    """stall: in steps."""
    idle = quiet(0.02, 1.8)
    ratios = []
    for seed in range(4):
        run = Run(2, beside(idle, 2, num_busy, stall * 0.02), seed)
        run.go(64)
        best = min(run.fixed(count, 3000) for count in (1, 2))
        ratios.append(best / run.go(3000))
    # Beside two, one thread shares its core as well, and what it takes wanders as much.
    assert np.mean(ratios) > (0.93 if num_busy == 1 else 0.88)


def test_one_busy_core_of_eight_leaves_seven():
    idle = quiet(0.08, 1.8)
    load = [idle]
    run = Run(8, lambda *given: load[0](*given))
    run.go(300)
    load[0] = beside(idle, 8, 1, 0.1)
    run.go(100)
    best = min(run.fixed(count, 2000) for count in counts_to_try(8))
    assert best / run.go(2000) > 0.9
    assert max(set(run.counts), key=run.counts.count) == 7
    use = run.policy.thread_use()
    assert (use.num_threads, use.num_usable, use.is_busy) == (7, 8, True)


@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_comes_and_goes_is_followed(seed):
    idle = quiet(0.024, 1.9)
    busy = beside(idle, 2, 1, 0.1)

    def seconds(count: int, now: float, random: np.random.Generator) -> float:
        return (busy if int(now / 20) % 2 else idle)(count, now, random)

    run = Run(2, seconds, seed)
    num_steps = 0
    while run.now < 120:
        run.go(1)
        num_steps += 1
    random, now, oracle = np.random.default_rng(9), 0.0, 0
    while now < 120:
        now += seconds(1 if int(now / 20) % 2 else 2, now, random)
        oracle += 1
    assert num_steps / oracle > 0.85


def test_steps_of_another_shape_are_held_against_their_like():
    """A draft that is used in every second step does not look like a busy machine."""
    policy = AdaptiveThreads([2, 1], 2, lambda: 2, lambda count: None, lambda: True)
    counts = []
    for index in range(400):
        drafted = 3 if index % 2 else 0
        counts.append(policy.choose())
        seconds = (0.02 if drafted else 0.01) * 1.8 / counts[-1]
        policy.learn(record(seconds, counts[-1], drafted))
    assert counts.count(1) < 8
    assert not policy.thread_use().is_busy


def test_a_step_that_is_too_short_for_the_clock_says_nothing():
    policy = AdaptiveThreads([2, 1], 2, lambda: 2, lambda count: None, lambda: True)
    for seconds in (0.0, 0.01, 0.0, 0.01):
        policy.learn(record(seconds, 2))
    assert policy.choose() == 2


def test_shared_decodes_prompts_and_catching_up_say_nothing():
    is_alone = [True]
    used: list[int] = []
    policy = AdaptiveThreads([2, 1], 2, lambda: 2, used.append, lambda: is_alone[0])
    for _ in range(50):
        policy.learn(record(0.01, 2))
    for _ in range(50):
        policy.learn(record(9.0, 2, num_target_tokens=300))
        policy.learn(record(9.0, 2, 3, num_read=200))
        policy.learn(record(9.0, 2, 3, replay_s=1.0))
    is_alone[0] = False
    for _ in range(50):
        policy.learn(record(9.0, 2))
    assert used == []
    is_alone[0] = True
    policy.learn(record(9.0, 2))
    assert used == [1]


def test_the_numbers_that_are_told_apart():
    assert counts_to_try(1) == [1]
    assert counts_to_try(2) == [2, 1]
    assert counts_to_try(8) == [8, 7, 5, 3, 2, 1]
    assert counts_to_try(64)[:3] == [64, 63, 47]
    assert counts_to_try(64)[-1] == 1


@pytest.mark.parametrize("stall", [2.0, 10.0])
def test_it_begins_with_the_cores_that_others_left_free(stall):
    """The first steps of a process, which may have no others. stall: in steps."""
    idle = quiet(0.002, 1.8)
    ratios = {1: [], 2: []}
    for num_free, found in ratios.items():
        for seed in range(12):
            busy = beside(idle, 2, 1, stall * 0.002)
            run = Run(2, busy, seed, num_free, free_later=1)
            best = min(run.fixed(count, 300) for count in (1, 2))
            found.append(best / run.go(300))
    assert np.mean(ratios[1]) > 0.98
    assert np.mean(ratios[1]) > np.mean(ratios[2])


def test_where_the_others_are_gone_all_cores_compute_soon():
    run = Run(2, quiet(0.002, 1.8), num_free=1)
    assert run.used == [1]
    assert run.policy.thread_use().is_busy
    best = run.fixed(2, 300)
    assert best / run.go(300) > 0.88
    assert run.counts[40:].count(2) > 240
    assert not run.policy.thread_use().is_busy


def test_more_threads_are_tried_when_others_are_seen_to_have_gone():
    """How much of the machine others take is looked at, which loses nothing."""
    looks = [None, 1, 1, 2]
    used = []
    policy = AdaptiveThreads([2, 1], 1, lambda: looks.pop(0), used.append, lambda: True)
    while looks:
        assert used == [1]
        policy.learn(record(9.0, 1))
    assert used == [1, 2]


@pytest.mark.parametrize("seed", range(4))
def test_fewer_threads_are_tried_where_others_take_more_than_at_first(seed):
    """One core was taken while the model was loaded, and four are during the answer."""
    busy = beside(quiet(0.08, 1.8), 8, 4, 0.1)
    run = Run(8, busy, seed, num_free=7, free_later=4)
    run.go(300)
    late = run.counts[-100:]
    assert sum(count < 7 for count in late) > 90  # but for trials
