"""The distribution of whole texts, exact over several steps: loop, rules and the use of
randomness.

Every uniform of every step is a variable of its own (see `enumeration`), so a number that
served twice would bend the distribution, however far apart the two uses are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from enumeration import Enumeration
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.heads import Blocks, Head
from localspec.speculative.loop import Request
from localspec.speculative.policy_api import (
    DraftPolicy,
    FixedDraftPolicy,
    ProposerKind,
)
from localspec.speculative.proposers import DraftModel, Proposer
from localspec.speculative.rules import make_rule
from reference import target_probs
from toy import (
    FILTERED,
    PROMPT,
    UNFILTERED,
    TableBlocks,
    TableHead,
    TableModel,
    all_shared,
    loop_of,
)

BANNED = replace(UNFILTERED, logit_bias={0: float("-inf")})
PENALISED = replace(
    UNFILTERED,
    repetition_penalty=1.5,
    frequency_penalty=0.5,
    presence_penalty=0.25,
    penalty_last_n=3,
)
STEADY = functools.partial(FixedDraftPolicy, keeps_sizes=True)


class Unsure(DraftPolicy):
    """As many tokens as asked for, but none after a row that has no clear favourite.

    Decided by the row, not by what is drawn from it.
    """

    def __init__(self, num_draft_tokens):
        self.num_draft_tokens = num_draft_tokens

    def choose(self, context):
        chosen = FixedDraftPolicy(self.num_draft_tokens).choose(context)
        self.limit = min(self.num_draft_tokens, context.room)
        return chosen._replace(extent=self) if chosen.extent else chosen

    def num_worth(self, num_drafted, confidence):
        return 0 if confidence < 0.6 else self.limit - num_drafted

    def padded(self, num_tokens, limit):
        return min(num_tokens + 1, limit)


def automatic(_num_draft_tokens):
    """The automatic policy, which decides by what it has seen of this very text."""
    return AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1)


def automatic_with_a_head(_num_draft_tokens):
    """The same, which may also let the head read again what it had proposed."""
    return AdaptiveDraftPolicy({ProposerKind.HEAD: 0.1}, 1)


def text_distribution(
    rule, target, draft, policy, *, num_draft_tokens, max_tokens, params, end, different=()
):
    """Exact distribution of the text that the loop emits. draft: tables of any proposer, or a
    proposer."""

    def is_end(token: int) -> bool:
        return token == end

    def run(enumeration: Enumeration) -> tuple[int, ...]:
        if isinstance(draft, Proposer):
            proposer = draft
        elif isinstance(draft, TableBlocks):
            proposer = Blocks(draft, is_end)
        elif isinstance(draft, TableHead):
            proposer = Head(draft, is_end)
        else:
            proposer = DraftModel(draft, all_shared(target, draft, different), is_end)
        loop = loop_of(target, [proposer], policy(num_draft_tokens))
        made = make_rule(rule, enumeration)
        target.truncate(0)
        proposer.truncate(0)
        loop.start(PROMPT)
        chain = SamplerChain(params, num_prompt_tokens=len(PROMPT))
        steps = loop.steps(Request(chain, made, max_tokens, is_end))
        return tuple(token for step in steps for token in step.tokens)

    return Enumeration().distribution(run)


def own_distribution(target, max_tokens, params, end, history=()):
    """The target's distribution of the same texts, one token after the other."""
    if len(history) == max_tokens or (history and history[-1] == end):
        return {history: 1.0}
    distribution = {}
    for token, chance in enumerate(target_probs(target, [*PROMPT, *history], params)):
        if chance > 0:
            longer = own_distribution(target, max_tokens, params, end, (*history, token))
            distribution |= {text: chance * rest for text, rest in longer.items()}
    return distribution


class Case(NamedTuple):
    """How texts are made. end: the token that ends them, if any."""

    policy: Callable[[int], DraftPolicy]
    num_draft_tokens: int
    max_tokens: int
    params: SamplingParams
    end: int | None


def assert_targets_distribution(rule, target, draft, case, different=()):
    """Of every text, to 1e-12."""
    policy, num_draft_tokens, max_tokens, params, end = case
    distribution = text_distribution(
        rule,
        target,
        draft,
        policy,
        num_draft_tokens=num_draft_tokens,
        max_tokens=max_tokens,
        params=params,
        end=end,
        different=different,
    )
    expected = own_distribution(target, max_tokens, params, end)
    assert set(distribution) == set(expected)
    for text, chance in expected.items():
        assert distribution[text] == pytest.approx(chance, abs=1e-12)


