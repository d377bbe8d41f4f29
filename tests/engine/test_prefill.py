"""Idle time: what is done ahead is found again, changes nothing, and is in nobody's way."""

from __future__ import annotations

import math
import threading

import pytest

import inside
import localspec
from gguf_maker import write_random_model
from localspec.chat.template import BUILT_IN
from localspec.engine import prefill
from localspec.errors import ContextError, DecodeError
from localspec.policy.cost import STEADY_SIZES
from localspec.speculative.policy_api import (
    FixedDraftPolicy,
    ProposerKind,
)

GREEDY = localspec.SamplingParams(temperature=0)
STORY = "Tell me a story about a fox."
SYSTEM = "You are a storyteller who knows every animal of the forest and its name."
LONG_SYSTEM = " ".join([SYSTEM] * 40)


@pytest.fixture(scope="module")
def engine():
    with localspec.load() as opened:
        yield opened


@pytest.fixture(scope="module")
def plain():
    """An engine that has nothing to measure."""
    with localspec.load(draft_tokens=0) as opened:
        yield opened


@pytest.fixture
def nothing_known(tmp_path, monkeypatch):
    """No costs are kept from elsewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def emptied(engine):
    """The engine's loop, with nothing cached."""
    with inside.lent(engine) as loop:
        return loop


def draft_of(loop):
    """The model that drafts."""
    return next(p.model for p in loop.proposers if p.kind is ProposerKind.DRAFT)


def target_decodes(loop, monkeypatch):
    """A list that grows by the size of every decode of the target from now on."""
    sizes: list[int] = []
    real = loop.target.decode

    def decode(tokens, num_logits):
        sizes.append(len(tokens))
        return real(tokens, num_logits)

    monkeypatch.setattr(loop.target, "decode", decode)
    return sizes


def hold_at_decode(loop, monkeypatch, number):
    """An event that is set when the target's decode of that number comes, which then waits
    until it is interrupted."""
    reached = threading.Event()
    real, count = loop.target.decode, iter(range(1, 10_000))

    def decode(tokens, num_logits):
        if next(count) == number:
            reached.set()
            while not loop.target.is_interrupted:
                threading.Event().wait(0.001)
        return real(tokens, num_logits)

    monkeypatch.setattr(loop.target, "decode", decode)
    return reached


def check_invariant(loop):
    assert 0 <= loop.target.num_cached <= len(loop.tokens)
    for proposer in loop.proposers:
        if proposer.kind is ProposerKind.DRAFT:
            assert proposer.begins_at + proposer.model.num_cached <= len(loop.tokens)


@pytest.mark.parametrize("system", [None, SYSTEM])
def test_the_next_answer_finds_all_but_the_question(engine, system):
    """At the begin, after an answer, and in a conversation that came from elsewhere."""
    loop, chat = emptied(engine), engine.chat(system=system)
    for question in (STORY, "And one about an owl!"):
        chat.prepare()
        prompt = chat.prompt_tokens(question)
        prepared = list(loop.tokens)
        assert prompt[: len(prepared)] == prepared
        assert loop.target.num_cached == len(prepared)
        after = engine.vocabulary.tokenize(question, parse_special=False)
        reply = chat.send(question, sampling=GREEDY).reply()
        assert reply.stats.cached_prompt_tokens == len(prepared)
        # The question, its end, and what begins the answer.
        assert len(prompt) - len(prepared) <= len(after) + 5
    resumed = engine.chat()
    resumed.replace(chat.messages)
    emptied(engine)
    resumed.prepare()
    reply = resumed.send("Thank you!", sampling=GREEDY, max_tokens=3).reply()
    assert reply.stats.prompt_tokens - reply.stats.cached_prompt_tokens < 12


