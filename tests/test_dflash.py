"""DFlash heads of libllama: what they read is what llama.cpp's own driver gives them."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from block_head_maker import (
    BLOCK_SIZE,
    MASK,
    NUM_CANDIDATES,
    BlockHead,
    write_block_head,
)
from block_reference import BlockReference
from head_maker import LAYERS_READ, write_head_model

import inside
import localspec
from engines import Owner, answered, assert_drafts_at_once_as_alone, resumed
from localspec.errors import DecodeError, Interrupted
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import head_facts
from localspec.llama.options import LlamaOptions
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import DraftOff, FixedDraftPolicy

CONTEXT = 1024
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = [5 + 37 * index % 900 for index in range(30)]
# The target's architecture, and the head.
CASES = {
    "shares its target's table": ("qwen3", BlockHead()),
    "knows some tokens, looks back a little": ("llama", BlockHead(num_known=700, window=8)),
    "of a windowed target": ("gemma4", BlockHead()),
    "of a hybrid": ("qwen35", BlockHead("dspark", is_mrope=True)),
    "looks at what is before": (
        "llama",
        BlockHead("dspark", num_known=700, from_anchor=False, is_causal=True),
    ),
    "pairs of candidates": ("qwen3", BlockHead("dflash2")),
}


class Made:
    """A target and its head, and what llama.cpp's driver makes of them."""

    def __init__(self, folder, tokenizer_of, architecture, head):
        self.path = write_head_model(
            folder / f"{architecture}.gguf", tokenizer_of, architecture
        )
        self.head = write_block_head(folder / "head.gguf", self.path, head)
        facts = head_facts(check_model_file(self.head))
        assert facts is not None
        assert facts.block is not None
        self.block = facts.block
        self.reference = BlockReference(
            self.path,
            self.head,
            layers=LAYERS_READ,
            mask=MASK,
            is_causal=head.is_causal,
            is_cropped=head.kind != "dflash2",
        )
        self.decoded = functools.cache(self.reference.block)

    def opened(self, **keywords):
        options = LlamaOptions(context_length=CONTEXT, flash_attention="off")
        usual = {"proposer": "head", "head": self.head, "draft_tokens": 3}
        return localspec.load(
            target=self.path, **usual | {"target_options": options} | keywords
        )

    @functools.cached_property
    def plain(self):
        """The greedy text of the target alone."""
        with self.opened(proposer="none") as engine:
            return text_of(engine, sampling=GREEDY)


@pytest.fixture(scope="module", params=list(CASES))
def made(request, tmp_path_factory, demo_target):
    one = Made(tmp_path_factory.mktemp("dflash"), demo_target, *CASES[request.param])
    yield one
    one.reference.close()


def text_of(engine, prompt=PROMPT, **keywords):
    return engine.generate_raw(prompt, **({"max_tokens": 40} | keywords)).reply().token_ids


def assert_reads_rightly(engine, made, num_tokens=5) -> None:
    """The block that the head decodes now is what it should be, place by place."""
    loop, head = inside.loop(engine), inside.models(engine).head
    tokens, first = loop.tokens, made.block.first_row
    if loop.target.num_cached == len(tokens):  # cut within a step
        tokens = [*tokens, 33]
    state = loop.proposers[0].state(tokens)
    if loop.target.num_cached < len(tokens) - 1:  # of a hybrid, that came back to a checkpoint
        assert state.draft_off is DraftOff.HEAD_LACKS_ROWS
        return
    assert state.max_tokens >= num_tokens
    head.decode_block(tokens[head.begins_at + head.num_cached :], num_tokens)
    logits, given = made.decoded(tuple(tokens), num_tokens + first, head.begins_at)
    drafted = []
    for place in range(num_tokens):
        row, expected = head.row(drafted).copy(), logits[first + place]
        if made.block.num_candidates:
            expected = pairs_row(given[first:], drafted, len(expected))
        assert expected[np.isfinite(expected)].std() > 0.05
        # Keys and values are kept in half precision.
        np.testing.assert_allclose(row, expected, atol=1e-2)
        confidence = head.confidence(place)
        if made.block.has_confidences:
            assert confidence == pytest.approx(given[first + place, 0], abs=1e-3)
            assert 0.0 < confidence < 1.0
        else:
            assert confidence is None
        # Any token that could be drawn, not the likeliest only.
        drafted.append(int(np.argsort(-expected)[place % NUM_CANDIDATES]))


def pairs_row(given, drafted, vocab_size):
    """What DFlash2's selector says of a place, read as llama.cpp's driver reads it."""
    place, count = len(drafted), NUM_CANDIDATES
    before = 0
    if drafted:
        before = [int(token) for token in given[place - 1, :count]].index(drafted[-1])
    scores = given[place, count:].reshape(-1)[before * count : (before + 1) * count]
    row = np.full(vocab_size, -np.inf, dtype=np.float32)
    row[given[place, :count].astype(int)] = scores
    return row


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 5, 8])
def test_greedy_text_is_plain_and_the_head_reads_rightly(made, num_draft_tokens):
    with made.opened(draft_tokens=num_draft_tokens) as engine:
        reply = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY).reply()
        assert reply.token_ids == made.plain
        assert 0 < reply.stats.num_accepted < reply.stats.num_draft_tokens
        most = min(num_draft_tokens, made.block.most_tokens)
        lengths = reply.stats.steps_per_length
        assert lengths[most] > 0
        assert sum(lengths[most + 1 :]) == 0
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


