"""Real numbers take the step that was enumerated, also where they are exactly 0."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.checks.enumeration import Enumeration
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, FixedDraftPolicy
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Purpose, Randomness
from localspec.speculative.rules import make_rule
from toy import TableModel, all_shared, loop_of, never, tokens_of


class Within(Randomness):
    """Numbers from within a box: 0 where it begins there, else the middle."""

    def __init__(self, box):
        super().__init__(0)
        self._box = box

    def uniforms(self, step):
        numbers = np.zeros((len(Purpose), MAX_DRAFT_TOKENS))
        for (its_step, purpose, index), (low, high) in self._box.items():
            if its_step == step and low > 0.0:
                numbers[purpose, index] = (low + high) / 2
        return numbers


@pytest.mark.parametrize("rule", ["token", "block"])
def test_real_numbers_lead_where_the_enumeration_went(rule):
    target, draft = (TableModel(3, seed=seed, spread=1.0) for seed in (5, 99))
    proposer = DraftModel(draft, all_shared(target, draft), never)
    loop = loop_of(target, [proposer], FixedDraftPolicy(2))

    def text(numbers):
        made = make_rule(rule, is_greedy=False, seed=None, randomness=numbers)
        loop.truncate(0)
        loop.start([1])
        chain = SamplerChain(SamplingParams(temperature=1.0), num_prompt_tokens=1)
        return tokens_of(loop.steps(Request(chain, made, 4, never)))

    branches = list(Enumeration().outcomes(text))
    assert sum(branch.prob for branch in branches) == pytest.approx(1.0)
    assert len(branches) > 100
    for branch in branches:
        assert text(Within(branch.box)) == branch.result
