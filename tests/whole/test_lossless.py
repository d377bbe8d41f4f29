"""The promise, on the pair that ships: real GGUF files, real libllama.

Greedy text with a draft is greedy text without, except where the target's two best candidates
lie closer than a decode of several tokens rounds. Such near ties are counted and bounded.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import inside
import localspec
from examples import num_examples
from localspec.engine.engine import Engine
from localspec.evaluation.identity import NUMS_DRAFT_TOKENS, IdentityCheck, Rounding
from localspec.gguf_file.check import check_model_file
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.planning.free_memory import with_suited_attention
from localspec.sampling.chain import SamplerChain
from step_law import StepLawCheck

GREEDY = localspec.SamplingParams(temperature=0)
HEROES = ["a fox", "an owl", "a dragon", "two mice", "a robot", "a girl called Mia", "a whale"]
THINGS = ["a lantern", "a kite", "a lost key", "a storm"]
QUESTIONS = [
    "hi", "Who are you?", "what can you do", "What is localspec?", "how does a draft work?",
    "What is 7 times 8?", "12 + 30", "Capital of France?", "How many legs has a spider?",
    "Tell me a joke.", "my name is Ada", "Thanks!", "What is the opposite of hot?",
    "Name three colours.", "I am sad today.", "Write a poem about rain.", "What is a token?",
    "Who won the election?", "Is it cold in winter?", "bye",
]  # fmt: skip
PROMPTS = [
    *(f"Tell me a story about {hero} and {thing}." for hero in HEROES for thing in THINGS),
    *(f"What is {a} plus {b}?" for a, b in itertools.product(range(2, 60, 8), (3, 11, 24, 40))),
    *QUESTIONS,
    *(f"Write a poem about {hero}." for hero in HEROES),
    *(f"What sound does {hero} make?" for hero in HEROES),
    *(f"{question} Please tell me." for question in QUESTIONS[:12]),
]


def as_engines_open(path: Path) -> LlamaOptions:
    """With the attention that suits the processor: another one rounds otherwise."""
    header = check_model_file(path)
    return with_suited_attention(LlamaOptions(max_outputs=16), header, 2048, uses_gpu=False)


@pytest.fixture(scope="module")
def scorer(demo_target):
    """The target by itself, one token a decode: what everything is held against."""
    model = LlamaModel.open(demo_target, as_engines_open(demo_target))
    yield model
    model.close()


def rounding(path: Path, sizes: Sequence[int]) -> float:
    """How far apart two logits may lie and still change places between batch sizes.

    Three times the largest difference between rows decoded one by one and `sizes` at a time,
    here and now: both candidates can move, and the text measured is only a sample.
    """
    model = LlamaModel.open(path, as_engines_open(path))
    ids = model.vocabulary.tokenize(" ".join(PROMPTS), parse_special=False)[:200]
    singles = np.array([model.decode([token], 1)[0].copy() for token in ids])
    worst = 0.0
    for size in sizes:
        model.truncate(0)
        for end in range(size, len(ids) + 1, size):
            rows = model.decode(ids[end - size : end], min(size, 16))
            worst = max(worst, float(np.abs(rows - singles[end - len(rows) : end]).max()))
    model.close()
    assert worst < 0.5, "batch sizes differ by more than rounding"
    return max(3 * worst, 1e-3)


@pytest.fixture(scope="module")
def near_tie(demo_target):
    """The bound for the batches of a step, up to nine tokens."""
    return rounding(demo_target, [2, 3, 5, 9])


def logits_behind(scorer: LlamaModel, history: Sequence[int]) -> np.ndarray:
    scorer.truncate(0)
    scorer.decode(history[:-1], 0)
    return scorer.decode(history[-1:], 1)[0].copy()


def prompt_tokens(engine: Engine, text: str) -> list[int]:
    return engine.vocabulary.tokenize(
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", parse_special=True
    )


def count_tie(scorer, bound, prompt, expected, actual) -> int:
    """0 if the texts agree, 1 if they part at a near tie; fails if they part otherwise."""
    if expected == actual:
        return 0
    at = next(i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b)
    row = logits_behind(scorer, [*prompt, *expected[:at]])
    gap = abs(float(row[expected[at]] - row[actual[at]]))
    assert gap <= bound, f"token {at} of {expected} became {actual[at]}, {gap} below"
    assert row.max() - min(row[expected[at]], row[actual[at]]) <= bound
    return 1


@pytest.fixture(scope="module")
def plain_text(demo_target):
    """What the target alone says to a prompt."""
    with localspec.load(target=demo_target) as plain:

        @functools.cache
        def text_of(prompt: str) -> Sequence[int]:
            tokens = prompt_tokens(plain, prompt)
            return plain.generate_raw(tokens, sampling=GREEDY, max_tokens=32).reply().token_ids

        yield text_of


@pytest.mark.parametrize(
    ("k", "every"), [(4, 4), *(pytest.param(k, 1, marks=pytest.mark.slow) for k in range(1, 9))]
)
def test_greedy_text_is_the_same_with_the_draft(
    demo_target, demo_draft, scorer, near_tie, plain_text, k, every
):
    """A hundred prompts for every K from 1 to 8; the quick one takes a quarter of them."""
    assert len(PROMPTS) >= 100
    prompts = PROMPTS[::every]
    ties = accepted = refused = 0
    with localspec.load(target=demo_target, draft=demo_draft, draft_tokens=k) as pair:
        for text in prompts:
            prompt = prompt_tokens(pair, text)
            reply = pair.generate_raw(prompt, sampling=GREEDY, max_tokens=32).reply()
            ties += count_tie(scorer, near_tie, prompt, plain_text(text), reply.token_ids)
            accepted += reply.stats.num_accepted
            refused += reply.stats.num_recovered
    assert ties <= len(prompts) // 10
    # Both paths were taken often, or the test would show little.
    assert accepted > 3 * len(prompts)
    assert refused > len(prompts)


def test_an_unrelated_draft_gives_the_targets_text(
    demo_target, unrelated_draft, scorer, near_tie, plain_text
):
    """Nearly everything it proposes is refused, and nothing of it shows."""
    proposed = accepted = 0
    with localspec.load(target=demo_target, draft=unrelated_draft, draft_tokens=4) as pair:
        for text in PROMPTS[::8]:
            prompt = prompt_tokens(pair, text)
            reply = pair.generate_raw(prompt, sampling=GREEDY, max_tokens=32).reply()
            count_tie(scorer, near_tie, prompt, plain_text(text), reply.token_ids)
            proposed += reply.stats.num_draft_tokens
            accepted += reply.stats.num_accepted
    assert proposed > 500
    assert accepted < proposed / 20


def test_a_conversation_equals_its_tokens_decoded_from_scratch(demo_target, demo_draft):
    """After many turns, some stopped early, both caches hold what a fresh decode holds."""
    with localspec.load(target=demo_target, draft=demo_draft, draft_tokens=3) as engine:
        chat = engine.chat(system="You are terse.")
        for number, text in enumerate(QUESTIONS):
            if number % 5 == 4:
                with chat.send(text, seed=number) as stream:
                    next(stream)
            else:
                chat.send(
                    text, seed=number, max_tokens=30, stop=["!"] if number % 3 else []
                ).reply()
        tokens = inside.loop(engine).tokens
        assert len(tokens) > 200
        inside.lanes(engine)[0].make_ready()  # the last stream was stopped
        for model, path in (
            (inside.target(engine), demo_target),
            (inside.models(engine).draft, demo_draft),
        ):
            # Prompts are read in batches of up to hundreds, which round more differently.
            assert_same_cache(model, path, tokens, rounding(path, [20, 50, 400]))


def assert_same_cache(model: LlamaModel, path: Path, tokens: list[int], bound: float) -> None:
    """One more token gets the same row after this cache and after a fresh one."""
    fresh = LlamaModel.open(path, as_engines_open(path))
    fresh.decode(tokens[: model.num_cached], 0)
    for probe in (300, 700, 1500):
        kept = model.num_cached
        ours, theirs = model.decode([probe], 1)[0].copy(), fresh.decode([probe], 1)[0]
        np.testing.assert_allclose(ours, theirs, atol=bound)
        model.truncate(kept)
        fresh.truncate(kept)
    fresh.close()


def plain_chain(params, prompt, said=()):
    """The samplers of an answer, without a constraint."""
    return SamplerChain(params, num_prompt_tokens=len(prompt), num_said=len(said))


@pytest.mark.slow
def test_sampled_steps_have_the_targets_law(demo_draft, blurred_draft):
    """At every place of some texts, by enumeration: no probability is 1e-13 off."""
    params = localspec.SamplingParams()
    with (
        localspec.load(target=demo_draft, draft=blurred_draft) as pair,
        inside.lent(pair) as loop,
    ):
        is_end = pair.vocabulary.is_end
        texts = IdentityCheck(loop, is_end, functools.partial(plain_chain, params), Rounding())
        law = StepLawCheck(loop, is_end, plain_chain, params)
        for seed, text in enumerate(PROMPTS[:: 90 // num_examples(9)]):
            reference = texts.reference(prompt_tokens(pair, text), seed)
            for _ in law.run(reference.prompt_tokens, reference.plain, reference.rows):
                pass
    assert law.result.bugs == []
    assert law.result.num_places > 40
    assert law.result.num_outcomes > 10 * law.result.num_places
    assert law.result.largest_difference < 1e-13


@pytest.mark.parametrize(
    ("draft", "every"),
    [
        ("demo_draft", 18),
        pytest.param("demo_draft", 6, marks=pytest.mark.slow),
        pytest.param("unrelated_draft", 6, marks=pytest.mark.slow),
        pytest.param("lookup", 6, marks=pytest.mark.slow),
    ],
)
def test_seeded_text_is_the_same_with_any_draft(demo_target, draft, every, request):
    """And any number of draft tokens, or none; each difference is a near tie."""
    path = None if draft == "lookup" else request.getfixturevalue(draft)
    proposer = "lookup" if draft == "lookup" else "draft"
    with localspec.load(target=demo_target, draft=path, proposer=proposer) as pair:
        rounding = Rounding()
        with inside.lent(pair) as loop:
            check = IdentityCheck(
                loop,
                pair.vocabulary.is_end,
                functools.partial(plain_chain, localspec.SamplingParams()),
                rounding,
                num_wanted=1_000_000,
            )
            for seed, text in enumerate(PROMPTS[::every]):
                reference = check.reference(prompt_tokens(pair, text), seed)
                for num_draft_tokens in NUMS_DRAFT_TOKENS:
                    check.compare(seed, reference, num_draft_tokens)
    found = check.result
    num_expected = 3 * len(PROMPTS[::every])
    assert num_expected <= found.num_texts <= num_expected + len(found.divergences)
    assert (found.num_accepted > found.num_tokens // 4) == (draft == "demo_draft")
    assert found.num_accepted > 0 or draft == "unrelated_draft"
    assert found.bugs(rounding.bound) == []
    assert len(found.divergences) <= found.num_texts // 10
