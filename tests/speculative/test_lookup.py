"""Prompt lookup and its memory: against a search of the whole text, at every step and after
every cut, and no text is changed by what is found.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inside
import localspec
from localspec.errors import OptionError
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.lookup import Lookup, TextMemory
from localspec.speculative.loop import Request
from localspec.speculative.model_api import result_of
from localspec.speculative.ngram_index import NUM_COMPARED, SIZES, NgramIndex, run_hashes
from localspec.speculative.policy_api import FixedDraftPolicy, MatchSource, ProposerKind, UpTo
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from toy import GREEDY, TableModel, loop_of, never
from toy_constraint import ToyConstraint

CHAIN = SamplerChain(SamplingParams(), num_prompt_tokens=1)
SAMPLED = SamplingParams(temperature=1.0)
QUESTION = "Tell me about a fox and a hen."


def first_of(_index, distribution):
    return int(distribution.ids[0])


def proposed(lookup: Lookup, text: list[int], num_tokens: int) -> list[int]:
    if lookup.state(text).max_tokens == 0:
        return []
    found = result_of(lookup.propose(text, UpTo(num_tokens), CHAIN, first_of))
    assert all(len(row.ids) == 1 for row in found.distributions)
    assert len(found.confidences) == len(found.draft_tokens)
    return found.draft_tokens


# --- the index of runs ---


TOKENS = st.lists(st.integers(0, 2), max_size=60)


def found_in(index: NgramIndex, end: list[int]) -> list[list[int]]:
    """For each size, where the last tokens of `end` are."""
    runs = NgramIndex()
    runs.read(end)
    return [
        index.ends(level, hash_, runs.text[-SIZES[level] :])
        for level, hash_ in enumerate(run_hashes(end))
    ]


def searched(text: list[int], end: list[int]) -> list[list[int]]:
    return [
        [i for i in range(len(text) - 1, size - 1, -1) if text[i - size : i] == end[-size:]]
        for size in SIZES
        if len(end) >= size
    ]


@given(texts=st.lists(st.tuples(TOKENS, st.integers(0, 200), st.booleans()), max_size=5))
def test_it_finds_the_latest_places_of_a_run_however_the_text_came_about(texts):
    """Read at once or token by token, cut back in between, and read on."""
    index, text = NgramIndex(), []
    for new, cut, at_once in texts:
        for part in [new] if at_once else [[token] for token in new]:
            index.read(part)
        text = [*text, *new][:cut]
        index.truncate(cut)
        assert list(index.text) == text
        for found, there in zip(found_in(index, text), searched(text, text), strict=True):
            # Another run of the same hash may take one of the few places that are compared.
            assert found == there[: len(found)]
            assert len(found) == min(len(there), NUM_COMPARED)


def test_a_long_text_is_indexed_in_parts_as_it_is_at_once():
    """Its tables grow several times, and many tokens are linked together."""
    text = np.random.default_rng(3).integers(0, 6, 5000).tolist()
    at_once, in_parts = NgramIndex(), NgramIndex()
    at_once.read(text)
    for begin in range(0, 5000, 7):
        in_parts.read(text[begin : begin + 7])
    ends = [text[at - 20 : at] for at in range(20, 5000, 101)]
    for end in ends:
        assert found_in(at_once, end)[2] == searched(text, end)[2][:NUM_COMPARED]
        assert found_in(in_parts, end) == found_in(at_once, end)
    at_once.truncate(2500)
    for end in ends:
        assert found_in(at_once, end)[2] == searched(text[:2500], end)[2][:NUM_COMPARED]


# --- what is found in a text ---


def test_nothing_is_proposed_behind_a_forbidden_token():
    """It would be decoded for nothing; the forbidden one itself is judged like any other."""
    text = [1, 2, 3, 4, 5, 1, 2, 3]
    constraint = ToyConstraint(9, lambda history: {7} if history else {4}, None)
    chain = SamplerChain(SamplingParams(), num_prompt_tokens=len(text), constraint=constraint)
    lookup = Lookup(never)
    lookup.state(text)
    proposal = result_of(lookup.propose(text, UpTo(8), chain, lambda _, row: row.draw(0.5)))
    assert proposal.draft_tokens == [4, 5]


def follow(lookup: Lookup, text: list[int], begin: int) -> None:
    """Let it see the text grow token by token, as an answer does."""
    for length in range(begin, len(text) + 1):
        lookup.state(text[:length])


SOURCE = list(range(100, 140))


@pytest.mark.parametrize(
    ("between", "behind", "num_tokens", "found"),
    [
        # One token that agrees is enough near there, though it stood elsewhere since.
        ([5, 112, 6, 5, 112, 6], [7, 112], 4, [113, 114, 115, 116]),
        ([5, 112, 6, 5, 112, 6], [7, 8, 9, 112], 4, [113, 114, 115, 116]),
        ([5, 112, 6, 5, 112, 6], [112], 4, [113, 114, 115, 116]),
        ([7, 112, 8, 9], [7, 112], 2, [8, 9]),  # a longer match elsewhere wins
        ([], [*range(1, 20), 125], 1, [126]),
        ([], [*range(1, 30), 125], 1, []),  # too long after
    ],
)
def test_behind_a_replacement_what_was_followed_goes_on(between, behind, num_tokens, found):
    text = [*SOURCE, *between, *SOURCE[:10], *behind]
    lookup = Lookup(never)
    follow(lookup, text, len(SOURCE))
    assert proposed(lookup, text, num_tokens) == found
    # What was followed is forgotten with a cut.
    lookup.truncate(len(text) - len(behind) - 2)
    fresh = proposed(Lookup(never), text, num_tokens)
    assert proposed(lookup, text, num_tokens) == fresh


def test_a_reference_is_looked_up_beside_the_text():
    lookup = Lookup(never)
    for reference, text, found in (
        ([1, 2, 3, 4, 5, 6], [9, 2, 3], [4, 5, 6]),  # nothing comes after its end
        ([1, 2, 3, 4, 5, 6], [9, 2, 3, 7, 7, 2, 3], [4, 5, 6]),
        ([1, 2, 3, 4, 5, 6], [0, 0, 2, 3, 8, 9, 0, 0, 2, 3], [8, 9, 0]),  # a longer match
        ([], [9, 2, 3], []),
    ):
        lookup.truncate(0)
        lookup.refer_to(reference)
        assert proposed(lookup, text, 3) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ([1, 2, 3, 4, 9, 2, 3, 5, 6, 1, 2, 3], [4, 9, 2, 3, 5, 6, 1, 2]),
        ([7, 8, 9, 7, 8, 9, 7, 8, 9], [7, 8, 9, 7, 8, 9, 7, 8]),  # beyond the end of the text
        ([1, 2, 10, 3, 4, 1, 2], [10]),  # nothing behind an end token
        ([1, 2, 3, 4], []),
    ],
)
def test_it_proposes_what_followed_the_longest_match(text, found):
    assert proposed(Lookup(lambda token: token == 10), text, 8) == found


# --- the memory of earlier texts ---


def numbers(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


def test_what_left_the_text_is_proposed_in_another_one():
    earlier = numbers(1, 100)
    for memory, found in ((TextMemory(), earlier[50:58]), (None, [])):
        lookup = Lookup(never, memory)
        lookup.state(earlier)
        lookup.truncate(0)
        assert proposed(lookup, [5, 6, *earlier[40:50]], 8) == found


def test_a_refused_draft_is_not_remembered():
    """The few tokens of a step that were taken back were never part of the text."""
    lookup = Lookup(never, TextMemory())
    lookup.state(numbers(1, 100))
    lookup.truncate(90)
    assert len(lookup.memory) == 0


def test_the_latest_of_several_versions_is_proposed():
    old, new = numbers(1, 200), numbers(2, 30)
    edited = [*old[:80], *new, *old[100:]]
    lookup = Lookup(never, TextMemory())
    lookup.memory.add(old)
    lookup.memory.add(edited)
    assert proposed(lookup, old[60:80], 8) == new[:8]
    lookup.truncate(0)
    assert proposed(lookup, new[-20:], 8) == old[100:108]


def test_only_what_is_new_of_a_text_takes_room():
    memory = TextMemory()
    text = numbers(1, 5000)
    memory.add(text)
    size = len(memory)
    memory.add(text)
    memory.add(text[700:4200])
    assert len(memory) == size
    memory.add([*text[:2500], 1001, 1002, 1003, *text[2500:]])
    assert size < len(memory) < size + 60


def test_a_gap_is_never_proposed():
    lookup = Lookup(never, TextMemory())
    lookup.memory.add([1, 2, 3, 4, 5, 6])
    lookup.memory.add([7, 8, 9])
    assert proposed(lookup, [50, 3, 4], 8) == [5, 6]
    assert proposed(lookup, [50, 4, 5, 6], 8) == []


def test_what_was_of_use_longest_ago_goes_first():
    memory = TextMemory(1000)
    texts = [numbers(seed, 200) for seed in range(4)]
    for text in texts:
        memory.add(text)
    lookup = Lookup(never, memory)
    lookup.state(texts[0][:50])
    lookup.state(texts[0][:60])  # as was found
    for seed in range(10, 13):
        memory.add(numbers(seed, 100))
    assert len(memory) <= 1000
    known = [proposed(Lookup(never, memory), text[:50], 4) == text[50:54] for text in texts]
    assert known[0]
    assert not known[1]


def test_confidence_is_what_was_seen():
    """It falls where what was found did not come, and rises where it did."""
    wrong, right = Lookup(never), Lookup(never)
    first = wrong.state([1, 2, 3, 1, 2]).confidence
    for lookup, comes in ((wrong, 9), (right, 3)):
        for _ in range(40):
            lookup.truncate(0)
            lookup.state([1, 2, 3, 1, 2])
            lookup.state([1, 2, 3, 1, 2, comes])
        lookup.truncate(0)
    assert wrong.state([1, 2, 3, 1, 2]).confidence < first / 2
    assert right.state([1, 2, 3, 1, 2]).confidence > (1 + first) / 2


FORCED_FIRST = {(): {4}, (4,): {5}}  # then any


@pytest.mark.parametrize("remembered", [[4, 5, 6, 7, 1, 0], [2, 3, 4, 5, 6, 7]])
def test_what_is_forced_and_what_is_remembered_join_in_one_step(remembered):
    """Whether it is found behind the text, or only behind what has to come."""
    text = [1, 2, 3]
    constraint = ToyConstraint(9, lambda history: FORCED_FIRST.get(history, {*range(9)}), None)
    chain = SamplerChain(SamplingParams(), num_prompt_tokens=3, constraint=constraint)
    lookup = Lookup(never, TextMemory())
    lookup.memory.add(remembered)
    lookup.reset(chain)
    assert lookup.state(text).max_tokens > 0
    proposal = result_of(lookup.propose(text, UpTo(4), chain, first_of))
    assert proposal.draft_tokens == [4, 5, 6, 7]
    constraint.commit([4, 5, 6])
    text += [4, 5, 6]
    lookup.truncate(len(text))
    assert result_of(lookup.propose(text, UpTo(1), chain, first_of)).draft_tokens == [7]


def answered(
    memory: TextMemory | None,
    params: SamplingParams,
    rule: str,
    constraint: ToyConstraint | None = None,
    cut: int = 30,
) -> list[int]:
    """Two answers of 30 tokens, the first one cut back so far before the second."""
    lookup = Lookup(never, memory)
    loop = loop_of(TableModel(seed=1, context_length=128), [lookup], FixedDraftPolicy(5))
    said: list[int] = []
    prompt = [1, 2, 3, 1, 2]
    for turn in range(2):
        loop.start(prompt)
        made = make_rule(rule, Randomness(5, turn))
        chain = SamplerChain(
            params,
            num_prompt_tokens=len(prompt),
            constraint=None if constraint is None else constraint.copy(),
        )
        for _ in loop.steps(Request(chain, made, 30, never)):
            assert loop.target.cached == loop.tokens[: loop.target.num_cached]
        said += loop.tokens[len(prompt) :]
        prompt = loop.tokens[: len(prompt) + 30 - cut]
    return said


@given(
    texts=st.lists(st.lists(st.integers(0, 7), max_size=200), max_size=3),
    rule=st.sampled_from(["greedy", "coupled"]),
    cut=st.integers(0, 30),
    is_constrained=st.booleans(),
)
def test_no_memory_changes_a_text(texts, rule, cut, is_constrained):
    """Greedy and with a seed, cut back, under a constraint; not even one of the text itself."""
    params = GREEDY if rule == "greedy" else SAMPLED
    constraint = ToyConstraint(8, lambda history: {1, 2, 3, 4 + len(history) % 4}, None)
    options = (params, rule, constraint if is_constrained else None, cut)
    plain = answered(None, *options)
    memory = TextMemory(300)
    for text in [*texts, plain, plain[3:] * 2]:
        memory.add(text)
    assert answered(memory, *options) == plain
    assert answered(memory, *options) == plain


SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "hen"]}, "legs": {"type": "integer"}},
    "required": ["animal", "legs"],
}


@pytest.mark.parametrize("options", [{}, {"json_schema": SCHEMA}], ids=["text", "schema"])
def test_an_engine_says_the_same_whatever_it_remembers(exact_target, options):
    """Several chats, an answer that is cancelled, one that is asked again, and one undone.

    Exact, because decodes of other sizes round otherwise, and a memory changes the sizes.
    """

    options = options | {"temperature": 0.8, "seed": 3}

    def said(engine: localspec.Engine) -> list[str]:
        chats = [engine.chat(), engine.chat()]
        texts = []
        for round_ in range(2):
            for chat in chats:
                asked = f"{QUESTION} {round_}"
                texts.append(chat.send(asked, max_tokens=24, **options).reply().text)
            answer = engine.generate(QUESTION, max_tokens=24, **options)
            texts += [next(answer).text, str(answer.cancel())]
            answer.close()
            texts.append(chats[0].retry(max_tokens=24, **options).reply().text)
            texts.append(chats[1].edit("And a dog?", max_tokens=24, **options).reply().text)
        return texts

    common = {"target": exact_target, "draft_tokens": 4, "exact": True}
    with localspec.load(**common, memory=False) as engine:
        expected = said(engine)
    with localspec.load(**common) as engine:
        assert said(engine) == expected
        engine.remember("\n".join(expected))
        engine.remember("A fox and a hen met a dog. " * 20)
        assert said(engine) == expected
        # The same again draft by draft, and a plain answer in between.
        assert said(engine) == expected


def test_a_remembered_text_drafts_the_answer(demo_target):
    asked = {"temperature": 0, "max_tokens": 48, "template": "chatml"}
    with localspec.load(target=demo_target, draft_tokens=8, memory=False) as engine:
        plain = engine.generate(QUESTION, **asked).reply()
        with pytest.raises(OptionError, match="no memory"):
            engine.remember("text")
    with localspec.load(target=demo_target, draft_tokens=8) as engine:
        engine.remember(plain.token_ids)
        reply = engine.generate(QUESTION, **asked).reply()
        with inside.lent(engine):
            pass
        again = engine.generate(QUESTION, **asked).reply()
    assert reply.token_ids == again.token_ids == plain.token_ids
    for each in (reply, again):
        assert each.stats.accepted_per_proposer[ProposerKind.LOOKUP] > 24
    assert reply.stats.num_steps < plain.stats.num_steps / 2


def test_a_text_is_remembered_beside_an_answer(demo_target):
    asked = {"temperature": 0, "max_tokens": 48, "template": "chatml"}
    with localspec.load(target=demo_target, draft_tokens=8, memory=False) as engine:
        plain = engine.generate(QUESTION, **asked).reply()
    with localspec.load(target=demo_target, draft_tokens=8) as engine:
        with engine.generate_raw("A fox", ignore_eos=True, max_tokens=100) as beside:
            next(beside)
            engine.remember(plain.token_ids)
            assert next(beside).token_ids
        reply = engine.generate(QUESTION, **asked).reply()
    assert reply.token_ids == plain.token_ids
    assert reply.stats.accepted_per_proposer[ProposerKind.LOOKUP] > 24


def test_checks_and_measurements_remember_nothing(demo_target):
    """They repeat their prompts, and a remembered answer would make them look fast."""
    with localspec.load(target=demo_target) as engine:
        with inside.lent(engine) as loop:
            [lookup] = [each for each in loop.proposers if isinstance(each, Lookup)]
            assert lookup.memory is None
            loop.tokens[:] = numbers(1, 50)
            lookup.state(loop.tokens)
        assert lookup.memory is not None
        assert len(lookup.memory) == 0


def test_what_is_no_token_is_not_remembered(demo_target):
    with localspec.load(target=demo_target) as engine:
        with pytest.raises(OptionError):
            engine.remember([-5])
        engine.remember("text")


def test_how_findings_fare_is_counted_by_source_and_kept():
    """A match in another conversation was wrong each time; one in the prompt is as before."""

    def confidence_at(lookup: Lookup, text: list[int], num_prompt_tokens: int) -> float:
        chain = SamplerChain(SamplingParams(), num_prompt_tokens=num_prompt_tokens)
        lookup.reset(chain)
        state = lookup.state(text)
        assert state.max_tokens > 0
        return state.confidence

    memory = TextMemory()
    memory.add([1, 2, 3, 4, 5, 6, 7, 8, 9])
    lookup = Lookup(never, memory)
    first = confidence_at(lookup, [40, 1, 2], 1)
    assert lookup.state([40, 1, 2]).source is MatchSource.OTHER
    in_prompt = confidence_at(lookup, [1, 2, 60, 1, 2], 5)
    assert lookup.state([1, 2, 60, 1, 2]).source is MatchSource.PROMPT
    for token in range(50, 58):
        lookup.truncate(0)
        confidence_at(lookup, [40, 1, 2], 1)
        lookup.state([40, 1, 2, token])
    lookup.truncate(0)
    last = confidence_at(lookup, [40, 1, 2], 1)
    assert last < 0.7 * first
    lookup.truncate(0)
    assert confidence_at(lookup, [1, 2, 60, 1, 2], 5) == in_prompt
    other = Lookup(never, memory)
    other.restore(json.loads(json.dumps(lookup.as_dict())))
    assert confidence_at(other, [40, 1, 2], 1) == pytest.approx(last, abs=0.01)


def test_a_match_in_the_answer_itself_is_of_another_source():
    lookup = Lookup(never)
    lookup.reset(SamplerChain(SamplingParams(), num_prompt_tokens=2))
    assert lookup.state([8, 9, 1, 2, 3, 1, 2]).source is MatchSource.ANSWER


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("0 0 0 0", [3, 2]),
        ("0 0 0", [1, 2]),
        ("0 0 0 7", [1, 2]),
        ("x", [1, 2]),
        ("0 0 0 0", 1),
    ],
)
def test_counts_that_none_were_are_an_error(name, pair):
    with pytest.raises((ValueError, TypeError)):
        Lookup(never).restore({name: pair})
