"""The memory of earlier texts: what it keeps, what it lets go, and that no text changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import localspec
from localspec.errors import BusyError, OptionError
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.lookup import Lookup, TextMemory
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import FixedDraftPolicy, FixedThreads, ProposerKind, UpTo
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from toy import TableModel
from toy_constraint import ToyConstraint

CHAIN = SamplerChain(SamplingParams(), num_prompt_tokens=1)
GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)
QUESTION = "Tell me about a fox and a hen."


def never(_token: int) -> bool:
    return False


def proposed(lookup: Lookup, text: list[int], num_tokens: int) -> list[int]:
    if lookup.state(text).max_tokens == 0:
        return []
    draw = lambda _index, distribution: int(distribution.ids[0])  # noqa: E731
    return lookup.propose(text, UpTo(num_tokens), CHAIN, draw).draft_tokens


def numbers(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


def test_what_left_the_text_is_proposed_in_another_one():
    lookup = Lookup(never, TextMemory())
    earlier = numbers(1, 100)
    lookup.state(earlier)
    lookup.truncate(0)
    assert proposed(lookup, [5, 6, *earlier[40:50]], 8) == earlier[50:58]


def test_without_a_memory_nothing_is_kept():
    lookup = Lookup(never)
    earlier = numbers(1, 100)
    lookup.state(earlier)
    lookup.truncate(0)
    assert proposed(lookup, [5, 6, *earlier[40:50]], 8) == []


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


def test_occurrences_that_differ_make_it_less_sure():
    alike = Lookup(never).state([1, 2, 3, 8, 1, 2, 3, 9, 1, 2]).confidence
    differ = Lookup(never).state([1, 2, 4, 8, 1, 2, 3, 9, 1, 2]).confidence
    assert differ < alike


FORCED_FIRST = {(): {4}, (4,): {5}}  # then any


@pytest.mark.parametrize("remembered", [[4, 5, 6, 7, 1, 0], [2, 3, 4, 5, 6, 7]])
def test_what_is_forced_and_what_is_remembered_join_in_one_step(remembered):
    """Whether it is found behind the text, or only behind what has to come."""
    text = [1, 2, 3]
    constraint = ToyConstraint(9, lambda history: FORCED_FIRST.get(history, {*range(9)}), None)
    chain = SamplerChain(SamplingParams(), num_prompt_tokens=3, constraint=constraint)
    lookup = Lookup(never, TextMemory())
    lookup.memory.add(remembered)
    lookup.begin(chain)
    assert lookup.state(text).max_tokens > 0
    draw = lambda _index, distribution: int(distribution.ids[0])  # noqa: E731
    proposal = lookup.propose(text, UpTo(4), chain, draw)
    assert proposal.draft_tokens == [4, 5, 6, 7]
    constraint.commit([4, 5, 6])
    text += [4, 5, 6]
    lookup.truncate(len(text))
    assert lookup.propose(text, UpTo(1), chain, draw).draft_tokens == [7]


def test_what_is_remembered_gives_way_to_what_has_to_come():
    text = [1, 2, 3]
    constraint = ToyConstraint(9, lambda history: FORCED_FIRST.get(history, {*range(9)}), None)
    chain = SamplerChain(SamplingParams(), num_prompt_tokens=3, constraint=constraint)
    lookup = Lookup(never, TextMemory())
    lookup.memory.add([2, 3, 8, 8, 8])
    lookup.memory.add([4, 5, 6, 7])
    lookup.begin(chain)
    draw = lambda _index, distribution: int(distribution.ids[0])  # noqa: E731
    assert lookup.propose(text, UpTo(4), chain, draw).draft_tokens == [4, 5, 6, 7]


def answered(
    memory: TextMemory | None,
    params: SamplingParams,
    rule: str,
    constraint: ToyConstraint | None = None,
    cut: int = 30,
) -> list[int]:
    """Two answers of 30 tokens, the first one cut back so far before the second."""
    lookup = Lookup(never, memory)
    loop = SpeculativeDecoder(
        TableModel(seed=1, context_length=128), [lookup], FixedDraftPolicy(5), FixedThreads(1),
        None, lambda: 0.0,
    )  # fmt: skip
    said: list[int] = []
    prompt = [1, 2, 3, 1, 2]
    for turn in range(2):
        loop.start(prompt)
        seed = 5 if rule == "coupled" else None
        made = make_rule(
            rule, is_greedy=params.is_greedy, seed=seed, randomness=Randomness(5, turn)
        )
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


@settings(deadline=None)
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


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 1.0, "seed": 4, "json_schema": {"type": "object", "properties": {
            "animal": {"enum": ["fox", "hen"]}, "legs": {"type": "integer"}},
            "required": ["animal", "legs"]}},
    ],
    ids=["greedy", "seeded", "schema"],
)  # fmt: skip
def test_an_engine_says_the_same_whatever_it_remembers(exact_target, options):
    """Several chats, an answer that is cancelled, one that is asked again, and one undone.

    Exact, because decodes of other sizes round otherwise, and a memory changes the sizes.
    """

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
        with engine.exclusively():
            pass
        again = engine.generate(QUESTION, **asked).reply()
    assert reply.token_ids == again.token_ids == plain.token_ids
    for each in (reply, again):
        assert each.stats.accepted_per_proposer[ProposerKind.LOOKUP] > 24
    assert reply.stats.num_steps < plain.stats.num_steps / 2


def test_checks_and_measurements_remember_nothing(demo_target):
    """They repeat their prompts, and a remembered answer would make them look fast."""
    with localspec.load(target=demo_target) as engine:
        with engine.exclusively() as loop:
            [lookup] = [each for each in loop.proposers if isinstance(each, Lookup)]
            assert lookup.memory is None
            loop.tokens[:] = numbers(1, 50)
            lookup.state(loop.tokens)
        assert lookup.memory is not None
        assert len(lookup.memory) == 0


def test_nothing_is_remembered_in_the_midst_of_an_answer(demo_target):
    with localspec.load(target=demo_target) as engine:
        answer = engine.generate(QUESTION, max_tokens=8)
        next(answer)
        with pytest.raises(BusyError):
            engine.remember("text")
        answer.close()
        with pytest.raises(OptionError):
            engine.remember([-5])
        engine.remember("text")
