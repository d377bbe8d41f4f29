"""Expected gains, against simulation and against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.policy.speedup import (
    Curve,
    best_draft_tokens,
    break_even_acceptance,
    expected_speedup,
)
from simulated import STAIRS


@pytest.mark.parametrize(("acceptance", "count"), [(0.0, 3), (0.8, 1), (0.8, 5), (1.0, 4)])
def test_expected_tokens_are_what_a_simulation_yields(acceptance, count):
    kept = np.random.default_rng(0).random((200_000, count)) < acceptance
    yielded = 1 + np.cumprod(kept, axis=1).sum(axis=1)
    free = Curve((1.0,) * (count + 2), draft=0.0)
    assert expected_speedup(free, acceptance, count) == pytest.approx(yielded.mean(), rel=0.01)


def test_a_speedup_by_hand():
    costs = Curve(STAIRS, draft=0.12)
    tokens = 1 + 0.8 + 0.64 + 0.512
    assert expected_speedup(costs, 0.8, 3) == pytest.approx(tokens / (3 * 0.12 + 1.48))
    assert expected_speedup(costs, 0.8, 0) == 1.0


def test_the_best_length_steps_over_dear_batches():
    """A batch of four tokens costs less than one of two or three."""
    costs = Curve(STAIRS, draft=0.12)
    best = [best_draft_tokens(costs, percent / 100, 8) for percent in range(101)]
    assert (set(best), best[10], best[80]) == ({0, 3}, 0, 3)
    assert best_draft_tokens(Curve((1.0,) * 10, draft=0.01), 0.95, 8) == 8


def test_break_even_is_where_the_gain_begins():
    costs = Curve(STAIRS, draft=0.12)
    edge = break_even_acceptance(costs, 8)
    assert 0.3 < edge < 0.7
    assert best_draft_tokens(costs, edge + 0.001, 8) > 0
    assert best_draft_tokens(costs, edge - 0.001, 8) == 0
