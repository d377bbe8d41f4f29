"""Our distributions against what llama.cpp's own sampler chain leaves of the same logits, and
options that name tokens by text or by nature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import llama_cpp
import numpy as np
import pytest

from examples import num_examples
from llama_chain import chain_probs
from localspec.errors import DecodeError, OptionError
from localspec.sampling.chain import Resolver, SamplerChain, find_breakers
from localspec.sampling.logprobs import token_logprobs
from localspec.sampling.params import SamplingParams
from toy import TableModel

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture(scope="module")
def resolver(demo_vocabulary):
    return Resolver(demo_vocabulary)


@pytest.fixture(scope="module")
def size(demo_vocabulary):
    return demo_vocabulary.size


def realistic_row(generator: np.random.Generator, size: int) -> np.ndarray:
    """A broad bell and a few peaks, as a language model's rows have."""
    row = generator.normal(generator.uniform(-5, 5), 2.5, size).astype(np.float32)
    peaks = generator.integers(0, size, 30)
    row[peaks] += generator.uniform(0, 14, 30).astype(np.float32)
    return row


def repetitive_text(generator: np.random.Generator, size: int) -> list[int]:
    """Tokens of a small set, with phrases that come back, longer than the windows."""
    few = generator.integers(0, size, 12)
    text: list[int] = []
    while len(text) < generator.integers(1, 200):
        if text and generator.random() < 0.5:
            start = generator.integers(len(text))
            text += text[start : start + generator.integers(1, 12)]
        else:
            text.append(int(generator.choice(few)))
    return text


def random_params(generator: np.random.Generator, size: int) -> SamplingParams:
    """Each transform in half of the cases, at values that bite."""

    def choose(off, *values):
        return off if generator.random() < 0.5 else values[generator.integers(len(values))]

    top_n_sigma = choose(-1.0, 0.0, 0.5, 1.0, 3.0)
    ids = generator.integers(0, size, 6).tolist()
    bias = {token: float(generator.choice([-math.inf, -3.0, 2.5, 8.0])) for token in ids}
    return SamplingParams(
        logit_bias=choose({}, bias),
        repetition_penalty=choose(1.0, 0.8, 1.1, 1.5),
        presence_penalty=choose(0.0, -0.5, 0.7),
        frequency_penalty=choose(0.0, -0.2, 0.4),
        penalty_last_n=choose(64, 0, 1, 5, 500),
        dry_multiplier=choose(0.0, 0.8, 3.0),
        # Penalties whose squares overflow a float32 end llama.cpp's standard deviation.
        dry_base=choose(1.75, 1.0, 1.2, 8.0) if top_n_sigma <= 0 else 1.1,
        dry_allowed_length=choose(2, 1, 4),
        dry_penalty_last_n=choose(64, 0, 1, 10, 500),
        dry_sequence_breakers=choose(("\n", ":", '"', "*"), (), ("fox", " the"), ("e",)),
        top_n_sigma=top_n_sigma,
        top_k=choose(0, 1, 2, 5, 40, 200, 10**6),
        typical_p=choose(1.0, 0.1, 0.5, 0.95),
        top_p=choose(1.0, 0.0, 1e-6, 0.3, 0.9, 0.95, 0.999),
        min_p=choose(0.0, 1e-4, 0.05, 0.3, 1.0),
        temperature=float(generator.choice([0.0, 0.3, 0.8, 1.0, 2.5])),
    )


def dense(chain: SamplerChain, row: np.ndarray, text: Sequence[int]) -> np.ndarray:
    distribution = chain.distribution(row, text)
    assert np.all(np.diff(distribution.ids) > 0)
    assert distribution.probs.sum() == pytest.approx(1.0)
    probs = np.zeros(len(row))
    probs[distribution.ids] = distribution.probs
    return probs


def agree(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """The same tokens, with the same probabilities as far as float32 tells."""
    return bool(
        np.array_equal(ours > 1e-30, theirs > 1e-30)
        and np.allclose(ours, theirs, rtol=1e-4, atol=1e-12)
    )


def drift(row: np.ndarray, top_k: int) -> float:
    """How far a float32 running sum of the row's probabilities gets from the true one."""
    best = np.sort(row)[::-1][: top_k or None]
    weights = np.exp(best - best[0])
    rounded = np.cumsum(weights / np.cumsum(weights)[-1])  # float32, one after the other
    exact = np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64)
    return float(np.abs(rounded - exact).max())


