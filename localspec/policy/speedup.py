"""The speed-up at known costs and a known acceptance rate.

With K draft tokens, each accepted with probability a, a step yields 1 + a + … + a^K tokens
(Leviathan et al., https://arxiv.org/abs/2211.17192, equation 1) and costs K draft decodes and
one target decode of K + 1 tokens. Here the cost of the target's decode is a curve, not a
constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PRECISION = 1e-4  # of an acceptance rate


@dataclass(frozen=True, slots=True)
class Curve:
    """The times of decodes, all in the same unit."""

    steps: Sequence[float]
    """The target's time for 0, 1, 2 … tokens."""

    draft: float
    """The draft's time for one token; with is_block, for any number of tokens."""

    is_block: bool = False


def expected_speedup(costs: Curve, acceptance: float, num_draft_tokens: int) -> float:
    """Tokens per second with num_draft_tokens per step ÷ those of the target alone."""
    emitted = sum(acceptance**power for power in range(num_draft_tokens + 1))
    num_draft_decodes = num_draft_tokens
    if costs.is_block:
        num_draft_decodes = min(num_draft_decodes, 1)
    step = num_draft_decodes * costs.draft + costs.steps[num_draft_tokens + 1]
    plain_steps = step / costs.steps[1]  # that take the same time, with one token each
    return emitted / plain_steps


def best_draft_tokens(costs: Curve, acceptance: float, most: int) -> int:
    """The fastest number of draft tokens, 0 to `most`."""
    return max(range(most + 1), key=lambda count: expected_speedup(costs, acceptance, count))


def break_even_acceptance(costs: Curve, most: int) -> float | None:
    """The least acceptance at which 1 to `most` draft tokens pay, by bisection.

    None if no number pays, even if all tokens are accepted.
    """
    if best_draft_tokens(costs, 1.0, most) == 0:
        return None
    low = 0.0
    high = 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if best_draft_tokens(costs, middle, most) > 0:
            high = middle
        else:
            low = middle
    return high
