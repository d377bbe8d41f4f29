"""The automatic policy on recorded answers of really trained models: see tests/traces/."""

from __future__ import annotations

import pytest
import traced
from policy_scenarios import STAIRS
from traced_answers import FILES, MACHINES, geometric, judged, new_policy, split_file

from localspec.policy.acceptance import Acceptance
from localspec.speculative.policy_api import FixedDraftPolicy, ProposerKind

DRAFT, LOOKUP = ProposerKind.DRAFT, ProposerKind.LOOKUP
QWEN = FILES[0]
[TRAINED] = [machine for machine in MACHINES if machine.name == "1.5B Q4_K_M"]


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 16])
@pytest.mark.parametrize("kind", [DRAFT, LOOKUP], ids=lambda kind: kind.value)
@pytest.mark.parametrize("machine", [STAIRS, TRAINED], ids=lambda machine: machine.name)
def test_the_best_that_is_possible_is_what_the_loop_gives(machine, kind, num_draft_tokens):
    """The other side of every ratio is reckoned; here the real loop is held against it."""
    for trace in traced.shipped(QWEN)[:6]:
        if kind in trace.proposers:
            policy = FixedDraftPolicy(num_draft_tokens)
            took_s = traced.replay(policy, trace, machine, 1, [kind])
            reckoned_s = traced.fixed(kind, num_draft_tokens, trace, machine, 1)
            assert reckoned_s == pytest.approx(took_s, rel=1e-9)


@pytest.mark.parametrize("name", FILES)
def test_every_recorded_answer_can_be_replayed(name):
    """Those of which a proposer was certain, too."""
    traces = traced.shipped(name)
    policy = new_policy(traces, STAIRS)
    for trace in traces:
        kinds = [prospect.kind for prospect in policy.prospects]
        took_s = traced.replay(policy, trace, STAIRS, 1, kinds)
        assert 0.1 * trace.num_tokens < took_s < 1.5 * trace.num_tokens


def test_a_draft_that_hardly_can_pay_does_not_harm_a_lookup():
    """With nothing known, on the pair's own machine: the draft costs 0.43 of its target."""
    ratios = []
    for trace in traced.shipped(QWEN):
        with_draft, without = (
            traced.replay(policy, trace, TRAINED, 1, [one.kind for one in policy.prospects])
            for policy in (
                new_policy([trace], TRAINED),
                new_policy([trace], TRAINED, without=[DRAFT]),
            )
        )
        ratios.append(without / with_draft)
    assert geometric(ratios) >= 0.98


def test_a_lookup_is_judged_while_a_draft_proposes():
    """Without that a draft hides a lookup that has become better: a text that is copied."""
    fitted, held_out = split_file(QWEN)
    copied = [trace for trace in [*fitted, *held_out] if trace.kind == "edit"]
    every = [one for found in [judged(fitted, copied, STAIRS)] for one in found]
    assert geometric([one.best_s / one.policy_s for one in every]) >= 0.98


def test_a_long_match_is_trusted_before_anything_was_seen():
    """By 1 - 1 / (1 + n) for a match of n tokens, and the more the longer it grows."""
    lookup = Acceptance.of(LOOKUP)
    chances = [
        float(lookup.weights @ lookup.chances(1.0 - 1.0 / (1 + length)))
        for length in (2, 4, 8, 24)
    ]
    assert chances == sorted(chances)
    assert chances[0] < 0.6
    assert chances[-1] > 0.9
    # A match that goes on is longer, so its tokens become likelier.
    gains = lookup.weights @ lookup.gains(1.0 - 1.0 / 3)
    steady = chances[0] * (1.0 - chances[0] ** 16) / (1.0 - chances[0])
    assert gains[16] > 1.5 * steady
