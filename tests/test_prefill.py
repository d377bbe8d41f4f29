"""Idle time: what is done ahead is found again, changes nothing, and is in nobody's way."""

from __future__ import annotations

import logging
import threading

import pytest
from simulated import Q4_0, Q4_K, VOCAB, Clock, TimedModel, at_random

import inside
import localspec
from gguf_maker import write_random_model
from localspec.chat.template import BUILT_IN
from localspec.cli.terminal.dialogue import idle_time
from localspec.engine.prefill import prepare
from localspec.errors import BusyError, ContextError, DecodeError
from localspec.policy.acceptance import RATES
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import (
    REPLAY_TOKENS,
    FixedDraftPolicy,
    FixedThreads,
    ProposerKind,
)
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.streaming.access import Access, busy
from toy import all_shared

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
    with engine.exclusively() as loop:
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
def test_what_is_said_does_not_depend_on_it(options):
    questions = (STORY, "What is 7 times 8?", "And who was with it?")
    with localspec.load(**options) as engine:
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
    # Threads chosen by trying could be others the second time, with costs of their own.
    with localspec.load(num_threads=1) as engine:
        chat, policy, loop = (
            engine.chat(system=SYSTEM),
            inside.loop(engine).draft_policy,
            emptied(engine),
        )
        sizes = target_decodes(loop, monkeypatch)
        pauses = 0
        while policy.target_cost.sizes_to_measure(loop.target.num_cached):
            del sizes[:]
            chat.prepare()
            check_invariant(loop)
            pauses += 1
            assert pauses < 10
            # No more than a dozen in one pause, each beside a target-only one.
            assert len([size for size in sizes if 1 < size <= 16]) <= 13
        assert pauses > 2
        known = policy.target_cost.measured(loop.target.num_cached)
        assert set(range(2, 17)) <= set(known)
        assert all(0 < ratio < 50 for ratio in known.values())
        draft = next(p for p in policy.prospects if p.kind is ProposerKind.DRAFT)
        assert draft.cost.is_measured
        del sizes[:]
        chat.prepare()
        assert sizes == []
    with localspec.load(num_threads=1) as engine:  # it was kept
        chat, loop = engine.chat(system=SYSTEM), emptied(engine)
        sizes = target_decodes(loop, monkeypatch)
        chat.prepare()
        assert set(sizes) == {loop.target.num_cached}


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


class TypedChat:
    """Plain answers on a clock of their own; in a pause after each `policy` learns."""

    def __init__(self, agreement):
        self.clock = Clock()
        target = TimedModel(self.clock, 1.0, Q4_K)
        draft = TimedModel(self.clock, 0.12, Q4_0, at_random(agreement), REPLAY_TOKENS)
        proposer = DraftModel(draft, all_shared(target, draft), lambda token: False)
        self.policy = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1)
        self.loop = SpeculativeDecoder(
            target, [proposer], self.policy, FixedThreads(1), None, self.clock
        )
        self.tokens = [(7 * i) % VOCAB for i in range(31)] + [0]

    def answer(self, draft_policy, num_tokens=64):
        """Seconds that it takes."""
        started = self.clock.now
        self.loop.draft_policy = draft_policy
        self.chain = SamplerChain(GREEDY, num_prompt_tokens=len(self.tokens))
        rule = make_rule(None, is_greedy=True, seed=None, randomness=Randomness(0))
        self.loop.start(self.tokens)
        request = Request(self.chain, rule, num_tokens, lambda token: False)
        for _ in self.loop.steps(request):
            pass
        return self.clock.now - started

    def pause(self):
        self.loop.draft_policy = self.policy
        # A conversation goes on after what was said.
        self.tokens = list(self.loop.tokens)
        prepare(self.loop, self.tokens, self.chain, self.clock)


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.95])
def test_a_draft_that_rested_is_judged_by_the_answer(agreement):
    chat = TypedChat(agreement)
    acceptance = chat.policy.prospects[0].acceptance
    chat.answer(FixedDraftPolicy(0), 80)
    chat.pause()
    assert acceptance.num_seen == 64
    assert acceptance.weights @ RATES == pytest.approx(agreement, abs=0.15)
    chat.pause()  # nothing new
    assert acceptance.num_seen == 64
    for _ in range(9):
        chat.answer(FixedDraftPolicy(0), 80)
        chat.pause()
    assert acceptance.num_seen == 256  # that is enough


@pytest.mark.parametrize(("agreement", "at_most"), [(0.0, 0.5), (0.9, -10.0)])
def test_what_was_judged_decides_about_the_next_answer(agreement, at_most):
    """A useless draft is let alone; a good one drafts from its first token on."""
    chat = TypedChat(agreement)
    for _ in range(4):
        target_only_s = chat.answer(FixedDraftPolicy(0))
        chat.pause()
    assert chat.answer(chat.policy) - target_only_s < at_most


