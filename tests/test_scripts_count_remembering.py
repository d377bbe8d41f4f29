"""The counts of what bounds drafts from memory: against what a short text shows by itself."""

from __future__ import annotations

import count_remembering
import numpy as np
import pytest
from count_remembering import Recorded, cheapest, copied, curve, joined

from localspec.engine.engine import Engine


@pytest.fixture
def engine(demo_target):
    import localspec

    with localspec.load(target=demo_target, context_length=256) as engine:
        yield engine


def test_costs_are_lines_between_sizes_and_through_zero_beyond():
    costs = curve("1:1 3:2 16:8")
    assert costs[1:4] == [1.0, 1.5, 2.0]
    assert costs[16:] == [8.0, 8.5]


def test_the_cheapest_steps_draft_only_where_that_pays():
    flat, steep = [0.0, *[1.0] * 17], [0.0, *map(float, range(1, 18))]
    num_right = [0, 2, 1, 0, 0]
    assert cheapest(num_right, flat) == (4, 2.0, 2)
    assert cheapest(num_right, steep).cost == 4.0
    assert cheapest([0], flat) == (0, 0.0, 0)


def test_copied_is_the_best_of_all_places():
    before = np.array([1, 2, 3, 4, -1], np.int32)
    recorded = Recorded("edit", [9, 2], [3, 4, 5], "")
    assert copied(before, recorded, 0) == [0, 1, 0]
    assert copied(before, recorded, 2) == [0, 1, 0]
    assert copied(before[:0], recorded, 2) == [0, 0, 0]


def test_an_answer_that_was_there_before_is_drafted(engine: Engine):
    is_end = engine.vocabulary.is_end
    prompt = engine.tokenize("What is a fox?")
    answer = [token for token in range(100, 160) if not is_end(token)]
    recorded = Recorded("edit", prompt, answer, "")
    follower = count_remembering.Follower(engine, curve("1:1 17:1.05"), remembers=True)
    first, _ = follower.follow(recorded)
    again, steps = follower.follow(recorded)
    assert first.tokens == again.tokens == len(answer) - 1
    assert again.steps < first.steps < len(answer)
    assert again.cost <= first.cost
    assert "found" in joined(steps)
    ended = count_remembering.Follower(engine, curve("1:1 17:1.05"), remembers=False)
    assert ended.ended(recorded).steps <= first.steps
