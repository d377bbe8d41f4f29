"""Heads of libllama: what they read is what llama.cpp's own driver gives them."""

from __future__ import annotations

import contextlib
import functools
import itertools

import numpy as np
import pytest
from eagle_reference import EagleReference
from head_maker import ALL, EAGLE, INSIDE, LAYERS_READ, NUM_HEADS, write_head_model
from head_reference import HeadReference

import inside
import localspec
from engines import Owner, answer_of, answered, assert_drafts_at_once_as_alone, resumed
from localspec.errors import Interrupted
from localspec.llama.options import LlamaOptions
from localspec.presets.located import locate
from localspec.presets.presets import find_preset
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import FixedDraftPolicy

CONTEXT = 1024
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = [5 + 37 * index % 900 for index in range(30)]


class Made:
    """Files of one architecture, and what llama.cpp's driver makes of them."""

    def __init__(self, folder, tokenizer_of, name):
        self.name = name
        self.path = write_head_model(folder / f"{name}.gguf", tokenizer_of, name)
        self.head = write_head_model(
            folder / f"mtp-{name}.gguf", tokenizer_of, name, part="head"
        )
        self.is_inside = name in INSIDE
        if name in EAGLE:
            self.reference = EagleReference(self.path, self.head, layers=LAYERS_READ)
        else:
            self.reference = HeadReference(
                self.path,
                None if self.is_inside else self.head,
                num_chained=NUM_HEADS.get(name, 1),
                shares_cache=not self.is_inside,
            )
        self.rows = functools.cache(self.reference.rows)  # many tests end with the same text

    def opened(self, **keywords):
        options = LlamaOptions(context_length=CONTEXT, flash_attention="off")
        usual = {"proposer": "head", "target_options": options, "draft_tokens": 3}
        if not self.is_inside:
            usual["head"] = self.head
        return localspec.load(target=self.path, **usual | keywords)

    @functools.cached_property
    def plain(self):
        """The greedy text of the target alone."""
        with self.opened(proposer="none") as engine:
            return text_of(engine, sampling=GREEDY)


@pytest.fixture(scope="module", params=[*ALL, *EAGLE])
def made(request, tmp_path_factory, demo_target):
    one = Made(tmp_path_factory.mktemp("heads"), demo_target, request.param)
    yield one
    one.reference.close()


def assert_reads_rightly(engine, made, loop=None) -> None:
    """What the head says now, and after two more drafted tokens, is what it should."""
    loop = loop or inside.loop(engine)
    proposer, tokens = loop.proposers[0], loop.tokens
    if loop.target.num_cached == len(tokens):  # cut within a step
        tokens = [*tokens, 33]
    assert proposer.state(tokens).max_tokens >= 3
    rows = [proposer.rows(tokens, 1)[0].copy()]
    drafted = [17, 251]
    for count in (1, 2):
        rows.append(proposer.rows([*tokens, *drafted[:count]], 1)[0].copy())
    expected = np.array(made.rows(tuple(tokens), tuple(drafted), proposer.begins_at))
    assert expected[np.isfinite(expected)].std() > 0.1
    np.testing.assert_allclose(rows, expected, atol=2e-3)
    proposer.truncate(len(loop.tokens))


def text_of(engine, prompt=PROMPT, **keywords):
    return engine.generate_raw(prompt, **({"max_tokens": 40} | keywords)).reply().token_ids


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 5, 8])
def test_greedy_text_is_plain_and_the_head_reads_rightly(made, num_draft_tokens):
    with made.opened(draft_tokens=num_draft_tokens) as engine:
        reply = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY).reply()
        assert reply.token_ids == made.plain
        assert 0 < reply.stats.num_accepted < reply.stats.num_draft_tokens
        assert_reads_rightly(engine, made)


@pytest.mark.parametrize("rule", ["coupled", "token", "block"])
def test_sampled_text(made, rule):
    """The seeded one is plain decoding's; after all of them the head reads rightly."""
    texts = []
    for count in (0, 1, 3, 8):
        with made.opened(draft_tokens=count) as engine:
            texts.append(text_of(engine, sampling=SAMPLED, seed=5, rule=rule))
            if count:
                assert_reads_rightly(engine, made)
    if rule == "coupled":
        assert texts[1:] == texts[:1] * 3


def test_a_head_in_a_file_of_its_own_says_the_same(made):
    rows = []
    if not made.is_inside:
        pytest.skip("it has no other")
    for keywords in ({}, {"head": made.head}):
        with made.opened(**keywords) as engine:
            text_of(engine, sampling=GREEDY)
            loop = inside.loop(engine)
            rows.append(loop.proposers[0].rows(loop.tokens, 1)[0].copy())
            loop.proposers[0].truncate(len(loop.tokens) - 1)
            assert_reads_rightly(engine, made)
    np.testing.assert_allclose(*rows, atol=1e-5)


def test_after_cuts_cancels_and_another_conversation(made):
    with made.opened() as engine:
        chats = itertools.cycle([engine.chat(), engine.chat()])
        for number in range(6):
            stream = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY)
            pieces = iter(stream)
            for _ in range(1 + 3 * number):
                next(pieces, None)
            stream.close()
            assert_reads_rightly(engine, made)
            inside.loop(engine).truncate(len(PROMPT) + 1)
            assert text_of(engine, sampling=GREEDY) == made.plain
            assert_reads_rightly(engine, made)
            inside.switch_to(engine, next(chats), ())
            assert text_of(engine, sampling=GREEDY) == made.plain
            assert_reads_rightly(engine, made)