@pytest.mark.usefixtures("nothing_known")
def test_a_question_ends_the_judging_within_a_decode(monkeypatch):
    with localspec.load(num_threads=1) as engine:
        chat, policy, loop = engine.chat(), inside.loop(engine).draft_policy, emptied(engine)
        inside.loop(engine).draft_policy = FixedDraftPolicy(0)
        chat.send(STORY, sampling=GREEDY).reply()
        inside.loop(engine).draft_policy = policy
        acceptance = policy.prospects[0].acceptance
        real, sizes = draft_of(loop).decode, []

        def decode(tokens, num_logits):
            sizes.append(len(tokens))
            if len(sizes) == 3:
                engine.cancel()
            return real(tokens, num_logits)

        monkeypatch.setattr(draft_of(loop), "decode", decode)
        chat.prepare()
        check_invariant(loop)
        assert (len(sizes), acceptance.num_seen) == (3, REPLAY_TOKENS)
        chat.prepare()  # goes on where it ended
        check_invariant(loop)
        assert REPLAY_TOKENS < acceptance.num_seen <= 64
        assert chat.send(STORY, sampling=GREEDY).reply().text


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


def test_what_was_read_before_the_question_came_is_not_read_again(plain, monkeypatch):
    chat, loop = plain.chat(system=LONG_SYSTEM), emptied(plain)
    with monkeypatch.context() as patch:
        reached = hold_at_decode(loop, patch, 3)
        worker = threading.Thread(target=chat.prepare)
        worker.start()
        assert reached.wait(60)
        stream = chat.send("Hi", sampling=GREEDY, max_tokens=2)
        list(stream)
        worker.join(60)
    assert stream.reply().stats.cached_prompt_tokens == 256


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


def test_an_answer_is_not_disturbed_by_it(engine):
    chat, other = engine.chat(), engine.chat(system=SYSTEM)
    stream = chat.send(STORY, sampling=GREEDY, max_tokens=30)
    next(stream)
    other.prepare()  # does nothing
    list(stream)
    assert stream.reply().finish_reason != "cancelled"


def test_answers_that_come_at_any_moment_are_given(engine):
    """As in docs/applications.md: nothing is refused, neither the answer nor the idle work."""
    failed = []

    def prepare(chat):
        try:
            chat.prepare()
        except Exception as error:
            failed.append(error)

    for _ in range(20):
        chat = engine.chat(system=SYSTEM)
        idle = threading.Thread(target=prepare, args=[chat])
        idle.start()
        assert chat.send("Hello!", max_tokens=1).reply().stats.prompt_tokens
        idle.join(60)
    assert failed == []


def test_a_cancel_counts_while_the_prompt_is_made(plain, monkeypatch):
    chat, loop = plain.chat(system=SYSTEM), emptied(plain)
    tokenize = plain.vocabulary.tokenize

    def cancelled(*arguments, **more):
        plain.cancel()
        return tokenize(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(plain.vocabulary, "tokenize", cancelled)
        chat.prepare()
    assert loop.target.num_cached == 0
    chat.prepare()
    assert loop.target.num_cached > 0


def test_another_chat_finds_its_caches_again(plain):
    one, other = plain.chat(), plain.chat(system=SYSTEM)
    one.send(STORY, sampling=GREEDY).reply()
    other.prepare()
    reply = one.send("Thank you!", sampling=GREEDY, max_tokens=3).reply()
    assert reply.stats.prompt_tokens - reply.stats.cached_prompt_tokens < 20


def test_access_is_refused_by_an_answer_and_given_up_by_idle_work():
    told = threading.Event()
    access = Access()
    answer = access.turn()
    with access.turn(told.set) as idle:
        access.take(idle, busy)
        with pytest.raises(BusyError), access.turn(told.set) as other:
            access.take(other, busy)
        assert not told.is_set()
        worker = threading.Thread(target=access.take, args=(answer, busy))
        worker.start()
        assert told.wait(60)
        assert worker.is_alive()
    worker.join(60)
    assert not worker.is_alive()
    for other in (access.turn(), access.turn(told.set)):
        with pytest.raises(BusyError), other:
            access.take(other, busy)
    answer.end()
    access.take(access.turn(), busy)


def test_the_command_line_s_thread_has_ended_when_the_line_is_there(engine, monkeypatch):
    chat, loop = engine.chat(system=LONG_SYSTEM), emptied(engine)
    reached = hold_at_decode(loop, monkeypatch, 2)
    with idle_time(engine, chat):
        assert reached.wait(60)
    assert "localspec-idle" not in [thread.name for thread in threading.enumerate()]
    check_invariant(loop)


def test_what_fails_in_that_thread_is_logged_and_not_shown(engine, caplog, capfd):
    with localspec.load(draft_tokens=0) as closed:
        chat = closed.chat()
    with caplog.at_level(logging.INFO), idle_time(closed, chat):
        while not caplog.records:
            threading.Event().wait(0.01)
    assert "is closed" in str(caplog.records[0].exc_info[1])
    assert caplog.records[0].levelno == logging.INFO
    assert capfd.readouterr() == ("", "")