def moved(params: SamplingParams, share: float) -> SamplingParams:
    """The params with every threshold shifted: below 0 to keep less, above 0 more."""
    changes = {"min_p": min(params.min_p * (1 - share), 1.0)}
    changes |= {
        name: min(getattr(params, name) * (1 + share), 1.0)
        for name in ("top_p", "typical_p")
        if getattr(params, name) < 1.0
    }
    if params.top_n_sigma > 0.0:
        changes["top_n_sigma"] = params.top_n_sigma * (1 + 50 * share)
    return replace(params, **changes)


def check(distribution_of, row: np.ndarray, params: SamplingParams, theirs: np.ndarray) -> bool:
    """Hold our distribution against theirs. Returns whether they agree without any rounding.

    If not, their survivors lie between ours at thresholds stricter and laxer by what their
    float32 sums can be off, and have the probabilities that ours would give them.
    """
    if agree(distribution_of(params), theirs):
        return True
    share = 2e-6 + 2 * drift(row, params.top_k)
    stricter, laxer = (
        distribution_of(moved(params, -share)),
        distribution_of(moved(params, share)),
    )
    assert np.all(theirs[stricter > 1e-30] > 0), params
    expected = np.where(theirs > 0, laxer, 0.0)
    assert agree(expected / expected.sum(), theirs), params
    return False


def test_distributions_are_what_llama_cpps_chain_leaves(demo_vocab, resolver, size):
    """Random rows, texts and settings; any and all samplers at once."""
    generator = np.random.default_rng(20)
    num_rounded = 0
    num_rows = num_examples(3000)
    for _ in range(num_rows):
        params = random_params(generator, size)
        row, text = realistic_row(generator, size), repetitive_text(generator, size)

        def distribution_of(params, row=row, text=text):
            return dense(resolver.chain(params, 0), row, text)

        num_rounded += not check(
            distribution_of, row, params, chain_probs(row, params, text, demo_vocab)
        )
    assert num_rounded <= num_rows / 50


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_k=0),
        SamplingParams(top_k=0, min_p=0),
        SamplingParams(top_k=0, min_p=0, top_p=1),
        SamplingParams(top_k=0, top_p=0.5, min_p=0, typical_p=0.6),
        SamplingParams(top_k=1000, top_n_sigma=1.5),
        SamplingParams(repetition_penalty=1.2, frequency_penalty=0.1, penalty_last_n=1000),
        SamplingParams(temperature=0, presence_penalty=2.0),
    ],
)
def test_distributions_of_large_rows(demo_vocab, params):
    """152 064 logits, where thresholds and histograms stand in for sorting."""
    generator = np.random.default_rng(21)
    for _ in range(5):
        row = realistic_row(generator, 152_064)
        text = generator.integers(0, len(row), 2000).tolist()

        def distribution_of(params, row=row, text=text):
            return dense(SamplerChain(params, num_prompt_tokens=0), row, text)

        check(distribution_of, row, params, chain_probs(row, params, text, demo_vocab))


def test_at_ties_count_and_probabilities_agree(demo_vocab, resolver, size):
    """Logits in steps of a half: which of the equal ids survive is ours, the lowest."""
    generator = np.random.default_rng(22)
    for _ in range(500):
        params = replace(random_params(generator, size), repetition_penalty=1.0, logit_bias={})
        row = np.round(realistic_row(generator, size) * 2) / 2

        def distribution_of(params, row=row):
            return np.sort(dense(resolver.chain(params, 0), row, []))

        check(distribution_of, row, params, np.sort(chain_probs(row, params, [], demo_vocab)))


HISTORY_PARAMS = [
    replace(OFF, repetition_penalty=1.5, frequency_penalty=0.3, penalty_last_n=4),
    replace(OFF, dry_multiplier=2.0, dry_penalty_last_n=12),
    replace(OFF, min_tokens=6),
    SamplingParams(logit_bias={3: -math.inf, 5: 2.0}, presence_penalty=1.0, min_tokens=3),
]


@pytest.mark.parametrize("params", HISTORY_PARAMS)
def test_history_advances_along_the_draft(params):
    """Every row of a step has the distribution that a fresh start at its place gives."""
    generator = np.random.default_rng(24)
    rules = {"num_prompt_tokens": 3, "ends": [0, 7], "breakers": {2: [(4,)], 6: [()]}}
    growing = SamplerChain(params, **rules)
    text = [1, 2, 3]
    for _ in range(60):
        drafted = generator.integers(0, 8, 4).tolist()
        rows = generator.normal(size=(5, 8)).astype(np.float32)
        before = rows.copy()
        distributions = growing.distributions(rows, text, drafted)
        for index, distribution in enumerate(distributions):
            alone = SamplerChain(params, **rules)
            fresh = alone.distribution(rows[index], [*text, *drafted[:index]])
            assert distribution.ids.tolist() == fresh.ids.tolist()
            assert distribution.probs.tolist() == fresh.probs.tolist()
        assert np.array_equal(rows, before)
        text += drafted[: generator.integers(0, 5)]
        text.append(int(generator.integers(0, 8)))


