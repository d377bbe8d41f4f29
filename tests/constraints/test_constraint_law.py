"""The law of constrained answers, exact: what a constraint forbids is taken out of every row of
the target, each with the state behind its own tokens, whatever a draft proposes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from enumeration import Enumeration
from localspec.constraints.after_boundary import Trigger
from localspec.constraints.guidance import NumberBound
from localspec.constraints.spelling import Spelling
from localspec.sampling.chain import SamplerChain
from localspec.speculative.loop import Request
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.proposers import ConstraintProposer, DraftModel
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.streaming.thinking import Thoughts, ThoughtsEnd
from localspec.streaming.thought_families import TextKind, family_of_tags
from toy import FILTERED, GREEDY, PROMPT, UNFILTERED, TableModel, all_shared, loop_of
from toy_constraint import ToyConstraint, ToyVocabulary, behind

TAGS = family_of_tags("[", "]")


def no_two_in_a_row(vocab_size, history):
    """Anything but the token before; a third of the vocabulary at first."""
    return {token for token in range(vocab_size) if not history or token != history[-1]} - (
        set() if history else {0}
    )


def words(texts, history):
    """Only the tokens that go on with one of some texts."""
    return {
        text[len(history)]
        for text in texts
        if len(text) > len(history) and text[: len(history)] == history
    }


WORDS = [(1, 2, 0), (1, 2, 2, 1, 0), (2, 1, 1, 0), (2, 1, 2, 2, 0), (2, 0)]


def masked_rows(target, make, params, end, max_tokens, history=()):
    """The law itself: the target's masked, cut and renormalised rows, one after the other."""
    if len(history) == max_tokens or (history and history[-1] == end):
        return {history: 1.0}
    constraint = make()
    constraint.commit(history)
    row = target.row([*PROMPT, *history]).astype(np.float64)
    mask = constraint.mask()
    if mask is not None:
        row[~mask] = -np.inf
    law = {}
    for token, chance in enumerate(dense(row, params)):
        if chance > 0:
            rest = masked_rows(target, make, params, end, max_tokens, (*history, token))
            law |= {text: chance * share for text, share in rest.items()}
    return law


def dense(row, params):
    """The cuts in llama.cpp's order, by sorting everything."""
    if params.temperature == 0:
        return np.eye(len(row))[int(row.argmax())]
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    order = [token for token in order if row[token] > -np.inf]
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp(row[order] - row[order[0]])
    weights /= weights.sum()
    kept = 1
    while params.top_p < 1 and weights[:kept].sum() < params.top_p and kept < len(order):
        kept += 1
    order = order[: kept if params.top_p < 1 else len(order)]
    floor = row[order[0]] + np.log(params.min_p) if params.min_p else -np.inf
    order = [token for token in order if row[token] >= floor]
    probs = np.zeros(len(row))
    probs[order] = np.exp((row[order] - row[order[0]]) / params.temperature)
    return probs / probs.sum()


class FreeDraft(DraftModel):
    """Proposes what the constraint forbids, too."""

    def propose(self, tokens, extent, chain, draw):
        free = SamplerChain(chain.params, num_prompt_tokens=len(PROMPT))
        return super().propose(tokens, extent, free, draw)


def decoder(target, draft, k, is_end, kind=DraftModel):
    """A loop with a draft model, or with what is forced and nobody else."""
    proposer = ConstraintProposer(is_end)
    if draft is not None:
        proposer = kind(draft, all_shared(target, draft), is_end)
    return loop_of(target, [proposer], FixedDraftPolicy(k))


def answer(loop, make, rule, params, max_tokens, is_end):
    """One answer: the tokens of each step."""
    loop.truncate(0)
    loop.start(PROMPT)
    chain = SamplerChain(params, num_prompt_tokens=len(PROMPT), constraint=make())
    return [step.tokens for step in loop.steps(Request(chain, rule, max_tokens, is_end))]


def text_law(target, draft, make, rule, *, k, max_tokens, params, end, kind=DraftModel):
    """Exact distribution of the text that the loop emits."""

    def run(enumeration: Enumeration) -> tuple[int, ...]:
        loop = decoder(target, draft, k, lambda token: token == end, kind)
        target.truncate(0)
        if draft is not None:
            draft.truncate(0)
        made = make_rule(rule, enumeration)
        steps = answer(loop, make, made, params, max_tokens, lambda token: token == end)
        return tuple(token for step in steps for token in step)

    return Enumeration().distribution(run)