def test_answers_at_once_each_draft_with_the_head(made):
    assert_drafts_at_once_as_alone(made, PROMPT)


def test_conversations_side_by_side_each_find_the_heads_part_again(made):
    with made.opened(parallel=2) as engine:
        assert engine.parallel == 2
        texts = {Owner(): PROMPT[:], Owner(): [*PROMPT[::-1], 7, 8, 9]}
        for turn in range(3):
            for owner, tokens in texts.items():
                said, num_decoded = answered(engine, owner, tokens, max_tokens=20)
                assert turn == 0 or num_decoded == 1
                tokens += said
        said = next(iter(texts.values()))[len(PROMPT) :]
        assert tuple(said[: len(made.plain)]) == made.plain


def test_caches_on_disk_have_the_heads_part(made, tmp_path):
    with resumed(made.opened, tmp_path / "x.caches", PROMPT) as engine:
        assert_reads_rightly(engine, made)


def test_a_stopped_decode_leaves_the_head_as_it_was(made):
    with made.opened() as engine:
        text_of(engine, sampling=GREEDY)
        loop, head = inside.loop(engine), inside.models(engine).head
        assert loop.proposers[0].state(loop.tokens).max_tokens >= 3
        head.interrupt()
        with pytest.raises(Interrupted):
            head.decode_block(loop.tokens[head.begins_at + head.num_cached :], 3)
        head.begin()
        assert_reads_rightly(engine, made)


def test_after_a_replay_the_head_reads_rightly(made):
    with made.opened() as engine:
        text_of(engine, sampling=GREEDY, draft_tokens=0)
        loop = inside.loop(engine)
        chain = SamplerChain(GREEDY, num_prompt_tokens=len(PROMPT))
        assert loop.proposers[0].state(loop.tokens).num_unjudged == made.block.most_tokens
        found = loop.proposers[0].replay(loop.tokens, [1.0] * 40, chain)
        assert 0 < len(found.chances) <= made.block.most_tokens
        assert_reads_rightly(engine, made)


def test_tokens_without_rows_are_not_read(made):
    with made.opened() as engine:
        text_of(engine, sampling=GREEDY)
        head, tokens = inside.models(engine).head, inside.loop(engine).tokens
        head.read_from(0)
        with pytest.raises(DecodeError, match="has no rows of tokens from"):
            head.decode_block([*tokens, 5, 6, 7], 3)
        assert_reads_rightly(engine, made)


@pytest.mark.parametrize(
    "length", [513, *(pytest.param(size, marks=pytest.mark.slow) for size in (511, 512, 700))]
)
def test_of_a_long_text_it_reads_the_end(made, length):
    prompt = [5 + 37 * index % 900 for index in range(length)]
    with made.opened() as engine:
        text_of(engine, prompt, sampling=GREEDY, max_tokens=12)
        loop, head = inside.loop(engine), inside.models(engine).head
        assert head.begins_at == max(0, length - 512)
        assert_reads_rightly(engine, made)
        # Plain decoding does not wait for it, nor do more tokens than it can still read.
        loop.draft_policy = FixedDraftPolicy(0)
        text_of(engine, loop.tokens, sampling=GREEDY, max_tokens=100)
        assert_reads_rightly(engine, made)


def test_the_end_of_the_context(made):
    """Text and masks never take more than there is."""
    options = LlamaOptions(context_length=256, flash_attention="off")
    texts = []
    for count in (0, 8):
        with made.opened(draft_tokens=count, target_options=options) as engine:
            prompt = [5 + 37 * index % 900 for index in range(230)]
            answer = engine.generate_raw(prompt, max_tokens=26, sampling=GREEDY, stop=[])
            texts.append(answer.reply().token_ids)
    assert texts[0] == texts[1]


def test_a_constrained_text(made):
    """What the constraint says of a text does not depend on who drafts it."""
    texts = []
    for count in (0, 4):
        with made.opened(draft_tokens=count) as engine:
            answer = engine.generate_raw(
                PROMPT, max_tokens=24, sampling=SAMPLED, seed=3, regex="[a-z ]{5,20}"
            )
            texts.append(answer.reply().text)
    assert texts[0] == texts[1]


def test_a_block_is_never_longer_than_the_head_was_trained_for(made):
    assert made.block.most_tokens == BLOCK_SIZE - made.block.first_row
    with made.opened(draft_tokens=16) as engine:
        reply = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY).reply()
        assert reply.token_ids == made.plain
        assert sum(reply.stats.steps_per_length[made.block.most_tokens + 1 :]) == 0