def test_the_longest_breaker_at_a_place_counts():
    """After "2 4" nothing is left that could repeat; after "2" there would be a 4."""
    row = np.zeros(8, dtype=np.float32)
    params = replace(OFF, dry_multiplier=1.0, dry_allowed_length=1)
    for tails, penalised in [([()], True), ([(), (4,)], False), ([(3,)], True)]:
        chain = SamplerChain(params, num_prompt_tokens=0, breakers={2: tails})
        distribution = chain.distribution(row, [4, 1, 2, 4])
        assert (distribution.prob(1) < distribution.prob(0)) == penalised


def test_a_draft_with_fewer_tokens_gets_the_same_transforms():
    """What the text, the biases and the end tokens name beyond its row is skipped."""
    params = replace(
        OFF, logit_bias={1: 1.0, 9: 5.0}, repetition_penalty=2.0, dry_multiplier=1.0,
        min_tokens=99,
    )  # fmt: skip
    chain = SamplerChain(params, num_prompt_tokens=0, ends=[2, 8])
    row = TableModel(6, seed=1).row([0])
    # After 4 9 4 9 4 the token 9 would repeat, and the row has none.
    short = chain.distribution(row, [3, 4, 9, 4, 9, 4])
    expected = row.astype(np.float64)
    expected[1] += 1.0
    expected[2] = -np.inf
    for token in (3, 4):
        expected[token] *= 2.0 if expected[token] <= 0 else 0.5
    weights = np.exp(expected)
    np.testing.assert_allclose(short.probs, weights / weights.sum(), rtol=1e-6)


def test_end_tokens_wait_for_min_tokens():
    """They come back with the token after; ignore_eos never lets them."""
    row = np.zeros(8, dtype=np.float32)
    for params, waits in [
        (replace(OFF, min_tokens=2), [True, True, False]),
        (replace(OFF, ignore_eos=True), [True, True, True]),
        (OFF, [False, False, False]),
    ]:
        chain = SamplerChain(params, num_prompt_tokens=3, ends=[0, 5])
        distributions = chain.distributions(np.stack([row] * 3), [1, 2, 3], [4, 4])
        assert [
            distribution.prob(5) == 0.0 == distribution.prob(0)
            for distribution in distributions
        ] == waits


@pytest.mark.parametrize(
    ("values", "row", "best"),
    [
        ({"logit_bias": {0: -math.inf}}, [math.inf, 1.0], None),
        ({"repetition_penalty": 100.0}, [-3e38, 1.0], 1),
        ({"repetition_penalty": 0.01}, [3e38, 1.0], None),
    ],
)
def test_numbers_that_leave_float32_are_refused_or_banned(values, row, best):
    """In words, not by a warning of NumPy."""
    chain = SamplerChain(replace(OFF, **values), num_prompt_tokens=0)
    logits = np.array(row, dtype=np.float32)
    if best is None:
        with pytest.raises(DecodeError, match="largest logit"):
            chain.distribution(logits, [0])
    else:
        assert chain.distribution(logits, [0]).prob(best) == 1.0


@pytest.mark.parametrize(
    "values", [{}, {"top_n_sigma": 1000.0}, {"top_p": 0.5}, {"typical_p": 0.5}]
)
def test_the_widest_row_of_float32_has_a_distribution(values):
    """Neither a warning of NumPy, nor a banned token among what is left."""
    chain = SamplerChain(replace(OFF, **values), num_prompt_tokens=0)
    row = np.array([3.4e38, -3.4e38, -math.inf, 3.4e38], dtype=np.float32)
    found = chain.distribution(row, [0])
    assert 2 not in found.ids or found.prob(2) == 0.0
    assert found.prob(0) in (0.5, 1.0)
    before = token_logprobs(0, row, found, 2, b"%d".__mod__)
    assert before.before == pytest.approx(math.log(0.5))


def test_a_row_with_infinity_has_no_log_probabilities():
    """Even if that token is banned, and another is drawn."""
    chain = SamplerChain(replace(OFF, ignore_eos=True), num_prompt_tokens=0, ends=[0])
    row = np.array([math.inf, 1.0], dtype=np.float32)
    found = chain.distribution(row, [1])
    assert found.ids.tolist()[-1:] == [1]
    with pytest.raises(DecodeError, match="largest logit"):
        token_logprobs(1, row, found, 2, b"%d".__mod__)


