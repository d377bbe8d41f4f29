"""The rules, by exact enumeration: every draft, every branch, no Monte Carlo."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from enumeration import Enumeration
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Distribution
from localspec.sampling.params import SamplingParams
from localspec.speculative import verify
from localspec.speculative.loop import Request
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, FixedDraftPolicy
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Purpose, Randomness
from localspec.speculative.rules import make_rule
from toy import TableModel, all_shared, loop_of, never, tokens_of

Row = np.ndarray
Rows = Callable[[tuple[int, ...]], Row]  # prefix of drafted tokens → dense row (vocab,)


def survivors(row: Row) -> Distribution:
    ids = np.flatnonzero(row)
    return Distribution(ids, row[ids])


def joint_distribution(rule, targets: Rows, drafts: Rows, num_draft_tokens: int) -> dict:
    """Distribution of the emitted tokens of one step, extended to K + 1 by the target's own."""

    def emitted(enumeration: Enumeration) -> tuple[int, ...]:
        drawn: list[int] = []
        draft_rows = []
        for index in range(num_draft_tokens):
            draft_rows.append(survivors(drafts(tuple(drawn))))
            drawn.append(draft_rows[-1].draw(enumeration.uniform("draft", index)))
        target_rows = [survivors(targets(tuple(drawn[:i]))) for i in range(len(drawn) + 1)]
        accepts = [enumeration.uniform("accept", i) for i in range(num_draft_tokens)]
        verdict = rule(target_rows, draft_rows, drawn, accepts, enumeration.uniform("residual"))
        return (*drawn[: verdict.num_accepted], verdict.next_token)

    distribution: dict[tuple[int, ...], float] = defaultdict(float)
    for text, chance in Enumeration().distribution(emitted).items():
        for longer, own in extensions(targets, text, num_draft_tokens + 1):
            distribution[longer] += chance * own
        distribution["length"] += chance * len(text)
    return distribution


def extensions(targets: Rows, text: tuple[int, ...], length: int):
    """(text, weight) of every way the target itself goes on to `length` tokens."""
    if len(text) == length:
        yield text, 1.0
        return
    for token, chance in enumerate(targets(text)):
        if chance > 0:
            for longer, rest in extensions(targets, (*text, token), length):
                yield longer, chance * rest


def random_rows(seed: int, vocab: int, holes: float) -> Rows:
    """Rows keyed by prefix; about `holes` of the entries are 0."""

    def row(prefix: tuple[int, ...]) -> Row:
        random = np.random.default_rng([seed, *(t + 1 for t in prefix)])
        weights = random.dirichlet(np.ones(vocab)) * (random.random(vocab) >= holes)
        weights[random.integers(vocab)] += 0.1
        return weights / weights.sum()

    return row


def one_hot(rows: Rows) -> Rows:
    return lambda prefix: np.eye(len(rows(())))[int(np.argmax(rows(prefix)))]


def disjoint(targets: Rows) -> Rows:
    """Draft rows that share no token with the target's (which must have holes)."""

    def row(prefix: tuple[int, ...]) -> Row:
        other = (targets(prefix) == 0).astype(float)
        return other / other.sum()

    return row


def on_even(rows: Rows) -> Rows:
    """Only even tokens, so that odd ones are left to another."""

    def row(prefix: tuple[int, ...]) -> Row:
        weights = rows(prefix) * (np.arange(len(rows(()))) % 2 == 0) + 0.0
        weights[0] += 0.01
        return weights / weights.sum()

    return row


def pairs() -> Iterator[tuple[str, int, int, Rows, Rows]]:
    for vocab, k, seed in itertools.product((2, 3, 4), (0, 1, 2, 3), range(3)):
        if vocab == 4 and k == 3 and seed:
            continue  # the largest case once is enough
        targets = random_rows(seed, vocab, holes=0.3)
        drafts = random_rows(seed + 100, vocab, holes=0.3)
        yield "random", vocab, k, targets, drafts
        yield "equal", vocab, k, targets, targets
        yield "one-hot draft", vocab, k, targets, one_hot(drafts)
        yield "one-hot target", vocab, k, one_hot(targets), drafts
        yield "disjoint", vocab, k, on_even(targets), disjoint(on_even(targets))


@pytest.mark.parametrize(
    ("num_draft_tokens", "targets", "drafts"),
    [pytest.param(*pair[2:], id=f"{pair[0]}-V{pair[1]}-K{pair[2]}") for pair in pairs()],
)
def test_rules_emit_the_targets_joint_distribution(num_draft_tokens, targets, drafts):
    """Summed over all drafts and branches; and block is never shorter than token."""
    lengths = []
    for rule in (verify.token, verify.block):
        distribution = joint_distribution(rule, targets, drafts, num_draft_tokens)
        lengths.append(distribution.pop("length"))
        for text, expected in extensions(targets, (), num_draft_tokens + 1):
            assert distribution.pop(text, 0.0) == pytest.approx(expected, abs=1e-12), text
        assert sum(distribution.values()) == pytest.approx(0.0, abs=1e-12)
    assert lengths[1] >= lengths[0] - 1e-12