def assert_same(law, expected):
    assert set(law) == set(expected)
    for text, chance in expected.items():
        assert law[text] == pytest.approx(chance, abs=1e-12)


TARGET = functools.partial(TableModel, seed=5, spread=1.0)
DRAFT = functools.partial(TableModel, seed=99, spread=1.0)


@pytest.mark.parametrize("kind", [DraftModel, FreeDraft])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    ("allowed", "vocab", "k", "max_tokens", "params", "end"),
    [
        pytest.param(no_two_in_a_row, 3, 1, 5, UNFILTERED, None, id="K 1"),
        pytest.param(no_two_in_a_row, 3, 2, 5, UNFILTERED, None, id="K 2"),
        pytest.param(no_two_in_a_row, 3, 3, 4, UNFILTERED, None, id="K 3"),
        pytest.param(no_two_in_a_row, 2, 4, 6, UNFILTERED, None, id="K 4"),
        pytest.param(no_two_in_a_row, 3, 2, 5, UNFILTERED, 0, id="an end token"),
        pytest.param(no_two_in_a_row, 4, 2, 4, FILTERED, None, id="filters"),
        *(
            pytest.param(words, 3, k, 6, UNFILTERED, 0, id=f"words, K {k}")
            for k in (1, 2, 3, 4)
        ),
    ],
)
def test_constrained_texts_have_the_law_of_masked_rows(
    kind, rule, allowed, vocab, k, max_tokens, params, end
):
    """Of every length, over several steps, to 1e-12."""
    max_tokens -= allowed is words and kind is FreeDraft and k > 2  # the largest cases
    of = functools.partial(words, WORDS) if allowed is words else None
    of = of or functools.partial(no_two_in_a_row, vocab)
    make = lambda: ToyConstraint(vocab, of, end)  # noqa: E731
    target = TARGET(vocab)
    law = text_law(
        target,
        DRAFT(vocab),
        make,
        rule,
        k=k,
        max_tokens=max_tokens,
        params=params,
        end=end,
        kind=kind,
    )
    assert_same(law, masked_rows(target, make, params, end, max_tokens))


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_what_is_forced_is_judged_like_any_draft(rule, k):
    """A toy forces the lowest of two: so it is refused as often as the target says."""
    make = lambda: ToyConstraint(3, functools.partial(words, WORDS), 0)  # noqa: E731
    target = TARGET(3)
    law = text_law(target, None, make, rule, k=k, max_tokens=6, params=UNFILTERED, end=0)
    assert_same(law, masked_rows(target, make, UNFILTERED, 0, 6))


TEXTS = ["e", "a", "b", "]", "[", "]a", "]aa"]


def thinking(texts, *, opened, opening=None):
    """Texts over a b ] ]a and an end, of which two a are in a row only in thoughts."""
    vocabulary = ToyVocabulary(texts, end=0)
    inner = ToyConstraint(
        len(texts),
        lambda history: {1, 2} - set(history[-1:]) | ({0} if history else set()),
        0,
    )
    thoughts = Thoughts((TAGS,), TextKind.THOUGHT if opened else None)
    return behind(inner, ThoughtsEnd(thoughts), vocabulary, thoughts.marks(), opening=opening)


def triggered():
    """Texts over a b and an end: behind "ab" the two take turns, before it all is free."""
    vocabulary = ToyVocabulary(["e", "a", "b", "bb"], end=0)
    inner = ToyConstraint(
        4,
        lambda history: {1, 2} - set(history[-1:]) | ({0} if history else set()),
        0,
    )
    return behind(inner, Trigger(["ab"]), vocabulary, ["ab"], may_end=True)


def numbers():
    """A list of numbers of long tokens, which the bound ends; and one that may not end in 0."""
    texts = ["e", ",", "1" * 15, "0", "0" * 16]

    def allowed(history):
        begun = "".join(texts[token] for token in history).rpartition(",")[2]
        ends = {0, 1} if begun and not begun.endswith("0") else set()
        return {2, 3, 4} | ends

    inner = ToyConstraint(5, allowed, 0)
    return NumberBound(inner, Spelling(ToyVocabulary(texts, end=0), 5))