def test_what_a_template_drops_of_thoughts_is_decoded_while_a_person_types(
    tmp_path, demo_target
):
    thinker = write_random_model(
        tmp_path / "thinker.gguf",
        demo_target,
        replace_tokens={i: f"hm</think>said{i}" for i in range(300, 4096)},
    )
    thinking = BUILT_IN["chatml"].replace(
        "assistant\n' }}{% endif", "assistant\n<think>' }}{% endif"
    )
    decoded = {}
    with localspec.load(target=thinker, draft_tokens=0) as engine:
        for prepares in (False, True):
            chat = engine.chat(template=thinking)
            reply = chat.send("Hello", sampling=GREEDY, max_tokens=8).reply()
            assert reply.thoughts
            assert chat.messages[-1]["content"] == reply.text != ""
            if prepares:
                chat.prepare()
            stats = chat.send("Go on", sampling=GREEDY, max_tokens=1).reply().stats
            decoded[prepares] = stats.prompt_tokens - stats.cached_prompt_tokens
    # The answer without its thoughts is read while nobody waits, and that is all there is.
    assert decoded[True] < 20
    assert decoded[False] > decoded[True] + 50


@pytest.mark.parametrize("options", [{}, {"draft_tokens": 3}, {"draft_tokens": 0}])
def test_what_is_said_does_not_depend_on_it(exact_target, demo_draft, options):
    questions = (STORY, "What is 7 times 8?", "And who was with it?")
    files = {"target": exact_target, "draft": demo_draft, "exact": True}
    with localspec.load(**files, **options) as engine:
        loop, said = emptied(engine), []
        for prepares in (False, True):
            chat = engine.chat(system=SYSTEM)
            texts = []
            for seed, question in enumerate(questions):
                if prepares:
                    chat.prepare()
                    chat.prepare()
                    check_invariant(loop)
                texts.append(chat.send(question, seed=seed, max_tokens=60).reply().text)
            said.append(texts)
    assert said[0] == said[1]


@pytest.mark.usefixtures("nothing_known")
def test_costs_are_measured_until_all_are_known(monkeypatch):
    monkeypatch.setattr(prefill, "_FAST_S", 0.0)
    # Threads chosen by trying could be others the second time, with costs of their own.
    with localspec.load(num_threads=1) as engine:
        chat, policy, loop = (
            engine.chat(system=SYSTEM),
            inside.loop(engine).draft_policy,
            emptied(engine),
        )
        sizes = target_decodes(loop, monkeypatch)
        pauses = 0
        while policy.costs.sizes_to_time():
            del sizes[:]
            chat.prepare()
            check_invariant(loop)
            pauses += 1
            assert pauses < 10
            # No more than three sizes in one pause.
            assert len({size for size in sizes if 1 < size <= 16}) <= 3
        assert pauses == 2
        known = policy.costs.measured_sizes()
        assert set(STEADY_SIZES[1:]) <= set(known)
        assert all(0 < ratio < math.inf for ratio in known.values())
        assert policy.costs.estimates[ProposerKind.DRAFT].num_lacking == 0
        del sizes[:]
        chat.prepare()
        assert sizes == []
    with localspec.load(num_threads=1) as engine:  # it was kept
        chat, loop = engine.chat(system=SYSTEM), emptied(engine)
        sizes = target_decodes(loop, monkeypatch)
        chat.prepare()
        assert set(sizes) == {loop.target.num_cached}


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("fast_s", [0.0, 10.0])
def test_a_fast_model_is_timed_when_it_is_loaded(fast_s, monkeypatch):
    monkeypatch.setattr(prefill, "_FAST_FIRST_S", 10.0)  # it may wait for another program
    monkeypatch.setattr(prefill, "_FAST_S", fast_s)
    with localspec.load(num_threads=1) as engine:
        costs = inside.loop(engine).draft_policy.costs
        assert bool(costs.sizes_to_time()) == (fast_s == 0.0)
        assert bool(costs.estimates[ProposerKind.DRAFT].num_lacking) == (fast_s == 0.0)
        assert inside.loop(engine).target.num_cached == 0