def test_conversations_side_by_side_each_find_the_heads_part_again(made):
    with made.opened(parallel=2) as engine:
        assert engine.parallel == 2
        texts = {Owner(): PROMPT[:], Owner(): [*PROMPT[::-1], 7, 8, 9]}
        read = dict.fromkeys(texts, 0)
        for turn in range(3):
            for owner, tokens in texts.items():
                if turn and made.name in (*INSIDE, *EAGLE):
                    assert inside.lane(engine, owner).own_models.head.num_cached == read[owner]
                said, num_decoded = answered(engine, owner, tokens, max_tokens=20)
                assert turn == 0 or num_decoded == 1
                tokens += said
                lane = inside.lane(engine, owner)
                assert_reads_rightly(engine, made, lane.decoder)
                read[owner] = lane.own_models.head.num_cached
        said = next(iter(texts.values()))[len(PROMPT) :]
        assert tuple(said[: len(made.plain)]) == made.plain


def test_caches_on_disk_have_the_heads_part(made, tmp_path):
    with resumed(made.opened, tmp_path / "x.caches", PROMPT) as engine:
        assert_reads_rightly(engine, made)


def test_answers_at_once_each_draft_with_the_head(made):
    assert_drafts_at_once_as_alone(made, PROMPT)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_head_goes_on_where_an_answer_begins_with_a_copy(made, goes_on):
    """It has what another's has read, and the rows to read on with.

    A target with a sliding window can go back in no text, so only all of one is copied.
    """
    if made.name == "gemma4":
        pytest.skip("it has no cache of its own: it reads its target's")
    is_windowed = made.name == "step35"
    if is_windowed and goes_on:
        pytest.skip("the other's text is longer by now than what they begin alike")
    with made.opened(parallel=2) as engine:
        first, second = Owner(), Owner()
        said, _ = answered(engine, first, PROMPT, max_tokens=20)
        text = [*PROMPT, *said[: None if is_windowed else 10], 7]
        with contextlib.ExitStack() as stack:
            if goes_on:
                stream = stack.enter_context(answer_of(engine, first, PROMPT, max_tokens=90))
                num_said = 0
                while num_said < 12:
                    num_said += len(next(stream).token_ids)
            num_decoded = answered(engine, second, text, max_tokens=1)[1]
        assert num_decoded < len(PROMPT)
        lane = inside.lane(engine, second)
        head = lane.own_models.head
        assert head.begins_at == (made.name in EAGLE)
        assert head.num_cached >= len(PROMPT)
        answered(engine, second, [*text, 8], max_tokens=10)
        assert lane.decoder.proposers[0].state(lane.decoder.tokens).num_skipped == 0
        assert_reads_rightly(engine, made, lane.decoder)


def test_a_stopped_decode_leaves_the_head_as_it_was(made):
    with made.opened() as engine:
        text_of(engine, sampling=GREEDY)
        head, tokens = inside.models(engine).head, inside.loop(engine).tokens
        assert inside.loop(engine).proposers[0].state(tokens).max_tokens >= 3
        head.interrupt()
        with pytest.raises(Interrupted):
            inside.loop(engine).proposers[0].rows(tokens, 1)
        head.begin()
        assert_reads_rightly(engine, made)


@pytest.mark.parametrize(
    "length", [513, 700, *(pytest.param(size, marks=pytest.mark.slow) for size in (511, 512))]
)
def test_of_a_long_text_it_reads_the_end(made, length):
    prompt = [5 + 37 * index % 900 for index in range(length)]
    with made.opened() as engine:
        text_of(engine, prompt, sampling=GREEDY, max_tokens=12)
        loop = inside.loop(engine)
        proposer = loop.proposers[0]
        if made.name in EAGLE:
            assert proposer.begins_at == max(1, length - 511)
        elif made.is_inside:
            assert proposer.begins_at == (0 if length <= 512 else length - 511)
        assert_reads_rightly(engine, made)
        # Plain decoding does not wait for it, nor do more tokens than it can still read.
        loop.draft_policy = FixedDraftPolicy(0)
        text_of(engine, loop.tokens, sampling=GREEDY, max_tokens=100)
        assert_reads_rightly(engine, made)


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 4])
def test_the_trained_head_of_the_demo_agrees_with_its_target(exact_target, num_draft_tokens):
    texts, head = {}, locate(find_preset("demo@head"))["head"]
    for proposer in ("none", "head"):
        with localspec.load(
            target=exact_target,
            head=head,
            exact=True,
            proposer=proposer,
            draft_tokens=num_draft_tokens,
        ) as engine:
            replies = [
                engine.chat().send(question, sampling=GREEDY).reply()
                for question in (
                    "What is speculative decoding?",
                    "Tell me a story about a fox.",
                )
            ]
        texts[proposer] = [reply.text for reply in replies]
    assert texts["head"] == texts["none"]
    per_place = [reply.stats.accepted_per_position for reply in replies]
    accepted = [sum(counts) for counts in zip(*per_place, strict=True)][:num_draft_tokens]
    steps = sum(sum(reply.stats.steps_per_length[1:]) for reply in replies)
    # Half of what gets to a place is kept there: that is no luck with 4096 tokens.
    got_there = [steps, *accepted[:-1]]
    assert all(2 * now > before > 0 for before, now in zip(got_there, accepted, strict=True))