@pytest.mark.parametrize("different", [(), (1,)], ids=["", "a renamed token"])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    ("vocab", "draft_vocab", "policy", "num_draft_tokens", "max_tokens", "params", "end"),
    [
        pytest.param(2, 2, FixedDraftPolicy, 3, 5, UNFILTERED, None, id="five tokens, K 3"),
        pytest.param(2, 2, FixedDraftPolicy, 1, 7, UNFILTERED, None, id="seven tokens, K 1"),
        pytest.param(
            2, 2, FixedDraftPolicy, 2, 6, UNFILTERED, 0, id="an end token inside the draft"
        ),
        pytest.param(3, 2, FixedDraftPolicy, 2, 4, UNFILTERED, None, id="a narrower draft"),
        pytest.param(2, 3, FixedDraftPolicy, 2, 4, UNFILTERED, None, id="a wider draft"),
        pytest.param(2, 2, Unsure, 3, 5, UNFILTERED, None, id="a draft that stops by its rows"),
        pytest.param(2, 2, STEADY, 2, 5, UNFILTERED, None, id="sizes that stay"),
        pytest.param(2, 2, automatic, 0, 7, UNFILTERED, None, id="the automatic policy"),
        pytest.param(4, 4, FixedDraftPolicy, 2, 4, FILTERED, 3, id="filters"),
        pytest.param(2, 2, FixedDraftPolicy, 3, 5, PENALISED, None, id="penalties"),
        pytest.param(
            3, 2, FixedDraftPolicy, 2, 4, PENALISED, 0, id="penalties, a narrower draft"
        ),
        pytest.param(3, 1, FixedDraftPolicy, 2, 4, BANNED, None, id="all of a draft banned"),
    ],
)
def test_texts_have_the_targets_distribution(
    different, rule, vocab, draft_vocab, policy, num_draft_tokens, max_tokens, params, end
):
    """Of every length up to several steps, to 1e-12."""
    target = TableModel(vocab, seed=5, spread=1.0)
    draft = TableModel(draft_vocab, seed=99, spread=1.0)
    case = Case(policy, num_draft_tokens, max_tokens, params, end)
    assert_targets_distribution(rule, target, draft, case, different=different)


HEAD_CASES = [
    pytest.param(FixedDraftPolicy, 3, 5, UNFILTERED, None, id="five tokens, K 3"),
    pytest.param(FixedDraftPolicy, 1, 7, UNFILTERED, None, id="seven tokens, K 1"),
    pytest.param(FixedDraftPolicy, 2, 6, UNFILTERED, 0, id="an end token in the draft"),
    pytest.param(Unsure, 3, 5, UNFILTERED, None, id="a head that stops by its rows"),
    pytest.param(STEADY, 2, 4, UNFILTERED, None, id="sizes that stay"),
    pytest.param(automatic_with_a_head, 0, 6, UNFILTERED, None, id="automatic"),
    pytest.param(FixedDraftPolicy, 3, 5, PENALISED, None, id="penalties"),
]


@pytest.mark.parametrize("kind", ["steps", "blocks", "paired", "says"])
@pytest.mark.parametrize("num_kept", [1, 64])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    ("policy", "num_draft_tokens", "max_tokens", "params", "end"),
    HEAD_CASES,
)
def test_texts_drafted_by_a_head_have_the_targets_distribution(
    kind, num_kept, rule, policy, num_draft_tokens, max_tokens, params, end
):
    """To 1e-12, whether it sees the whole text or begins at its last token, each time.

    Rows of blocks are computed before anything is drawn, or chosen by the token before.
    """
    target = TableModel(2, seed=5, spread=1.0)
    head = TableBlocks(
        target,
        num_kept=num_kept,
        max_draft_tokens=3,
        is_paired=kind == "paired",
        says=kind == "says",
    )
    if kind == "steps":
        head = TableHead(target, num_kept=num_kept, max_draft_tokens=3, seed=99, spread=1.0)
    case = Case(policy, num_draft_tokens, max_tokens, params, end)
    assert_targets_distribution(rule, target, head, case)
