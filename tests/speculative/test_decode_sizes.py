"""Where changing the size of a decode costs, decodes keep their sizes; the text is the same."""

from __future__ import annotations

import pytest

from localspec.engine.prefill import prepare
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    FixedDraftPolicy,
    ProposerKind,
    ThreadPolicy,
)
from localspec.speculative.proposers import DraftModel
from simulated import (
    H100_LARGE,
    H100_SMALL,
    Clock,
    FreeProposer,
    Machine,
    at_random,
    models,
    num_changes,
    successor,
)
from toy import GREEDY, all_shared, never, steps_of, tokens_of

# As measured on an H100.
MACHINES = (
    Machine("8B", H100_LARGE, 0.3, H100_SMALL, change=0.33, draft_change=0.61),
    Machine("135M", H100_SMALL, 0.2, H100_SMALL, change=1.5, draft_change=0.3),
)
NUM_TOKENS = 600


def loop_on(machine, kind, policy, agreement=0.85, most=MAX_DRAFT_TOKENS, clock=None):
    """A loop with a draft, or a lookup of `most` tokens, and its models."""
    clock = clock or Clock()
    target, draft = models(machine, clock, at_random(agreement))
    if kind is ProposerKind.DRAFT:
        proposer = DraftModel(draft, all_shared(target, draft), never)
    else:
        # A policy changes sizes where it finds nothing if that is cheaper than padding.
        gap = int(isinstance(policy, FixedDraftPolicy))
        proposer = FreeProposer(lambda token: token % 20 >= gap, at_random(agreement), most)
    loop = SpeculativeDecoder(target, [proposer], policy, ThreadPolicy(1), None, clock)
    return loop, target, draft


def answer(loop, target, draft, start):
    """Steps of an answer, and how often each model changed its size behind the prompt."""
    prompt = [*loop.tokens, *range(40), start]
    target.sizes.clear()
    draft.sizes.clear()
    steps = list(steps_of(loop, prompt, max_tokens=NUM_TOKENS))
    expected = [start := successor(start) for _ in range(NUM_TOKENS)]
    assert tokens_of(steps) == expected
    return len(steps), num_changes(target.sizes[2:]), num_changes(draft.sizes[2:])


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("kind", [ProposerKind.DRAFT, ProposerKind.LOOKUP])
@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, "auto"])
def test_sizes_stay_while_drafts_are_worth_it(kind, k, machine):
    if (machine.name, kind, k) == ("8B", ProposerKind.LOOKUP, "auto"):
        pytest.skip("its sizes change more often, and that takes no time: see the next test")
    policy = FixedDraftPolicy(k, keeps_sizes=True) if k != "auto" else None
    policy = policy or AdaptiveDraftPolicy({kind: machine.draft_share}, 1)
    loop, *pair = loop_on(machine, kind, policy)
    for number in range(4 if k == "auto" else 0):  # it learns what a change costs
        answer(loop, *pair, start=50 * number)
    num_steps, *changes = answer(loop, *pair, start=300)
    assert num_steps < 0.9 * NUM_TOKENS
    # It times a single token again, and tries a larger size when many tokens were right.
    num_chosen = 4 if k == "auto" else 0
    assert max(changes) <= 0.02 * num_steps + num_chosen


def test_a_lookup_whose_sizes_change_more_often_takes_no_more_time():
    """Next to one that can only propose three tokens, so that nearly all sizes are the same."""
    machine = MACHINES[0]
    seconds = {}
    for most in (3, MAX_DRAFT_TOKENS):
        clock = Clock()
        policy = AdaptiveDraftPolicy({ProposerKind.LOOKUP: machine.draft_share}, 1)
        loop, *pair = loop_on(machine, ProposerKind.LOOKUP, policy, most=most, clock=clock)
        for number in range(4):  # it learns what a change costs
            answer(loop, *pair, start=50 * number)
        begin = clock()
        for start in (300, 57, 100, 320):
            answer(loop, *pair, start=start)
        seconds[most] = clock() - begin
    assert seconds[MAX_DRAFT_TOKENS] <= seconds[3]


def test_nothing_is_padded_where_changes_are_free():
    loop, target, draft = loop_on(MACHINES[0], ProposerKind.DRAFT, FixedDraftPolicy(4))
    num_steps, _, changes = answer(loop, target, draft, start=300)
    assert changes > 0.2 * num_steps
    assert (2, 1) in draft.sizes
    loop, *pair = loop_on(MACHINES[0], ProposerKind.LOOKUP, FixedDraftPolicy(4))
    assert answer(loop, *pair, start=300)[1] > 0.03 * num_steps


@pytest.mark.parametrize(("change", "is_dear"), [(0.33, True), (0.02, False)])
def test_a_pause_shows_whether_a_fixed_number_of_tokens_keeps_sizes(change, is_dear):
    machine, policy = MACHINES[0]._replace(change=change), FixedDraftPolicy(3)
    loop, target, _draft = loop_on(machine, ProposerKind.DRAFT, policy)
    prepare(loop, list(range(40)), SamplerChain(GREEDY, num_prompt_tokens=40))
    assert policy.keeps_sizes is is_dear
    assert loop.tokens == list(range(40))
    assert target.num_cached == 40
