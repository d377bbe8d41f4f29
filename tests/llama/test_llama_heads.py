"""Heads and drafts of every kind: texts are those of plain decoding, and what a head reads is
what llama.cpp's own driver gives it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools

import numpy as np
import pytest

import inside
import localspec
from engines import Owner, answer_of, answered, assert_drafts_at_once_as_alone, resumed
from head_maker import (
    ALL,
    EAGLE,
    INSIDE,
    LAYERS_READ,
    MASK,
    NUM_CANDIDATES,
    NUM_HEADS,
    BlockHead,
    write_block_head,
    write_head_model,
    write_medusa_heads,
)
from head_reference import BlockReference, EagleReference, MedusaReference, MtpReference
from hybrid_maker import write_cache_kind, write_hybrid
from localspec.errors import Interrupted
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head_facts import head_facts
from localspec.llama.library import llama_cpp
from localspec.llama.model_options import LlamaOptions
from localspec.presets.located import locate
from localspec.presets.presets import find_preset
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.model_api import result_of
from localspec.speculative.policy_api import DraftOff, FixedDraftPolicy
from simulated import num_changes

CONTEXT = 1024
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = [5 + 37 * index % 900 for index in range(30)]
# The target's architecture, and the head.
BLOCKS = {
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
MEDUSA = ("medusa", "medusa, some tokens")
HYBRIDS = ("qwen35", "of a hybrid")  # whose state cannot be cut


class Made:
    """Files of a target and its head. head: None if it is in the target's file."""

    head = reference = None
    can_roll_back = True
    atol = 2e-3

    def opened(self, **keywords):
        options = LlamaOptions(context_length=CONTEXT, flash_attention="off")
        usual = {"proposer": "head", "target_options": options, "draft_tokens": 3}
        if self.head is not None:
            usual["head"] = self.head
        return localspec.load(target=self.path, **usual | keywords)

    @functools.cached_property
    def plain(self):
        """The greedy text of the target alone."""
        with self.opened(proposer="none") as engine:
            return text_of(engine, sampling=GREEDY)

    def begins_at(self, length):
        """Where it begins to read a prompt of that length; None if it need not be told."""
        return


class MadeWithSteps(Made):
    """A head that drafts token by token: MTP layers, or EAGLE-3."""

    most = 16

    def __init__(self, folder, tokenizer_of, name):
        self.name = name
        self.path = write_head_model(folder / "target.gguf", tokenizer_of, name)
        own = write_head_model(folder / "head.gguf", tokenizer_of, name, part="head")
        self.head = None if name in INSIDE else own
        if name in EAGLE:
            self.reference = EagleReference(self.path, own, layers=LAYERS_READ)
        else:
            self.reference = MtpReference(
                self.path,
                self.head,
                num_chained=NUM_HEADS.get(name, 1),
                shares_cache=name == "gemma4",
            )
        self.rows = functools.cache(self.reference.rows)  # many tests end with the same text
        self.most = NUM_HEADS.get(name, 1) if NUM_HEADS.get(name, 1) > 1 else 16

    def begins_at(self, length):
        if self.name in EAGLE:
            return max(1, length - 511)
        return None if self.name == "gemma4" else 0 if length <= 512 else length - 511

    def says(self, proposer, tokens, _head):
        """What the head says of the next token and behind two more; what it should say."""
        drafted = [17, 251]
        rows = [inside.row_of(proposer, [*tokens, *drafted[:n]]) for n in range(3)]
        return rows, self.rows(tuple(tokens), tuple(drafted), proposer.begins_at)