def test_banning_everything_is_an_error():
    chain = SamplerChain(
        replace(OFF, logit_bias=dict.fromkeys(range(8), -math.inf)), num_prompt_tokens=0
    )
    with pytest.raises(DecodeError, match="-inf") as caught:
        chain.distribution(np.zeros(8, dtype=np.float32), [])
    assert "banned" in caught.value.hint


def test_rows_of_a_step_keep_their_masses_apart():
    """Long rows without a cut write into arrays that only the next step uses again."""
    rows = np.random.default_rng(3).normal(0, 3, (9, 6000)).astype(np.float32)
    chain = SamplerChain(OFF, num_prompt_tokens=0)
    for _step in range(2):
        drafts = [chain.draft_distribution(row[:5000], ()) for row in rows[:4]]
        targets = chain.distributions(rows[4:], (), [1, 2, 3, 4])
        for row, found in zip(rows, [*drafts, *targets], strict=True):
            alone = SamplerChain(OFF, num_prompt_tokens=0).distribution(
                row[: len(found.ids)], ()
            )
            np.testing.assert_array_equal(found.masses, alone.masses)


@pytest.mark.parametrize(
    "breakers",
    [(), ("fox",), ("ox and",), ("d a",), ("d",), ("\n",), (" a fo", "and a"), ("|im_",)],
)
def test_breakers_are_those_of_llama_cpp(demo_vocab, demo_vocabulary, breakers):
    """After every beginning of a text that repeats itself DRY's distribution is llama.cpp's."""
    words = 'a fox and a dog: a fox and a "dog"\n* a fox and a dog: a'
    text = demo_vocabulary.tokenize(words, parse_special=False)
    params = SamplingParams(
        temperature=1, top_k=0, top_p=1, min_p=0,
        dry_multiplier=1.0, dry_allowed_length=1, dry_sequence_breakers=breakers,
    )  # fmt: skip
    row = np.random.default_rng(1).normal(size=demo_vocabulary.size).astype(np.float32)
    chain = Resolver(demo_vocabulary).chain(params, 0)
    num_penalised = 0
    for length in range(len(text) + 1):
        distribution = chain.distribution(row, text[:length])
        theirs = chain_probs(row, params, text[:length], demo_vocab)
        np.testing.assert_allclose(distribution.probs, theirs, rtol=1e-5)
        num_penalised += not np.allclose(theirs, chain_probs(row, OFF, [], demo_vocab))
    assert num_penalised > 0


def test_a_breaker_may_begin_inside_a_token(demo_vocabulary):
    """Heads are tokens that end in its beginning, tails what spells the rest."""
    breakers = find_breakers(("ox and",), demo_vocabulary)
    (fox,) = demo_vocabulary.tokenize(" fox", parse_special=False)
    (and_,) = demo_vocabulary.tokenize(" and", parse_special=False)
    assert (and_,) in breakers[fox]
    assert () not in breakers[fox]
    assert () in find_breakers(("ox",), demo_vocabulary)[fox]


def test_a_token_that_contains_a_breaker_is_one_by_itself(demo_vocabulary):
    """Whatever else its end might begin: "did" begins with the d it ends in."""
    (did,) = demo_vocabulary.tokenize(" did", parse_special=False)
    assert find_breakers(("did",), demo_vocabulary)[did] == [()]


def test_control_tokens_can_be_breakers(demo_vocabulary):
    """They are spelled out for this."""
    breakers = find_breakers(("<|im_end|>",), demo_vocabulary)
    assert [token for token, tails in breakers.items() if () in tails] == [demo_vocabulary.eos]


def test_a_bias_on_no_token_is_refused(demo_vocabulary):
    size = demo_vocabulary.size
    with pytest.raises(OptionError, match=f"token {size} of a vocabulary of {size}") as caught:
        Resolver(demo_vocabulary).chain(SamplingParams(logit_bias={size: 1.0}), 0)
    assert str(size - 1) in caught.value.hint


@pytest.mark.parametrize("setting", [{"ignore_eos": True}, {"min_tokens": 1}], ids=str)
def test_every_end_token_of_the_target_is_banned(demo_vocab, demo_vocabulary, setting):
    """The whole set, not just the eos token."""
    is_end = llama_cpp.llama_vocab_is_eog
    ends = [token for token in range(demo_vocabulary.size) if is_end(demo_vocab, token)]
    assert len(ends) > 1
    params = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, **setting)
    row = np.zeros(demo_vocabulary.size, dtype=np.float32)
    distribution = Resolver(demo_vocabulary).chain(params, 0).distribution(row, [])
    assert np.flatnonzero(distribution.probs == 0.0).tolist() == ends
