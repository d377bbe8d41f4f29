"""What one answer asks of drafting: how much, by whom, and what it is expected to be."""

from __future__ import annotations

import pytest

import inside
import localspec
from engines import PLACES
from localspec.errors import OptionError
from localspec.speculative.policy_api import DraftOff, FixedDraftPolicy, ProposerKind
from localspec.streaming.answer_options import AnswerOptions

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
DRAFT, LOOKUP = ProposerKind.DRAFT, ProposerKind.LOOKUP


@pytest.fixture(scope="module", params=PLACES)
def engine(request):
    with request.param("demo", draft_tokens=3, memory=False) as opened:
        yield opened


@pytest.fixture(scope="module", params=PLACES)
def exact_engine(request, exact_target, demo_draft):
    """For texts whose decodes have different sizes."""
    models = {"target": exact_target, "draft": demo_draft, "exact": True}
    with request.param(**models, draft_tokens=3, memory=False) as opened:
        yield opened


def ask(engine, **options):
    return engine.generate(QUESTION, temperature=0, **options).reply()


def test_an_answer_has_its_own_number_of_draft_tokens(exact_engine):
    engine = exact_engine
    usual, plain, more = ask(engine), ask(engine, draft_tokens=0), ask(engine, draft_tokens=6)
    assert usual.token_ids == plain.token_ids == more.token_ids
    assert usual.stats.steps_per_length[3] > 0
    assert usual.stats.steps_per_length[6] == 0
    assert plain.stats.num_draft_tokens == 0
    assert plain.stats.draft_off is DraftOff.SET_TO_ZERO
    assert more.stats.steps_per_length[6] > 0
    assert ask(engine).stats.steps_per_length == usual.stats.steps_per_length


def test_an_answer_has_its_own_proposer(engine):
    assert ask(engine, proposer="none").stats.num_draft_tokens == 0
    assert set(ask(engine, proposer="draft").stats.drafted_per_proposer) == {DRAFT}
    text = "One two three four. " * 8
    looked_up = engine.generate_raw(
        text, temperature=0, ignore_eos=True, max_tokens=60, proposer="lookup"
    ).reply()
    assert set(looked_up.stats.drafted_per_proposer) <= {LOOKUP}
    with pytest.raises(OptionError, match="no proposer 'head'") as caught:
        ask(engine, proposer="head")
    assert "load it with proposer='head'" in caught.value.hint
    with pytest.raises(OptionError, match="no proposer 'magic'"):
        ask(engine, proposer="magic")
    with pytest.raises(OptionError, match="the number of draft tokens is 17"):
        ask(engine, draft_tokens=17)


def test_a_prediction_is_proposed_and_changes_nothing(exact_engine):
    """The answer itself, word for word; one that is edited; and one that is of no use."""
    engine = exact_engine
    plain = ask(engine, draft_tokens=0)
    options = {"proposer": "lookup", "draft_tokens": 4}
    right = ask(engine, prediction=plain.text, **options)
    assert right.token_ids == plain.token_ids
    accepted = right.stats.accepted_per_proposer[LOOKUP]
    assert accepted == right.stats.drafted_per_proposer[LOOKUP]
    assert accepted > 0.7 * len(plain.token_ids)
    words = plain.text.split(" ")
    words[len(words) // 2] = "purple"
    edited = ask(engine, prediction=" ".join(words), **options)
    assert edited.token_ids == plain.token_ids
    assert edited.stats.accepted_per_proposer[LOOKUP] > 0.5 * len(plain.token_ids)
    by_ids = ask(engine, prediction=list(plain.token_ids), **options)
    assert by_ids.stats.accepted_per_proposer[LOOKUP] >= accepted  # and the end token
    useless = ask(engine, prediction="Nothing of the kind was ever said here.", **options)
    assert useless.token_ids == plain.token_ids
    # It is not referred to afterwards.
    without = ask(engine, **options)
    assert without.stats.accepted_per_proposer.get(LOOKUP, 0) < accepted / 2
    with pytest.raises(OptionError, match="neither text nor token ids"):
        ask(engine, prediction=3)
    for ids in ([10**6], [-1]):
        with pytest.raises(OptionError, match="is not in this vocabulary"):
            ask(engine, prediction=ids)


def test_a_prediction_that_is_read_once_is_kept():
    assert AnswerOptions(prediction=iter([3, 4])).prediction == (3, 4)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_says_the_same_with_a_prediction(engine, seed):
    options = {"temperature": 1.2, "seed": seed, "max_tokens": 60}
    plain = engine.generate(QUESTION, draft_tokens=0, **options).reply()
    predicted = engine.generate(
        QUESTION, prediction=plain.text, proposer="lookup", **options
    ).reply()
    assert predicted.token_ids == plain.token_ids
    assert predicted.stats.num_accepted > 0


def test_the_engines_own_policy_comes_back():
    with localspec.load("demo", draft_tokens=2) as engine:
        usual = inside.loop(engine).draft_policy
        assert ask(engine, draft_tokens=5, max_tokens=5).token_ids
        with engine.generate_raw("Hello", draft_tokens=0) as stream:
            next(stream)
            assert inside.loop(engine).draft_policy == FixedDraftPolicy(0)
        assert inside.loop(engine).draft_policy is usual