class MadeWithBlocks(Made):
    """A DFlash head, DSpark and DFlash2 included."""

    atol = 1e-2  # keys and values are kept in half precision

    def __init__(self, folder, tokenizer_of, name):
        self.name = name
        architecture, head = BLOCKS[name]
        self.path = write_head_model(folder / "target.gguf", tokenizer_of, architecture)
        self.head = write_block_head(folder / "head.gguf", self.path, head)
        self.block = head_facts(check_model_file(self.head)).block
        self.most = self.block.most_tokens
        self.reference = BlockReference(
            self.path,
            self.head,
            layers=LAYERS_READ,
            mask=MASK,
            is_causal=head.is_causal,
            is_cropped=head.kind != "dflash2",
        )
        self.decoded = functools.cache(self.reference.block)

    def begins_at(self, length):
        return max(0, length - 512)

    def says(self, _proposer, tokens, head, size=5):
        """What a block says, and what it should say; its confidences are compared here."""
        first = self.block.first_row
        head.decode_block(tokens[head.begins_at + head.num_cached :], size)
        logits, given = self.decoded(tuple(tokens), size + first, head.begins_at)
        rows, expected, drafted = [], [], []
        for index in range(size):
            rows.append(head.row(drafted).copy())
            wanted = logits[first + index]
            if self.block.num_candidates:
                wanted = pairs_row(given[first:], drafted, len(wanted))
            expected.append(wanted)
            if self.block.has_confidences:
                assert 0.0 < head.confidence(index) < 1.0
                expected_one = given[first + index, 0]
                assert head.confidence(index) == pytest.approx(expected_one, abs=1e-3)
            else:
                assert head.confidence(index) is None
            # Any token that could be drawn, not the likeliest only.
            drafted.append(int(np.argsort(-wanted)[index % NUM_CANDIDATES]))
        return rows, expected


def pairs_row(given, drafted, vocab_size):
    """What DFlash2's selector says of a token, read as llama.cpp's driver reads it."""
    index, count = len(drafted), NUM_CANDIDATES
    before = 0
    if drafted:
        before = [int(token) for token in given[index - 1, :count]].index(drafted[-1])
    scores = given[index, count:].reshape(-1)[before * count : (before + 1) * count]
    row = np.full(vocab_size, -np.inf, dtype=np.float32)
    row[given[index, :count].astype(int)] = scores
    return row


class MadeWithMedusa(Made):
    """Medusa heads, which know where the target's own tokens lead."""

    atol = 2e-2
    most = 4

    def __init__(self, folder, tokenizer_of, name):
        self.name = name
        self.path = write_head_model(folder / "target.gguf", tokenizer_of, "llama")
        self.head = write_medusa_heads(
            folder / "head.gguf", self.path, knows_some=name == MEDUSA[1]
        )
        self.reference = MedusaReference(self.path, self.head)
        self.rows = functools.cache(self.reference.rows)

    def says(self, _proposer, tokens, head):
        """What the heads say now, and what they should say."""
        head.decode_block(tokens[head.begins_at + head.num_cached :], self.most)
        head.row([])[:] = 7.0  # rows may be written to
        rows = [head.row([0] * n).copy() for n in range(self.most)]
        return rows, self.rows(tuple(tokens), self.most)


class MadeWithDraft(Made):
    """A draft model whose cache, or its target's, cannot always be cut."""

    def __init__(self, folder, tokenizer_of, name):
        self.name = name
        self.path, self.draft = folder / "target.gguf", folder / "draft.gguf"
        if name == "draft of a window":
            for path in (self.path, self.draft):
                write_cache_kind(path, tokenizer_of, "gemma3")
        else:
            target, _, draft = name.partition(" for ")[::-1]
            write_hybrid(self.path, tokenizer_of, target)
            write_hybrid(self.draft, tokenizer_of, draft)
        self.can_roll_back = not name.endswith("granitehybrid")

    def opened(self, **keywords):
        options = LlamaOptions(context_length=CONTEXT, flash_attention="off")
        usual = {"proposer": "draft", "target_options": options, "draft_tokens": 3}
        return localspec.load(target=self.path, draft=self.draft, **usual | keywords)


DRAFTS = (
    "draft of a window",
    "granitehybrid for qwen35",
    "qwen35 for granitehybrid",
)
KINDS = {
    **dict.fromkeys(DRAFTS, MadeWithDraft),
    **dict.fromkeys((*ALL, *EAGLE), MadeWithSteps),
    **dict.fromkeys(BLOCKS, MadeWithBlocks),
    **dict.fromkeys(MEDUSA, MadeWithMedusa),
}


