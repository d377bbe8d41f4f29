"""Counts of texts against the probabilities they should have: Pearson's test, and its power.

No library is asked for the distribution of chi-square: the incomplete gamma function is a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

_FEWEST = 5.0  # expected of a text; rarer ones are counted together
_PRECISION = 1e-13

Text = TypeVar("Text", bound=Hashable)


class Deviation(NamedTuple):
    """How far counts are from what was expected: chi-square and its degrees of freedom."""

    chi_square: float
    freedom: int

    def __add__(self, other: tuple[object, ...]) -> Deviation:
        chi_square, freedom = other
        assert isinstance(chi_square, float)
        assert isinstance(freedom, int)
        return Deviation(self.chi_square + chi_square, self.freedom + freedom)

    @property
    def chance(self) -> float:
        """Of as much or more, where the law is right."""
        return 1.0 if self.freedom == 0 else survival(self.chi_square, self.freedom)


NONE = Deviation(0.0, 0)


def deviation(counts: Mapping[Text, int], law: Mapping[Text, float]) -> Deviation:
    """Of counted texts from a law, texts → probabilities. Infinite if one cannot be."""
    total = sum(counts.values())
    if any(text not in law for text, count in counts.items() if count):
        return Deviation(math.inf, 1)
    common = [text for text, prob in law.items() if prob * total >= _FEWEST]
    pairs = [(counts.get(text, 0), law[text] * total) for text in common]
    rest = (total - sum(count for count, _ in pairs), total - sum(mean for _, mean in pairs))
    if rest[1] >= _FEWEST:
        pairs.append(rest)
    elif rest[0] > 0 and pairs:  # too few to be judged by themselves: beside the rarest
        rarest = min(range(len(pairs)), key=lambda place: pairs[place][1])
        pairs[rarest] = (pairs[rarest][0] + rest[0], pairs[rarest][1] + max(rest[1], 0.0))
    if len(pairs) < 2:
        return NONE
    chi_square = sum((count - mean) ** 2 / mean for count, mean in pairs)
    return Deviation(chi_square, len(pairs) - 1)


def survival(chi_square: float, freedom: float) -> float:
    """The chance that chi-square is larger: the upper incomplete gamma function."""
    half, at = freedom / 2.0, chi_square / 2.0
    if math.isinf(at) or at <= 0.0:
        return float(at <= 0.0)
    scale = math.exp(half * math.log(at) - at - math.lgamma(half))
    if at < half + 1.0:
        term = total = 1.0 / half
        step = half
        while term > total * _PRECISION:
            step += 1.0
            term *= at / step
            total += term
        return 1.0 - scale * total
    # Lentz's continued fraction.
    tiny = 1e-300
    base = at + 1.0 - half
    above, below = 1.0 / tiny, 1.0 / base
    total = below
    for number in range(1, 100_000):
        factor = -number * (number - half)
        base += 2.0
        below = 1.0 / (factor * below + base or tiny)
        above = base + factor / above or tiny
        change = above * below
        total *= change
        if abs(change - 1.0) < _PRECISION:
            break
    return scale * total


def noticed_bias(num_samples: int, freedom: int, alpha: float, power: float = 0.99) -> float:
    """The smallest bias that a test would notice with that power, whatever its direction.

    A bias is the share of the texts that are others than they should be: the total variation
    between the two laws. One of b adds 4 b² or more a sample to chi-square. alpha: how seldom
    the test may speak where there is none. Patnaik's approximation of the other law.
    """
    limit = _root(lambda at: survival(at, freedom) - alpha, float(freedom), 1e3 + 3.0 * freedom)

    def missing(added: float) -> float:
        scale = (freedom + 2.0 * added) / (freedom + added)
        other = (freedom + added) ** 2 / (freedom + 2.0 * added)
        return power - survival(limit / scale, other)

    return math.sqrt(_root(missing, 0.0, 1e3 + 3.0 * limit) / (4.0 * num_samples))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function has its zero, between two places."""
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if function(middle) > 0.0 else (low, middle)
    return high