def test_block_is_longer_where_a_loss_can_be_made_good():
    """A token that the draft underrates after one that it overrates: Sun et al., figure 1."""
    targets = lambda _prefix: np.array([1 / 3, 2 / 3])  # noqa: E731
    drafts = lambda _prefix: np.array([2 / 3, 1 / 3])  # noqa: E731
    token, block = (
        joint_distribution(rule, targets, drafts, 2)["length"]
        for rule in (verify.token, verify.block)
    )
    assert token == pytest.approx(1 + 10 / 9)
    assert block == pytest.approx(1 + 11 / 9)


@pytest.mark.parametrize("rule", [verify.token, verify.block])
def test_rules_keep_an_equal_draft(rule):
    """With equal rows nothing is ever refused."""
    row = survivors(np.array([0.2, 0.3, 0.5]))
    verdict = rule([row] * 3, [row] * 2, [0, 2], np.array([0.999999, 0.999999]), 0.6)
    assert verdict == verify.Verdict(2, 2)


@pytest.mark.parametrize("rule", [verify.token, verify.block])
def test_a_token_the_target_excludes_is_refused(rule):
    """Even by a uniform of exactly 0."""
    target, draft = survivors(np.array([0.0, 1.0])), survivors(np.array([1.0, 0.0]))
    assert rule([target] * 2, [draft], [0], np.zeros(1), 0.0) == verify.Verdict(0, 1)


@pytest.mark.parametrize("rule", [verify.token, verify.block])
def test_a_refusal_between_equal_rows_draws_from_the_target(rule):
    """Nothing is left to draw from; only rounding can ask for it."""
    row = survivors(np.array([0.2, 0.3, 0.5]))
    assert verify.residual(row, row).total == 0.0
    assert rule([row, row], [row], [1], np.ones(1), 0.3) == verify.Verdict(0, row.draw(0.3))


@pytest.mark.parametrize("is_beginning", [False, True])
@pytest.mark.parametrize(
    ("num_target", "num_draft"), [(3, 50), (50, 3), (20, 20), (60, 9), (60, 60), (59, 60)]
)
def test_residual_matches_dense_rows(num_target, num_draft, is_beginning):
    """Survivor lists of any lengths subtract as whole rows do, and are left untouched."""
    random = np.random.default_rng(num_target)
    rows = []
    for count in (num_target, num_draft):
        row, among = np.zeros(60), count if is_beginning else 60
        row[random.choice(among, count, replace=False)] = random.dirichlet(np.ones(count))
        rows.append(row)
    target, draft = map(survivors, rows)
    before = target.probs.copy()
    distribution = verify.residual(target, draft)
    dense = np.zeros(60)
    dense[distribution.ids] = distribution.probs
    surplus = np.maximum(rows[0] - rows[1], 0)
    np.testing.assert_allclose(dense, surplus / surplus.sum(), atol=1e-15)
    np.testing.assert_array_equal(target.probs, before)


@pytest.mark.parametrize("num_draft", [3, 6000])
def test_residual_of_a_long_row_in_single_precision(num_draft):
    """Its masses and their sum are those of double precision, but for 1e-6."""
    random = np.random.default_rng(num_draft)
    logits = random.normal(0, 2, 6000).astype(np.float32)
    masses = np.exp(logits)
    target = Distribution(np.arange(6000), masses, float(masses.sum(dtype=np.float64)))
    weights = random.dirichlet(np.ones(num_draft)).astype(np.float32)
    draft = Distribution(np.arange(num_draft), 3 * weights, 3.0)
    dense = 0.7 * target.probs
    dense[:num_draft] -= draft.probs
    dense = np.maximum(dense, 0)
    left = verify.residual(target, draft, 0.7)
    assert left.total == pytest.approx(dense.sum(), rel=1e-5)
    np.testing.assert_allclose(left.masses, dense, atol=1e-7)
    np.testing.assert_array_equal(target.masses, masses)


@pytest.mark.parametrize(
    ("draft_tokens", "expected"),
    [
        ([], (0, 5)),
        ([4], (0, 5)),
        ([5], (1, 6)),
        ([5, 6], (2, 7)),
        ([5, 4, 7], (1, 6)),
        ([5, 6, 4], (2, 7)),
    ],
)
def test_greedy_rule_keeps_the_argmax_path(draft_tokens, expected):
    """Accept while equal; then the target's own choice."""
    path = [Distribution(np.array([t]), np.ones(1)) for t in (5, 6, 7, 8)]
    verdict = verify.match(path[: len(draft_tokens) + 1], draft_tokens, verify.argmax)
    assert (verdict.num_accepted, verdict.next_token) == expected


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
        made = make_rule(rule, numbers)
        loop.truncate(0)
        loop.start([1])
        chain = SamplerChain(SamplingParams(temperature=1.0), num_prompt_tokens=1)
        return tokens_of(loop.steps(Request(chain, made, 4, never)))

    branches = list(Enumeration().outcomes(text))
    assert sum(branch.prob for branch in branches) == pytest.approx(1.0)
    assert len(branches) > 100
    for branch in branches:
        assert text(Within(branch.box)) == branch.result