# Others differ little from one of these.
QUICK = (*DRAFTS, "glm4moe", "step35", "gemma4", "llama", "of a hybrid", "of a windowed target",
         "pairs of candidates", "medusa, some tokens")  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in KINDS
    ],
)
def made(request, tmp_path_factory, demo_target):
    folder = tmp_path_factory.mktemp("heads")
    one = KINDS[request.param](folder, demo_target, request.param)
    yield one
    if one.reference is not None:
        one.reference.close()


def only(made, *kinds):
    if not isinstance(made, kinds):
        pytest.skip("of other kinds")


def assert_reads_rightly(engine, made, loop=None) -> None:
    """What the head says now, of several tokens in a row, is what it should."""
    if isinstance(made, MadeWithDraft):
        return
    loop = loop or inside.loop(engine)
    lane = next(each for each in inside.lanes(engine) if each.decoder is loop)
    lane.make_ready()  # the last answer may have been stopped
    proposer, tokens = loop.proposers[0], loop.tokens
    if loop.target.num_cached == len(tokens):  # cut within a step
        tokens = [*tokens, 33]
    state = proposer.state(tokens)
    if loop.target.num_cached < len(tokens) - 1:  # back at a checkpoint: a decode was cut short
        assert made.name in HYBRIDS
        assert state.draft_off is DraftOff.HEAD_LACKS_ROWS
        return
    if state.draft_off is DraftOff.HEAD_LACKS_ROWS:  # Medusa's target gave none of its prompt
        assert not isinstance(made, MadeWithSteps)
        return
    assert state.max_tokens >= 3
    rows, expected = map(np.array, made.says(proposer, tokens, lane.models.head))
    assert expected[np.isfinite(expected)].std() > 0.05
    np.testing.assert_allclose(rows, expected, atol=made.atol)
    proposer.truncate(len(loop.tokens))


def text_of(engine, prompt=PROMPT, **keywords):
    return engine.generate_raw(prompt, **({"max_tokens": 40} | keywords)).reply().token_ids


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 5, 16])
def test_greedy_text_is_plain_and_the_head_reads_rightly(made, num_draft_tokens):
    with made.opened(draft_tokens=num_draft_tokens) as engine:
        stats = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY).reply().stats
        assert tuple(inside.loop(engine).tokens[len(PROMPT) :]) == made.plain
        assert (stats.num_draft_tokens > 0) is made.can_roll_back
        if isinstance(made, MadeWithDraft):
            return
        assert 0 < stats.num_accepted < stats.num_draft_tokens
        most = min(num_draft_tokens, made.most)
        assert stats.steps_per_length[most] > 0
        assert sum(stats.steps_per_length[most + 1 :]) == 0
        assert_reads_rightly(engine, made)


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8])
def test_decodes_may_keep_their_sizes(made, num_draft_tokens, monkeypatch):
    """With rows and without, for each context: libllama keeps a graph of either kind."""
    sizes, real = collections.defaultdict(list), llama_cpp.llama_decode

    def decode(context, batch):
        num_rows = sum(batch.logits[: batch.n_tokens])
        sizes[context, num_rows > 0].append((batch.n_tokens, num_rows))
        return real(context, batch)

    with made.opened(draft_tokens=num_draft_tokens) as engine:
        inside.loop(engine).draft_policy.keeps_sizes = True
        assert text_of(engine, sampling=GREEDY) == made.plain
        assert_reads_rightly(engine, made)
        monkeypatch.setattr(llama_cpp, "llama_decode", decode)
        num_steps = 0
        for number in range(3):
            options = {"sampling": SAMPLED, "seed": number}
            reply = engine.generate_raw(PROMPT, max_tokens=100, **options).reply()
            num_steps += reply.stats.num_steps
            assert_reads_rightly(engine, made)
    # A graph for each layer; a draft that cannot be cut back.
    if made.name not in ("step35", DRAFTS[1]):
        for of_context in sizes.values():
            # Reading a prompt, and what is compared here.
            assert num_changes(of_context) <= 0.02 * num_steps + 12, of_context


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


