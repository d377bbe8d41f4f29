"""The speed-up at known costs and a known acceptance rate.

With K draft tokens, each accepted with probability a, a step yields 1 + a + … + a^K tokens
(Leviathan et al., https://arxiv.org/abs/2211.17192, equation 1) and costs K draft decodes and
one target decode of K + 1 tokens. Here the latter's cost is a curve, not a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_PRECISION = 1e-4


class DecodeTimes(Protocol):
    """Times of decodes on this machine, in seconds."""

    def target_s(self, num_tokens: int) -> float:
        """The target's time for a batch of so many tokens; above 0."""

    def draft_s(self) -> float:
        """The draft's time for one token."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Times in target-only steps. steps: for 0, 1, 2 … tokens; draft: for a draft token."""

    steps: Sequence[float]
    draft: float

    def target_s(self, num_tokens: int) -> float:
        return self.steps[num_tokens]

    def draft_s(self) -> float:
        return self.draft


def expected_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Mean tokens per step, including the target's own."""
    return sum(acceptance**power for power in range(num_draft_tokens + 1))


def expected_speedup(costs: DecodeTimes, acceptance: float, num_draft_tokens: int) -> float:
    """Tokens per second with so many draft tokens per step ÷ those of the target alone."""
    step_s = num_draft_tokens * costs.draft_s() + costs.target_s(num_draft_tokens + 1)
    return expected_tokens(acceptance, num_draft_tokens) * costs.target_s(1) / step_s


def best_draft_tokens(costs: DecodeTimes, acceptance: float, most: int) -> int:
    """The fastest number of draft tokens, 0 to `most`."""
    return max(range(most + 1), key=lambda count: expected_speedup(costs, acceptance, count))


def break_even_acceptance(costs: DecodeTimes, most: int) -> float | None:
    """The least acceptance at which some number of draft tokens pays; None if none does."""

    def pays(acceptance: float) -> bool:
        return any(
            expected_speedup(costs, acceptance, count) > 1.0 for count in range(1, most + 1)
        )

    if not pays(1.0):
        return None
    low, high = 0.0, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
