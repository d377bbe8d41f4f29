"""The rules, by exact enumeration: every draft, every branch, no Monte Carlo."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from localspec import verify
from localspec.sampling import Distribution

Row = np.ndarray
Rows = Callable[[tuple[int, ...]], Row]  # prefix of drafted tokens → dense row (vocab,)


def survivors(row: Row) -> Distribution:
    ids = np.flatnonzero(row)
    return Distribution(ids, row[ids])


def midpoints(row: Row) -> Iterator[tuple[float, float]]:
    """(uniform, weight): one from the middle of each token's share of the unit interval."""
    edges = np.concatenate([[0.0], np.cumsum(row / row.sum())])
    for low, high in itertools.pairwise(edges):
        if high > low:
            yield (low + high) / 2, high - low


def accept_midpoints(target: Row, draft: Row, token: int) -> list[tuple[float, float]]:
    """(uniform, weight) from the middle of "accept" and of "refuse"."""
    edge = min(1.0, target[token] / draft[token])
    return [(u, w) for u, w in ((edge / 2, edge), ((1 + edge) / 2, 1 - edge)) if w > 0]


def joint_law(targets: Rows, drafts: Rows, num_draft_tokens: int, vocab: int) -> dict:
    """Law of the emitted tokens of one step, extended to K + 1 by the target's own."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for drawn in itertools.product(range(vocab), repeat=num_draft_tokens):
        prefixes = [drawn[:i] for i in range(num_draft_tokens + 1)]
        draft_rows = [drafts(p) for p in prefixes[:-1]]
        target_rows = [targets(p) for p in prefixes]
        chance = np.prod([row[t] for row, t in zip(draft_rows, drawn, strict=True)])
        if chance == 0:
            continue
        branches = [
            accept_midpoints(t, d, x)
            for t, d, x in zip(target_rows, draft_rows, drawn, strict=False)
        ]
        for branch in itertools.product(*branches):
            accepts = np.array([u for u, _ in branch])
            weight = chance * np.prod([w for _, w in branch])
            for emitted, share in emissions(target_rows, draft_rows, drawn, accepts):
                for text, own in extensions(targets, emitted, num_draft_tokens + 1):
                    law[text] += weight * share * own
    return law


def emissions(target_rows, draft_rows, drawn, accepts):
    """(tokens, weight) of `verify.token` over all residual uniforms."""
    # Which row the last token comes from is learnt by asking, its shares from the definition.
    rule = [survivors(r) for r in target_rows], [survivors(r) for r in draft_rows], drawn
    kept = verify.token(*rule, accepts, 0.5).num_accepted
    last = target_rows[kept]
    if kept < len(drawn):
        surplus = np.maximum(last - draft_rows[kept], 0)
        last = surplus if surplus.sum() > 0 else last
    for uniform, share in midpoints(last):
        verdict = verify.token(*rule, accepts, uniform)
        assert verdict.num_accepted == kept
        yield (*drawn[:kept], verdict.next_token), share


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
    ("name", "vocab", "num_draft_tokens", "targets", "drafts"),
    [pytest.param(*pair, id=f"{pair[0]}-V{pair[1]}-K{pair[2]}") for pair in pairs()],
)
def test_token_rule_emits_the_targets_joint_law(name, vocab, num_draft_tokens, targets, drafts):
    """Summed over all drafts and branches, the text has the target's own law."""
    law = joint_law(targets, drafts, num_draft_tokens, vocab)
    for text, expected in extensions(targets, (), num_draft_tokens + 1):
        assert law.pop(text, 0.0) == pytest.approx(expected, abs=1e-12), (name, text)
    assert sum(law.values()) == pytest.approx(0.0, abs=1e-12)


def test_token_rule_keeps_an_equal_draft():
    """With equal rows nothing is ever refused."""
    row = survivors(np.array([0.2, 0.3, 0.5]))
    verdict = verify.token([row] * 3, [row] * 2, [0, 2], np.array([0.999999, 0.999999]), 0.6)
    assert verdict == verify.Verdict(2, 2)


def test_a_token_the_target_excludes_is_refused():
    """Even by a uniform of exactly 0."""
    target, draft = survivors(np.array([0.0, 1.0])), survivors(np.array([1.0, 0.0]))
    assert verify.token([target] * 2, [draft], [0], np.zeros(1), 0.0) == verify.Verdict(0, 1)


def test_residual_of_equal_rows_is_the_target():
    """No surplus is left to divide by; only rounding can ask for it."""
    row = survivors(np.array([0.2, 0.3, 0.5]))
    np.testing.assert_allclose(verify.residual(row, row).probs, row.probs)


@pytest.mark.parametrize(("num_target", "num_draft"), [(3, 50), (50, 3), (20, 20)])
def test_residual_matches_dense_rows(num_target, num_draft):
    """Survivor lists of any lengths subtract as whole rows do, and are left untouched."""
    random = np.random.default_rng(num_target)
    rows = []
    for count in (num_target, num_draft):
        row = np.zeros(60)
        row[random.choice(60, count, replace=False)] = random.dirichlet(np.ones(count))
        rows.append(row)
    target, draft = map(survivors, rows)
    before = target.probs.copy()
    law = verify.residual(target, draft)
    dense = np.zeros(60)
    dense[law.ids] = law.probs
    surplus = np.maximum(rows[0] - rows[1], 0)
    np.testing.assert_allclose(dense, surplus / surplus.sum(), atol=1e-15)
    np.testing.assert_array_equal(target.probs, before)


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
    verdict = verify.greedy(path[: len(draft_tokens) + 1], draft_tokens)
    assert (verdict.num_accepted, verdict.next_token) == expected
