"""By how much an answer is slower than before, on machines as a test describes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from localspec.policy.fastest import FastestDecodes
from localspec.policy.threads import AdaptiveThreads
from localspec.speculative.policy_api import StepRecord

CLEAR = 1.5  # what a status line names
Load = Callable[[np.random.Generator], float]  # by what a decode is slower


def quiet(random: np.random.Generator) -> float:
    """Noise of a machine that does nothing else: a tenth, and an interrupt now and then."""
    interrupted = random.exponential(1.0) if random.random() < 0.03 else 0.0
    return math.exp(0.1 * random.standard_normal()) + interrupted


def busy(random: np.random.Generator) -> float:
    """Beside two programs on two cores: most decodes wait, some for long."""
    return quiet(random) + random.exponential(2.5)


def answer(
    fastest: FastestDecodes,
    load: Load,
    num_tokens: int = 200,
    num_before: int = 40,
    doubling: float = 1000.0,
    seed: int = 0,
) -> float | None:
    """The slowdown of an answer behind num_before tokens, with drafts in every second step.

    doubling: tokens behind which a decode takes twice as long as behind none.
    """
    random = np.random.default_rng(seed)
    fastest.reset()
    for number in range(num_tokens):
        size = 1 if number % 2 else 5
        cached = num_before + number
        seconds = 0.002 * (1 + size / 10) * (1 + cached / doubling)
        fastest.learn(size, cached, seconds * load(random))
    return fastest.slowdown()


def restored(fastest: FastestDecodes) -> FastestDecodes:
    """The same in the next process."""
    again = FastestDecodes()
    again.restore(json.loads(json.dumps(fastest.as_dict())))
    return again


@pytest.mark.parametrize("doubling", [300.0, 1500.0, 1e9])
@pytest.mark.parametrize("seed", range(5))
def test_on_a_quiet_machine_no_answer_is_clearly_slower(doubling, seed):
    """However long the conversation becomes, and however often it was asked before."""
    fastest, found = FastestDecodes(), []
    for number in range(12):
        before = 40 + 200 * number
        found.append(
            answer(fastest, quiet, num_before=before, doubling=doubling, seed=seed + number)
        )
    fastest = restored(fastest)
    for number in range(12):
        found.append(answer(fastest, quiet, num_before=70, doubling=doubling, seed=99 + number))
    assert max(found) < CLEAR


@pytest.mark.parametrize("seed", range(5))
def test_on_a_busy_one_it_is_said_by_how_much(seed):
    """In a process that was there before, and in one that begins while it is busy."""
    fastest = FastestDecodes()
    answer(fastest, quiet, seed=seed)
    here, later = restored(fastest), restored(fastest)
    for one in (here, later):
        assert 2.5 < answer(one, busy, seed=seed + 50) < 5.0
    # What it takes then does not become the usual.
    for _ in range(20):
        answer(here, busy, seed=seed + 7)
    assert 2.5 < answer(restored(here), busy, seed=seed + 51) < 5.0
    assert answer(here, quiet, seed=seed + 52) < CLEAR


def test_a_conversation_that_goes_on_is_compared_with_its_beginning():
    fastest = FastestDecodes()
    answer(fastest, quiet)
    assert answer(fastest, busy, num_before=260) > CLEAR


def test_without_measurements_nothing_is_said():
    """Of a first answer while the machine is busy, and of a short one."""
    fastest = FastestDecodes()
    assert answer(fastest, lambda _random: 3.0) < 1.2
    answer(fastest, quiet)
    assert answer(fastest, busy, num_tokens=7) is None


def test_a_size_that_is_new_is_compared_with_others():
    """By what it may take at most: as several smaller ones, or twice as a larger one."""
    for known, known_s, usual_s in ((1, 0.01, 0.04), (5, 0.02, 0.035)):
        for slowdown in (1.0, 5.0):
            fastest = FastestDecodes()
            for _ in range(20):
                fastest.learn(known, 40, known_s)
            fastest.reset()
            for size in (4, 3, 2, 6, 4, 3, 2, 6):  # none of them three times
                fastest.learn(size, 40, usual_s * size / 4 * slowdown)
            assert (fastest.slowdown() > CLEAR) is (slowdown > 1.0)


@pytest.mark.parametrize("num_before", [40, 600])
def test_a_size_that_is_new_while_the_machine_is_busy_is_not_the_usual(num_before):
    """However often it is decoded then, in this answer and in the next."""
    fastest = FastestDecodes()
    for number in range(40):
        fastest.learn(5, 40 + number, 0.02)
    for again in (fastest, fastest, restored(fastest)):
        again.reset()
        for number in range(60):
            again.learn(6, num_before + number, 10.0)
        assert again.slowdown() > 50.0


def test_times_of_a_busy_answer_are_not_proved_by_a_quiet_one():
    fastest = FastestDecodes()
    for size, seconds in ((5, 0.02), (6, 10.0), (5, 0.02), (6, 10.0)):
        fastest.reset()
        for _ in range(40):
            fastest.learn(size, 40, seconds)
    assert fastest.slowdown() > 50.0


def test_a_size_that_is_dearer_than_its_bound_is_the_usual_once_others_are_fast():
    """As where a larger batch takes another kernel: other sizes show that nothing is busy."""
    fastest = FastestDecodes()
    for number in range(20):
        fastest.learn(1, 40 + number, 0.02)
    for slowdown in (1.0, 4.0, 1.0):
        fastest = restored(fastest)
        for number in range(100):
            usual_s = 0.02 if number % 4 == 0 else 0.3  # 0.1 at most as five small ones
            size = 1 if number % 4 == 0 else 5
            fastest.learn(size, 40, usual_s * slowdown)
        assert (fastest.slowdown() > CLEAR) is (slowdown > 1.0)


def test_it_is_known_where_the_number_of_threads_stays():
    """Whether all that are usable are in use, or somebody has fixed the number."""
    policy = AdaptiveThreads([2], 2, lambda: 2, lambda count: None, lambda: True)
    for slowdown in (1.0, 3.0):
        policy.reset()
        for number in range(40):
            policy.learn(
                StepRecord(
                    proposer=None,
                    confidences=[],
                    num_accepted=0,
                    num_emitted=1,
                    num_read=0,
                    num_target_tokens=1,
                    num_cached=number,
                    draft_time_s=0.0,
                    target_time_s=0.01 * slowdown,
                    sampler_time_s=0.5,  # of a large constraint, say
                    num_threads=2,
                )
            )
    use = policy.thread_use()
    assert (use.num_threads, use.num_usable) == (2, 2)
    assert use.slowdown == pytest.approx(3.0)
