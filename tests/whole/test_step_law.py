"""Steps have the target's law on the demo pair's files, and planted bugs are found."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import pytest

import inside
import localspec
from localspec.engine.engine import Engine
from localspec.evaluation.identity import IdentityCheck, Rounding
from localspec.sampling.chain import Resolver, SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative import verify
from localspec.speculative.proposers import Proposal
from localspec.speculative.verify import Verdict
from localspec.streaming.answer_text import Prompt
from step_law import StepLaw, StepLawCheck

NAMES = {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 4}


def step_law(
    engine: Engine, names: Sequence[str], num_places: int, json_schema: object = None
) -> StepLaw:
    """Enumerate steps in a story about each name, up to the first bug.

    Args:
        num_places: The most positions of one story.
    """
    vocabulary = engine.vocabulary
    options = localspec.AnswerOptions(json_schema=json_schema)

    def chain(
        params: SamplingParams, prompt: Sequence[int], said: Sequence[int] = ()
    ) -> SamplerChain:
        state = inside.constraint(engine, options, Prompt([*prompt]))
        if state is not None:
            state.commit(said)
        return Resolver(vocabulary).chain(params, len(prompt), state, len(said))

    chat = engine.chat()
    prompts = [chat.prompt_tokens(f"Tell me a story about {name}.") for name in names]
    sampling = engine.sampling
    with inside.lent(engine) as loop:
        own_chain = functools.partial(chain, sampling)
        texts = IdentityCheck(loop, vocabulary.is_end, own_chain, Rounding())
        law = StepLawCheck(loop, vocabulary.is_end, chain, sampling)
        for seed, prompt in enumerate(prompts):
            story = texts.reference(prompt, seed)
            places = law.run(prompt, story.plain, story.rows)
            for _ in itertools.islice(places, num_places):
                if law.result.bugs:
                    return law.result
    return law.result


@pytest.fixture(scope="module")
def small_pair(demo_draft, blurred_draft):
    """A pair whose decodes take little time."""
    with localspec.load(target=demo_draft, draft=blurred_draft) as engine:
        yield engine


@pytest.mark.parametrize(
    ("draft", "rows_per_place"),
    [("demo_draft", 4), pytest.param("unrelated_draft", 2, marks=pytest.mark.slow)],
)
def test_steps_have_the_targets_law(demo_target, draft, rows_per_place, request):
    """With the pair that ships, and with a draft that is never right."""
    path = request.getfixturevalue(draft)
    with localspec.load(target=demo_target, draft=path) as engine:
        law = step_law(engine, ("a fox", "rain", "an owl"), 50)
    assert law.bugs == []
    assert law.num_places >= 100
    assert law.num_outcomes > law.num_rows > rows_per_place * law.num_places
    assert law.largest_difference < 1e-14


def too_ready(targets, drafts, draft_tokens, accept_uniforms, residual_uniform):
    """Keeps whatever is proposed."""
    return Verdict(len(draft_tokens), targets[-1].draw(residual_uniform))


def accepting_more(rule):
    """A rule that accepts 1 % more."""
    return lambda targets, drafts, tokens, uniforms, residual_uniform: rule(
        targets, drafts, tokens, uniforms * 0.99, residual_uniform
    )


def flatter_residual(target, draft, share=1.0):
    """A residual of which 1 % are any of its tokens."""
    return flattened(RIGHT_RESIDUAL(target, draft, share))


def says_another_row(self, next_row, extent, draw, is_end):
    """Hands on distributions of which 1 % are not those that it drew from."""
    RIGHT_EXTEND(self, next_row, extent, draw, is_end)
    self.distributions[:] = map(flattened, self.distributions)
    return self


def flattened(distribution):
    evenly = distribution.total / len(distribution.ids)
    return distribution._replace(masses=0.99 * distribution.masses + 0.01 * evenly)


RIGHT_RESIDUAL, RIGHT_EXTEND = verify.residual, Proposal.extend


@pytest.mark.parametrize(
    ("place", "name", "planted", "words"),
    [
        (verify, "token", accepting_more(verify.token), "rule token"),
        (verify, "block", accepting_more(verify.block), "rule block"),
        (verify, "residual", flatter_residual, "rule token"),
        (Proposal, "extend", says_another_row, "rule token"),
        (verify, "block", too_ready, "rule block"),
    ],
)
def test_planted_bugs_are_found(monkeypatch, small_pair, place, name, planted, words):
    """And named: of 1 %, too, and at few positions."""
    monkeypatch.setattr(place, name, planted)
    law = step_law(small_pair, ("a fox", "rain"), 49)
    assert any(words in line for line in law.bugs), law
    assert law.num_places < 100


def test_a_cache_that_is_not_undone_is_found(monkeypatch, small_pair):
    def keep(self, length):
        if not self.tokens:
            self.target.truncate(0)

    inside.replace_truncation(keep, monkeypatch)
    assert step_law(small_pair, ("a fox",), 50).bugs


@pytest.mark.slow
def test_constrained_steps_have_the_law_of_masked_rows(small_pair, monkeypatch):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    law = step_law(small_pair, ("a fox", "rain"), 50, NAMES)
    assert law.bugs == []
    assert law.num_places > 50
    inside.flatten_drafted_rows(monkeypatch)
    assert step_law(small_pair, ("a fox", "rain"), 50, NAMES).bugs