BOUNDARIES = {
    "a thought": (functools.partial(thinking, TEXTS[:4], opened=True), 4, 5),
    "a token across": (functools.partial(thinking, [*TEXTS[:4], "]a"], opened=True), 5, 4),
    "a thought or none": (
        functools.partial(thinking, TEXTS[:5], opened=False, opening=frozenset([4])), 5, 4,
    ),
    "a trigger": (triggered, 4, 5),
    "a bound of numbers": (numbers, 5, 5),
}  # fmt: skip


# With numbers there are the most texts.
BOUNDARIES_AND_K = [
    pytest.param(case, k, marks=pytest.mark.slow if k > 2 - ("numbers" in case) else ())
    for case in BOUNDARIES
    for k in (1, 2, 3)
]


@pytest.mark.parametrize("kind", [DraftModel, FreeDraft])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(("case", "k"), BOUNDARIES_AND_K)
def test_a_boundary_may_lie_anywhere_in_the_window(case, k, rule, kind):
    """What stands before it is free, what stands behind it is not, to 1e-12."""
    make, vocab, max_tokens = BOUNDARIES[case]
    max_tokens -= k == 3 or (k == 2 and max_tokens == 5)  # the largest cases
    target = TARGET(vocab)
    law = text_law(
        target,
        DRAFT(vocab),
        make,
        rule,
        k=k,
        max_tokens=max_tokens,
        params=UNFILTERED,
        end=0,
        kind=kind,
    )
    expected = masked_rows(target, make, UNFILTERED, 0, max_tokens)
    assert_same(law, expected)
    assert len({len(text) for text in expected}) > 1


def allowed_texts(make, size, length, history=()):
    """Every text that a constraint allows."""
    if len(history) == length:
        yield history
        return
    for token in range(size):
        if make().validate([*history, token]) == len(history) + 1:
            yield from allowed_texts(make, size, length, (*history, token))


def test_what_stands_behind_a_thought_is_what_the_constraint_allows():
    """Worked out by hand: "]" ends the thought; behind it a and b take turns."""
    make = functools.partial(thinking, TEXTS, opened=True)

    def spelled(text: Sequence[int]) -> str:
        return "".join(TEXTS[token] for token in text)

    found = {spelled(text) for text in allowed_texts(make, 7, 3)}
    assert {"aab", "[a]", "a]a", "]ab", "]ae"} <= found
    # No end within the thought; two a in a row, or another mark, only there; one a at least.
    assert not {"aae", "]aa", "]a]", "]e"} & found
    # A token that ends the thought and goes on counts with what it goes on with.
    assert make().validate([5, 1]) == 1
    assert make().validate([5, 2, 1, 0]) == 4
    assert make().validate([1, 6]) == 1
    # As every mask says.
    for text in ([], [1], [3], [5], [3, 1]):
        constraint = make()
        constraint.commit(text)
        ones = [token for token in range(7) if constraint.validate([token])]
        assert constraint.mask().nonzero()[0].tolist() == ones


def test_without_an_opening_the_constraint_holds_from_the_first_token():
    make = functools.partial(thinking, TEXTS[:5], opened=False, opening=frozenset([4]))
    assert make().validate([1, 1]) == 1
    assert make().validate([1, 2, 1]) == 3
    assert make().validate([4, 1, 1, 3, 1, 1]) == 5
    assert make().validate([3]) == 0


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("kind", [DraftModel, FreeDraft])
@pytest.mark.parametrize("case", ["words", *BOUNDARIES])
def test_greedy_and_seeded_texts_do_not_depend_on_the_draft(case, kind, rule):
    """K 0 to 4, a draft model or what is forced: the same tokens."""
    if case == "words":
        vocab = 3
        make = lambda: ToyConstraint(3, functools.partial(words, WORDS), 0)  # noqa: E731
    else:
        make, vocab, _ = BOUNDARIES[case]
    params = GREEDY if rule == "greedy" else UNFILTERED
    draft = DRAFT(vocab)
    accepted = set()
    for seed in range(12):
        target = TableModel(vocab, seed=seed, spread=1.0)
        made = make_rule(rule, Randomness(seed))
        texts = set()
        for k, proposer in itertools.product(range(5), (draft, None)):
            loop = decoder(target, proposer, k, lambda token: token == 0, kind)
            steps = answer(loop, make, made, params, 12, lambda token: token == 0)
            texts.add(tuple(token for step in steps for token in step))
            accepted.add(max(map(len, steps)))
        assert len(texts) == 1
    assert max(accepted) > 1