def test_conversations_side_by_side_each_find_the_heads_part_again(made):
    has_cache = isinstance(made, MadeWithSteps) and made.name != "gemma4"
    is_head = not isinstance(made, MadeWithDraft)
    with made.opened(parallel=2) as engine:
        assert engine.parallel == 2
        texts = {Owner(): PROMPT[:], Owner(): [*PROMPT[::-1], 7, 8, 9]}
        read = dict.fromkeys(texts, 0)
        for turn in range(3):
            for owner, tokens in texts.items():
                if turn and has_cache:
                    assert inside.lane(engine, owner).models.head.num_cached == read[owner]
                said, num_decoded = answered(engine, owner, tokens, max_tokens=20)
                assert turn == 0 or num_decoded == 1
                tokens += said
                lane = inside.lane(engine, owner)
                assert_reads_rightly(engine, made, lane.decoder)
                if is_head:
                    read[owner] = lane.models.head.num_cached
        said = next(iter(texts.values()))[len(PROMPT) :]
        assert tuple(said[: len(made.plain)]) == made.plain


def test_caches_on_disk_have_the_heads_part(made, tmp_path):
    with resumed(made.opened, tmp_path / "x.caches", PROMPT) as engine:
        assert_reads_rightly(engine, made)


def test_answers_at_once_are_each_drafted_as_well_as_alone(made):
    if not made.can_roll_back:
        pytest.skip("nothing is drafted for it")
    assert_drafts_at_once_as_alone(made, PROMPT)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_head_goes_on_where_an_answer_begins_with_a_copy(made, goes_on):
    """It has what another's has read, and the rows to read on with.

    A target with a sliding window can go back in no text, so only all of one is copied.
    """
    only(made, MadeWithSteps)
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
        head = lane.models.head
        assert head.begins_at == (made.name in EAGLE)
        assert head.num_cached >= len(PROMPT)
        answered(engine, second, [*text, 8], max_tokens=10)
        assert lane.decoder.proposers[0].state(lane.decoder.tokens).num_skipped == 0
        assert_reads_rightly(engine, made, lane.decoder)


def test_a_stopped_decode_leaves_the_head_as_it_was(made):
    only(made, MadeWithSteps, MadeWithBlocks)  # Medusa decodes nothing
    with made.opened() as engine:
        text_of(engine, sampling=GREEDY)
        loop, head = inside.loop(engine), inside.models(engine).head
        assert loop.proposers[0].state(loop.tokens).max_tokens >= 3
        head.interrupt()
        with pytest.raises(Interrupted):
            made.says(loop.proposers[0], loop.tokens, head)
        head.make_ready()
        assert_reads_rightly(engine, made)


def test_after_a_replay_the_head_reads_rightly(made):
    only(made, MadeWithSteps, MadeWithBlocks, MadeWithMedusa)
    if made.name == "gemma4":
        pytest.skip("it reads nothing that a replay could be judged by")
    with made.opened() as engine:
        text_of(engine, sampling=GREEDY, draft_tokens=0)
        loop = inside.loop(engine)
        chain = SamplerChain(GREEDY, num_prompt_tokens=len(PROMPT))
        assert loop.proposers[0].state(loop.tokens).num_unjudged >= min(made.most, 8)
        found = result_of(loop.proposers[0].replay(loop.tokens, [1.0] * 40, chain))
        assert 0 < len(found.chances) <= 8
        assert_reads_rightly(engine, made)