def test_a_draft_reads_ahead_only_while_it_follows_the_text(engine):
    chat, loop = engine.chat(), emptied(engine)
    draft, own = draft_of(loop), inside.loop(engine).draft_policy
    try:
        inside.loop(engine).draft_policy = FixedDraftPolicy(3)
        chat.send(STORY, sampling=GREEDY).reply()
        chat.prepare()
        assert draft.num_cached == len(loop.tokens)
        inside.loop(engine).draft_policy = FixedDraftPolicy(0)
        reply = chat.send(STORY, sampling=GREEDY).reply()
        assert reply.stats.completion_tokens > 40
        num_read = draft.num_cached
        chat.prepare()
        assert draft.num_cached == num_read < loop.target.num_cached
    finally:
        inside.loop(engine).draft_policy = own


def test_where_nothing_is_drafted_nothing_is_measured(plain, monkeypatch):
    chat, loop = plain.chat(system=SYSTEM), emptied(plain)
    sizes = target_decodes(loop, monkeypatch)
    chat.prepare()
    assert sizes == [len(loop.tokens)]
    chat.prepare()
    assert len(sizes) == 1


def test_a_cache_that_cannot_be_cut_is_read_ahead_and_no_more(tmp_path, demo_target):
    recurrent = write_random_model(
        tmp_path / "mamba.gguf", demo_target, architecture="mamba", num_layers=2
    )
    with localspec.load(target=recurrent) as engine:
        chat, loop = engine.chat(system=SYSTEM), emptied(engine)
        chat.prepare()
        prepared = len(loop.tokens)
        assert loop.target.num_cached == prepared
        reply = chat.send("Hello", sampling=GREEDY, max_tokens=4).reply()
        assert reply.stats.cached_prompt_tokens == prepared


def test_the_end_of_the_context_is_not_passed(demo_target):
    with localspec.load(context_length=128) as engine:
        chat, loop = engine.chat(system=" ".join([SYSTEM] * 6)), emptied(engine)
        assert len(chat.prompt_tokens("Hi")) > 90
        for _ in range(6):
            chat.prepare()
            check_invariant(loop)
        assert chat.send("Hi", max_tokens=4).reply().text
        chat.system = LONG_SYSTEM
        with pytest.raises(ContextError):
            chat.prepare()


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("decode", [1, 4, 13])
@pytest.mark.parametrize("ending", ["answer", "cancel", "close"])
def test_whatever_ends_it_ends_it_within_a_decode(monkeypatch, decode, ending):
    """While it reads, and while it measures."""
    monkeypatch.setattr(prefill, "_FAST_S", 0.0)
    with localspec.load() as engine:
        expected = engine.generate_raw("Once", sampling=GREEDY, max_tokens=9).reply().text
        chat, loop = engine.chat(system=LONG_SYSTEM), emptied(engine)
        with monkeypatch.context() as patch:
            reached = hold_at_decode(loop, patch, decode)
            worker = threading.Thread(target=chat.prepare)
            worker.start()
            assert reached.wait(60)
            if ending == "answer":
                assert (
                    engine.generate_raw("Once", sampling=GREEDY, max_tokens=9).reply().text
                    == expected
                )
            elif ending == "cancel":
                engine.cancel()
            else:
                engine.close()
            worker.join(60)
            assert not worker.is_alive()
        if ending != "close":
            check_invariant(loop)
            chat.prepare()
            prompt = chat.prompt_tokens(STORY)
            reply = chat.send(STORY, sampling=GREEDY, max_tokens=5).reply()
            assert len(prompt) - reply.stats.cached_prompt_tokens < 20


def test_a_failing_decode_leaves_caches_right(plain, monkeypatch):
    chat, loop = plain.chat(system=LONG_SYSTEM), emptied(plain)
    with monkeypatch.context() as patch:
        real, count = loop.target.decode, iter(range(10))

        def decode(tokens, num_logits):
            if next(count) == 2:
                raise DecodeError("out of memory")
            return real(tokens, num_logits)

        patch.setattr(loop.target, "decode", decode)
        with pytest.raises(DecodeError):
            chat.prepare()
    check_invariant(loop)
    fresh = chat.send(STORY, sampling=GREEDY, max_tokens=9).reply()
    assert fresh.stats.cached_prompt_tokens >= 128
