"""The sides of `scripts/measure/measure_real.py`, on the demo pair."""

from __future__ import annotations

import pytest

from localspec.evaluation.prompts import built_in_tasks
from real_text.sides import PLAIN, Sides, Weights, target_options

NAMES = [PLAIN, "automatic", "automatic-known"]


@pytest.fixture
def sides(demo_target):
    weights = Weights(demo_target, target_options(512, 1))
    opened = Sides(weights, None, NAMES)
    yield opened
    opened.close()
    weights.close()


def test_each_side_answers_the_same_question(sides):
    sides.learn()
    task = next(task for task in built_in_tasks() if task.kind == "chat")
    found = sides.answer(task, NAMES, max_tokens=24, temperature=0.0)
    assert list(found) == NAMES
    assert len({answered.text for answered in found.values()}) == 1
    assert all(answered.tokens_per_s for answered in found.values())