@pytest.mark.parametrize(
    "length", [513, *(pytest.param(size, marks=pytest.mark.slow) for size in (511, 512, 700))]
)
def test_of_a_long_text_it_reads_the_end(made, length):
    prompt = [5 + 37 * index % 900 for index in range(length)]
    with made.opened() as engine:
        text_of(engine, prompt, sampling=GREEDY, max_tokens=12)
        loop = inside.loop(engine)
        if (begins_at := made.begins_at(length)) is not None:
            assert inside.models(engine).head.begins_at == begins_at
        assert_reads_rightly(engine, made)
        # Plain decoding does not wait for it, nor do more tokens than it can still read.
        loop.draft_policy = FixedDraftPolicy(0)
        text_of(engine, loop.tokens, sampling=GREEDY, max_tokens=100)
        assert_reads_rightly(engine, made)


def test_the_end_of_the_context(made):
    """Text and drafts never take more than there is."""
    options = LlamaOptions(context_length=256, flash_attention="off")
    texts = []
    for count in (0, 8):
        with made.opened(draft_tokens=count, target_options=options) as engine:
            prompt = [5 + 37 * index % 900 for index in range(230)]
            answer = engine.generate_raw(prompt, max_tokens=26, sampling=GREEDY, stop=[])
            texts.append(answer.reply().token_ids)
    assert texts[0] == texts[1]


def test_a_head_in_a_file_of_its_own_says_the_same(made, tmp_path, demo_target):
    if made.name not in INSIDE:
        pytest.skip("it has no other")
    own = write_head_model(tmp_path / "head.gguf", demo_target, made.name, part="head")
    rows = []
    for keywords in ({}, {"head": own}):
        with made.opened(**keywords) as engine:
            text_of(engine, sampling=GREEDY)
            loop = inside.loop(engine)
            rows.append(inside.row_of(loop.proposers[0], loop.tokens))
    np.testing.assert_allclose(*rows, atol=1e-5)


def test_medusa_leaves_the_targets_logits_as_they_are(made):
    """Rows of the prompt are not there, so the first step behind it is a plain one."""
    only(made, MadeWithMedusa)
    rows = []
    for proposer in ("none", "head"):
        with made.opened(proposer=proposer) as engine:
            target = inside.models(engine).target
            target.decode(list(range(5, 35)), 1)
            rows.append(target.decode([7, 8, 9], 3).copy())
    np.testing.assert_array_equal(*rows)
    with made.opened() as engine:
        stats = engine.generate_raw(PROMPT, max_tokens=3, sampling=GREEDY).reply().stats
        assert stats.steps_per_length[0] >= 2
        assert {off.value for off in stats.draft_off_steps} == {"head_lacks_rows"}


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


class Resting(FixedDraftPolicy):
    """Lets all proposers rest between the 10th and the 90th token behind the prompt."""

    num_done = 0

    def reset(self):
        self.num_done = 0

    def pause_left(self, proposer):
        return 100 - self.num_done if 10 <= self.num_done < 100 else 0

    def learn(self, record):
        self.num_done += record.num_emitted


def test_of_a_head_that_rests_long_the_target_gives_no_rows(made, monkeypatch):
    """It reads the last tokens of its rest when it drafts again, and those rightly."""
    only(made, MadeWithSteps, MadeWithBlocks, MadeWithMedusa)
    with made.opened(draft_tokens=3) as engine:
        loop = inside.loop(engine)
        plain = text_of(engine, max_tokens=160, sampling=SAMPLED, seed=3)
        rows, taken = inside.target(engine).kept_rows, []
        set_output = rows.set_output

        def noted(*, is_on):
            taken.append(is_on)
            set_output(is_on=is_on)

        monkeypatch.setattr(rows, "set_output", noted)
        loop.draft_policy = Resting(3, keeps_sizes=True)
        reply = engine.generate_raw(PROMPT, max_tokens=160, sampling=SAMPLED, seed=3).reply()
        assert reply.token_ids == plain
        if len(plain) == 160:
            assert 40 < taken.count(False) < 70
            assert reply.stats.num_draft_tokens > 0
        assert_reads_rightly(engine, made)
        assert text_of(engine, sampling=GREEDY) == made.plain
