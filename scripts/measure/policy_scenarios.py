"""Machines and texts on which the automatic policy is judged: see `simulate_policy.py`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    Decision,
    PolicyContext,
    ProposerKind,
    Replay,
)
from simulated import (
    FLAT,
    GPU,
    H100_LARGE,
    H100_SMALL,
    METAL,
    Q4_0,
    Q4_K,
    VOCAB,
    Clock,
    FreeProposer,
    Machine,
    Slowdown,
    Text,
    answer,
    at_random,
    curve,
    successor,
)

# fmt: off
# Of another machine, where a token of sixteen is by far the cheapest.
Q4_K_TILED = {
    1: 1.0, 2: 2.03, 3: 2.65, 4: 3.12, 5: 4.27, 6: 4.56, 7: 5.22, 8: 6.87, 9: 7.04, 10: 8.35,
    11: 9.11, 12: 9.22, 13: 9.51, 14: 9.66, 15: 11.03, 16: 7.7, 17: 8.36, 32: 15.4,
}
# The same of other pairs and of another machine, as measured.
EPYC_7B = dict(enumerate((
    1.00, 1.92, 2.73, 2.73, 3.94, 4.51, 5.10, 5.18, 5.93, 6.42, 7.59, 7.20, 8.01, 9.13, 9.08,
    7.51, 8.86,
), 1))
EPYC_SMALL = dict(enumerate((
    1.00, 2.04, 2.58, 2.50, 3.37, 4.12, 4.75, 5.14, 5.67, 6.92, 6.88, 6.75, 7.72, 7.94, 8.20,
    6.84, 7.75,
), 1))
XEON_7B = dict(enumerate((
    1.00, 1.53, 1.84, 0.93, 1.57, 1.84, 2.29, 1.85, 2.21, 2.45, 2.66, 2.68, 2.80, 3.03, 3.48,
    2.81, 3.31,
), 1))
# Of a 1.5B model in Q4_K_M, with llama.cpp's kernels for AVX512 and for AMX.
AVX512 = {
    1: 1.0, 2: 1.47, 3: 1.62, 4: 1.26, 5: 1.59, 6: 1.82, 8: 2.20, 12: 2.80, 16: 2.61, 17: 3.23,
    24: 3.76, 32: 4.27,
}
AMX = {
    1: 1.0, 2: 2.00, 3: 2.08, 4: 1.96, 5: 2.03, 6: 1.99, 8: 2.27, 12: 2.36, 16: 2.60, 17: 3.00,
    24: 3.42, 32: 3.58,
}
# fmt: on

# v(n) was measured of all but those that are flat or like something.
STAIRS = Machine("7B Q4_0", Q4_0, 0.12)
STEEP = Machine("7B Q4_K", Q4_K, 0.12)
TILED = Machine("7B Q4_K, tiles of 16", Q4_K_TILED, 0.12)
EXPENSIVE = Machine("1.5B Q4_0", Q4_0, 0.36)
LEVEL = Machine("a flat v", FLAT, 0.08)
LIKE_GPU = Machine("like a GPU", GPU, 0.05, GPU)
LIKE_METAL = Machine("like Metal", METAL, 0.1, METAL)
WITH_AVX512 = Machine("1.5B, AVX512", AVX512, 0.12)
WITH_AMX = Machine("1.5B, AMX", AMX, 0.12, AMX)
ON_H100 = Machine("8B, H100", H100_LARGE, 0.39, H100_SMALL, change=0.33, draft_change=0.61)
SMALL_ON_H100 = Machine("135M, H100", H100_SMALL, 0.9, H100_SMALL, change=1.6, draft_change=1.4)
ALL = (
    *(STAIRS, STEEP, TILED, EXPENSIVE, LEVEL, LIKE_GPU, LIKE_METAL),
    *(WITH_AVX512, WITH_AMX),
)
MOST = (STAIRS, STEEP, EXPENSIVE, LIKE_GPU, LIKE_METAL)
SOME = (STAIRS, STEEP, EXPENSIVE, LIKE_METAL)  # for what costs do: those where they decide

NUM_TEXTS = 36
AGREEMENTS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
SWITCHES = ((0.9, 0.05), (0.95, 0.0), (0.8, 0.1))
FIXED = (0, 1, 2, 3, 4, 5, 7, 10, 15, 16)
SEGMENT = 64  # tokens between switches

Ratio = Callable[[Machine, int], float]  # (machine, number of the text) → best ÷ automatic


class Scenario(NamedTuple):
    """The prompts, and the machines."""

    ratio: Ratio
    machines: tuple[Machine, ...] = ALL
    num_texts: int = NUM_TEXTS

    def on(self, machine: Machine) -> list[float]:
        """Best ÷ automatic, of each text."""
        return [self.ratio(machine, number) for number in range(self.num_texts)]


def automatic() -> AdaptiveDraftPolicy:
    """A policy that knows nothing yet."""
    return AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1)


def best_fixed(text: Text, machine: Machine) -> float:
    """Seconds with the fixed number of draft tokens that is best for this text."""
    num_draft_tokens = _best(text, machine)
    return fixed(lambda _: num_draft_tokens, text, machine)


def _best(text: Text, machine: Machine) -> int:
    return min(FIXED, key=lambda k: fixed(lambda _: k, text, machine))


def agreement(number: int) -> float:
    """Of a text: all of them in turn."""
    return AGREEMENTS[number % len(AGREEMENTS)]


def against_best(text: Text, machine: Machine) -> float:
    """Best fixed ÷ automatic, with nothing known before."""
    return best_fixed(text, machine) / answer(automatic(), text, machine, Clock())


@functools.lru_cache(maxsize=4)
def _agreed(agrees: Callable[[int], bool]) -> list[int]:
    """After each token, how many draft tokens agree one after another, if many are drafted."""
    agreed = [0] * VOCAB
    for place in range(VOCAB + MAX_DRAFT_TOKENS, -1, -1):
        token = place % VOCAB
        agreed[token] = agreed[successor(token)] + 1 if agrees(token) else 0
    return agreed


def fixed(num_draft_tokens: Callable[[int], int], text: Text, machine: Machine) -> float:
    """What `answer` gives where each step's number is known: the same sum, without the loop.

    num_draft_tokens: of the last token, how many are drafted after it.
    """
    target_curve = curve(machine.ratios)
    draft_curve = curve(machine.draft_ratios)
    agreed = _agreed(text.agrees)
    now = 0.0
    drafted = False
    last_size = last_draft_size = 0
    length = num_cached = num_draft_cached = 0
    for start in text.starts:
        length += text.num_prompt_tokens
        token = start
        remaining = text.num_tokens
        while remaining > 0:
            num_drafted = 0
            if remaining < text.num_tokens:
                num_drafted = min(num_draft_tokens(token), remaining - 1, MAX_DRAFT_TOKENS)
            num_read = length - num_draft_cached
            for _ in range(num_drafted):
                draft_s = machine.draft_share * draft_curve[num_read]
                now += draft_s * machine.draft_slowdown(num_draft_cached, num_read)
                now += machine.draft_change * (num_read != last_draft_size)
                last_draft_size = num_read
                num_draft_cached += num_read
                num_read = 1
                drafted = True
            size = length - num_cached + num_drafted
            step_s = target_curve[size] * machine.slowdown(num_cached, size)
            if size == 1:
                step_s *= machine.waking if drafted else 1.0
                drafted = False
            now += step_s + machine.change * (size != last_size)
            last_size = size
            num_kept = min(num_drafted, agreed[token])
            num_cached = length + num_kept
            num_draft_cached = min(num_draft_cached, num_cached)
            length = num_cached + 1
            token = (token + num_kept + 1) % VOCAB
            remaining -= num_kept + 1
    return now


# Texts.


def never_right(machine: Machine, number: int) -> float:
    """Two lengths of the answer, and of the prompt."""
    text = Text(at_random(0), (256, 1024)[number % 2], (32, 2048)[number // 2])
    return fixed(lambda _: 0, text, machine) / answer(automatic(), text, machine, Clock())


def long_answer(machine: Machine, number: int) -> float:
    return against_best(Text(at_random(agreement(number), number)), machine)


def short_answer(machine: Machine, number: int) -> float:
    return against_best(Text(at_random(agreement(number), number), 192), machine)


def long_prompt(machine: Machine, number: int) -> float:
    return against_best(Text(at_random(agreement(number), number), 256, 2048), machine)


def chat(machine: Machine, number: int) -> float:
    """Six short answers after one another, each as predictable as it likes."""
    starts = tuple(range(0, VOCAB - 128, 150))
    agreed = [
        at_random(agreement(number + i * (1 + number // 6)), number + i) for i in range(7)
    ]
    text = Text(lambda token: agreed[token // 150](token), 96, 32, starts=starts)
    best_s = fixed(_best_of_each(text, machine), text, machine)
    return best_s / answer(automatic(), text, machine, Clock())


def _best_of_each(text: Text, machine: Machine) -> Callable[[int], int]:
    """Of each answer of a chat the number of draft tokens that is best for it."""
    best = {
        start // 150: _best(text._replace(starts=(start,)), machine) for start in text.starts
    }
    return lambda token: best[token // 150]


def switching(machine: Machine, number: int) -> float:
    """Against who knows where it switches."""
    text, oracle = _switching(machine, number, *SWITCHES[number % 3])
    return fixed(oracle, text, machine) / answer(automatic(), text, machine, Clock())


def _switching(
    machine: Machine, number: int, high: float, low: float
) -> tuple[Text, Callable[[int], int]]:
    good = at_random(high, number)
    bad = at_random(low, number + 1000)
    best = _best(Text(good), machine)

    def is_good(token: int) -> bool:
        return (token // SEGMENT) % 2 == 0

    text = Text(lambda token: (good if is_good(token) else bad)(token), 10 * SEGMENT)
    return text, lambda token: best if is_good(token) else 0


def turning_good(machine: Machine, number: int) -> float:
    """Useless for 256 tokens, and then right nearly always; against who knows when."""
    good = at_random(0.95, number)
    bad = at_random(0.1, number + 1000)
    best = _best(Text(good), machine)
    text = Text(lambda token: (good if token >= 256 else bad)(token), 768)
    best_s = fixed(lambda token: best if token >= 256 else 0, text, machine)
    return best_s / answer(automatic(), text, machine, Clock())


def sure_and_unsure(machine: Machine, number: int) -> float:
    """A draft whose confidence orders its tokens by how likely they are right."""
    random = np.random.default_rng(number)
    margins = np.array([-0.4, 0.6, 1.3, 2.3, 4.6])[random.integers(5, size=VOCAB)]
    odds = np.log(agreement(number) / (1 - agreement(number))) + 1.3 * (margins - 1.7)
    agreed = random.random(VOCAB) < 1 / (1 + np.exp(-odds))
    margin = np.maximum(margins, 0.05)
    text = Text(lambda t: bool(agreed[t]), 512, margin=lambda t: float(margin[t]))
    return against_best(text, machine)


def beside_a_lookup(machine: Machine, number: int) -> float:
    """A lookup that costs nothing and is rarely right, and a draft that becomes good."""
    text, oracle = _switching(machine, number, 0.9, 0.0)
    states = at_random((0.3, 1.0)[number % 2], number + 2000)
    lookup = FreeProposer(states, at_random(0.1, number + 3000))
    policy = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1, ProposerKind.LOOKUP: 0.0}, 1)
    return fixed(oracle, text, machine) / answer(policy, text, machine, Clock(), [lookup])


# Costs.


def stale_costs(machine: Machine, number: int) -> float:
    """Steps of several tokens were timed when the machine was busy, or idle; now it is not."""
    policy = automatic()
    stale = 1.4 if number % 4 else 0.75
    for _ in range(3):
        policy.costs.learn_plain(1.0)
        for size in range(2, 18):
            policy.costs.learn_size(size, max(stale * machine.ratios[size], 1.0))
        policy.costs.learn_draft(ProposerKind.DRAFT, 1, 1, machine.draft_share)
    text = Text(at_random((0.9, 0.8, 0.95)[number % 3], number))
    return best_fixed(text, machine) / answer(policy, text, machine, Clock())


def memory_bursts(machine: Machine, number: int) -> float:
    """Something else uses the memory: target-only steps take up to twice as long."""
    level = _bursts(number, 1.0)

    def slowdown(num_cached: int, num_tokens: int) -> float:
        return float(level[num_cached] if num_tokens == 1 else level[num_cached] ** 0.1)

    def draft_slowdown(num_cached: int, num_tokens: int) -> float:
        return float(level[num_cached] ** 0.3)

    return _disturbed(machine, number, slowdown, draft_slowdown)


def busy_processor(machine: Machine, number: int) -> float:
    """Something else uses the processor: decodes take up to three times as long, or one."""
    level = _bursts(number, 2.0) * np.where(_random(number).random(_PLACES) < 0.03, 3.0, 1.0)

    def slowdown(num_cached: int, num_tokens: int) -> float:
        return float(level[num_cached])

    return _disturbed(machine, number, slowdown, slowdown)


def noisy_steps(machine: Machine, number: int) -> float:
    """Every decode by itself, a few of them much slower."""
    random = _random(number)
    spread = (0.08, 0.2)[number % 2]
    factors = np.exp(spread * random.standard_normal((2, _PLACES, 33)))
    factors[random.random(factors.shape) < 0.01] *= 4.0
    return _disturbed(machine, number, _of_places(factors[0]), _of_places(factors[1]))


def wandering(machine: Machine, number: int) -> float:
    """Slowly: the whole machine, steps of several tokens together, and each of their sizes."""
    whole, several = (_walk(number + 100 * i, 1)[:, 0] for i in range(2))
    factors = np.exp(whole[:, None] + 0.3 * _walk(number, 33))
    factors[:, 2:] *= np.exp(0.7 * several[:, None])
    return _disturbed(
        machine, number, _of_places(factors), lambda at, _: float(np.exp(whole[at]))
    )


def waking_threads(machine: Machine, number: int) -> float:
    """The first target-only step after a draft takes half as long again: threads must wake."""
    text = Text(at_random(agreement(number), number), 512)
    return against_best(text, machine._replace(waking=1.5))


class Deliberate(AdaptiveDraftPolicy):
    """It takes time to decide, as where a target-only step takes a millisecond."""

    def __init__(self, clock: Clock) -> None:
        super().__init__({ProposerKind.DRAFT: 0.1}, 1)
        self._clock = clock

    def choose(self, context: PolicyContext) -> Decision | Replay:
        if any(prospect.pause_left <= 0 for prospect in self.prospects):
            self._clock.now += 0.03
        return super().choose(context)


def slow_decisions(machine: Machine, number: int) -> float:
    """Deciding takes 0.03 of a target-only step, and there is little to decide."""
    text = Text(at_random((0.0, 0.3, 0.5)[number % 3], number), 512)
    clock = Clock()
    return best_fixed(text, machine) / answer(Deliberate(clock), text, machine, clock)


_PLACES = 1024  # in a text of 512 tokens after a prompt, and more
_DISTURBED_TOKENS = 512


def _disturbed(
    machine: Machine, number: int, slowdown: Slowdown, draft_slowdown: Slowdown
) -> float:
    text = Text(at_random(agreement(number), number), _DISTURBED_TOKENS)
    busy = machine._replace(slowdown=slowdown, draft_slowdown=draft_slowdown)
    return against_best(text, busy)


def _random(number: int) -> np.random.Generator:
    return np.random.default_rng(10_000 + number)


def _bursts(number: int, most: float) -> np.ndarray:
    """(_PLACES,) 1 and in between, for 30 to 150 tokens each, up to 1 + most."""
    random = _random(number)
    level = np.ones(_PLACES)
    at = int(random.integers(100))
    while at < _PLACES:
        end = at + int(random.integers(30, 150))
        level[at:end] += most * random.uniform(0.2, 1.0)
        at = end + int(random.integers(30, 150))
    return level


def _walk(number: int, width: int) -> np.ndarray:
    """(_PLACES, width) logarithms that wander by 0.15 or so within hundreds of tokens."""
    steps = 0.015 * _random(number).standard_normal((_PLACES, width))
    walk = np.zeros((_PLACES, width))
    for place in range(1, _PLACES):
        walk[place] = 0.995 * walk[place - 1] + steps[place]
    return walk


def _of_places(factors: np.ndarray) -> Slowdown:
    """factors: (_PLACES, 33) of each place and number of tokens."""
    return lambda num_cached, num_tokens: float(factors[num_cached, min(num_tokens, 32)])


SCENARIOS = {
    "never right": Scenario(never_right, num_texts=4),
    "long answers": Scenario(long_answer),
    "short answers": Scenario(short_answer),
    "long prompts": Scenario(long_prompt, SOME),
    "a chat": Scenario(chat, MOST),
    "switching": Scenario(switching, MOST),
    "turning good": Scenario(turning_good, MOST),
    "sure and unsure": Scenario(sure_and_unsure, MOST),
    "beside a lookup": Scenario(beside_a_lookup, SOME),
    "stale costs": Scenario(stale_costs, SOME),
    "memory bursts": Scenario(memory_bursts, SOME),
    "busy processor": Scenario(busy_processor, SOME),
    "noisy steps": Scenario(noisy_steps, SOME),
    "wandering": Scenario(wandering, SOME),
    "waking threads": Scenario(waking_threads, SOME),
    "slow decisions": Scenario(slow_decisions, SOME),
}
