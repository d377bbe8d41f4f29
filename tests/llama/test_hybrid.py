"""Caches of all kinds: a state goes back to where a text was cut, or is decoded again.

What a cache holds after any cut is held against a fresh decode of the same text.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import numpy as np
import pytest

import inside
import localspec
from hybrid_maker import CACHE_KINDS, write_cache_kind, write_hybrid
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.shape import ModelShape
from localspec.llama.batch import TokenBatch
from localspec.llama.joint_decode import JointPart, decode_parts
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.planning.free_memory import MemoryRoom, Planned
from localspec.planning.memory import cache_bytes
from localspec.planning.plan import plan_layers

ALL = ("qwen35", "granitehybrid")  # with snapshots and without
KINDS = (*CACHE_KINDS, "granitehybrid")
TEXT = [5 + 37 * index % 900 for index in range(60)]


@pytest.fixture(scope="module")
def made(tmp_path_factory, demo_target):
    folder = tmp_path_factory.mktemp("hybrids")
    paths = {
        name: write_cache_kind(folder / f"{name}.gguf", demo_target, name)
        for name in CACHE_KINDS
    }
    return paths | {ALL[1]: write_hybrid(folder / "granite.gguf", demo_target, ALL[1])}


def opened(path, num_snapshots: int = 4) -> LlamaModel:
    return LlamaModel.open(
        path, LlamaOptions(context_length=256, max_outputs=17, num_snapshots=num_snapshots)
    )


def fresh_rows(path, tokens, num_rows):
    model = opened(path)
    rows = model.decode(tokens, num_rows).copy()
    model.close()
    return rows


def assert_goes_on_like_a_fresh_decode(model, path, tokens) -> None:
    """After its cache was cut: what it lacks is decoded, and two more tokens."""
    more = [*tokens, 11, 12]
    rows = model.decode(more[model.num_cached :], 2)
    np.testing.assert_allclose(rows, fresh_rows(path, more, 2), atol=2e-3)


@pytest.mark.parametrize("name", KINDS)
def test_the_header_says_what_libllama_does(made, name):
    shape = ModelShape(check_model_file(made[name]))
    model = opened(made[name])
    assert (model.max_rollback > 0) is shape.can_roll_back
    assert shape.can_roll_back is (name not in ("mamba", "granitehybrid"))
    if name == "qwen35":
        assert model.max_rollback == 4
    model.close()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("num_taken", range(8))
def test_cut_within_the_last_decode(made, name, num_taken):
    """Up to the snapshots it goes back as far; beyond, all is decoded again."""
    model = opened(made[name])
    model.decode(TEXT[:30], 1)
    model.decode(TEXT[30:38], 8)
    model.truncate(38 - num_taken)
    is_kept = num_taken == 0 or num_taken <= model.max_rollback
    assert model.num_cached == (38 - num_taken if is_kept else 0)
    assert_goes_on_like_a_fresh_decode(model, made[name], TEXT[: 38 - num_taken])
    model.close()


def test_snapshots_are_of_the_last_decode_and_of_use_once(made):
    """libllama says yes to the second cut, and to one behind decodes of a token each."""
    model = opened(made["qwen35"])
    model.decode(TEXT[:30], 1)
    model.truncate(28)
    assert model.num_cached == 28
    model.truncate(27)
    assert model.num_cached == 0
    assert_goes_on_like_a_fresh_decode(model, made["qwen35"], TEXT[:27])
    model.truncate(0)
    model.decode(TEXT[:30], 1)
    for token in TEXT[30:33]:
        model.decode([token], 1)
    model.truncate(31)
    assert model.num_cached == 0
    assert_goes_on_like_a_fresh_decode(model, made["qwen35"], TEXT[:31])
    model.close()


@pytest.mark.parametrize("name", ALL)
def test_back_to_a_checkpoint(made, name):
    model = opened(made[name])
    model.decode(TEXT[:30], 1)
    model.checkpoint()
    for length in (45, 40, 50):  # more than once
        model.decode(TEXT[model.num_cached : 55], 1)
        model.truncate(length)
        assert model.num_cached == 30
        assert_goes_on_like_a_fresh_decode(model, made[name], TEXT[:length])
    model.truncate(29)
    assert model.num_cached == 0  # that text was never the checkpoint's
    model.decode(TEXT[:20], 1)
    model.truncate(10)
    assert model.num_cached == 0
    model.close()


def stop_half_way(model, tokens):
    """A decode that is interrupted when libllama has begun it."""
    filled, graphs = TokenBatch.filled, []

    def interrupt(*given):
        graphs.append(given)
        batch = filled(*given)
        model.interrupt()  # libllama asks at the first node of its graph
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenBatch, "filled", interrupt)
        with pytest.raises(localspec.errors.Interrupted):
            model.decode(tokens, 1)
    model.make_ready()
    assert graphs


@pytest.mark.parametrize("name", ALL)
def test_a_decode_that_was_stopped_half_way_is_not_believed(made, name):
    model = opened(made[name])
    model.decode(TEXT[:30], 1)
    model.checkpoint()
    model.decode(TEXT[30:33], 1)
    stop_half_way(model, TEXT[33:36])  # no more than snapshots would take back
    assert model.num_cached == 30
    assert_goes_on_like_a_fresh_decode(model, made[name], TEXT[:33])
    model.close()


@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_of_another_text_is_none_of_this_one(made, name):
    """Snapshots bring it back to before the checkpoint, and a later decode is stopped."""
    model = opened(made[name])
    model.decode(TEXT[:10], 1)
    model.checkpoint()
    model.truncate(8)
    other = [*TEXT[:8], *TEXT[20:40]]
    model.decode(other[model.num_cached : 25], 1)
    stop_half_way(model, other[25:])
    assert model.num_cached == 0
    assert_goes_on_like_a_fresh_decode(model, made[name], other)
    model.close()


@pytest.mark.parametrize("name", KINDS)
def test_states_are_kept_also_behind_a_cut(made, name):
    model = opened(made[name])
    model.decode(TEXT[:30], 1)
    model.truncate(28)
    model.decode(TEXT[model.num_cached : 28] or TEXT[28:30], 1)
    length = model.num_cached
    state = model.cache.save_state()
    model.truncate(0)
    model.decode([700] * 20, 1)
    model.restore_state(state)
    assert model.num_cached == length
    model.truncate(length - 1)
    # A recurrent state that was put back has no snapshots.
    assert model.num_cached == (0 if name in ("mamba", *ALL) else length - 1)
    assert_goes_on_like_a_fresh_decode(model, made[name], TEXT[: length - 1])
    model.close()


def test_a_hybrid_draft_reads_only_what_was_accepted(made):
    """Not its whole text again, nor what was refused: it goes back to where it drafted."""
    with localspec.load(
        target=made["qwen35"], draft=made["granitehybrid"], draft_tokens=4, proposer="draft"
    ) as engine:
        with inside.lent(engine) as loop:
            reads, learn = [], loop.draft_policy
            inside.loop(engine).draft_policy = Recorder(learn, reads)
        sampling = localspec.SamplingParams(temperature=0)
        stream = engine.generate_raw(TEXT[:30], sampling=sampling, max_tokens=20)
        assert sum(len(piece.token_ids) for piece in stream) == 20
    assert len(reads) > 4
    assert max(reads[1:]) <= 4 + 1  # what a step accepted, and the pending token


def test_as_many_snapshots_as_there_is_memory_for(made):
    """Else fewer; of a model that keeps none there are none."""
    header = check_model_file(made["qwen35"])
    whole = MemoryRoom(main_bytes=10**10, gpus=(), repacked={})
    memory = plan_layers([Planned(header)], 256, whole).memory
    assert memory.models[0].num_snapshots == 8
    without = plan_layers([Planned(header, LlamaOptions(num_snapshots=0))], 256, whole).memory
    assert without.models[0].snapshot_bytes == 0
    snapshots = memory.needed_bytes - without.needed_bytes
    assert snapshots == memory.models[0].snapshot_bytes > 0
    tight = replace(whole, main_bytes=without.needed_bytes + snapshots // 3)
    plan = plan_layers([Planned(header)], 256, tight)
    assert plan.memory.models[0].num_snapshots == 2
    assert not tight.shortages(plan.memory)
    granite = plan_layers([Planned(check_model_file(made["granitehybrid"]))], 256, whole)
    assert granite.memory.models[0].num_snapshots == 0


def test_snapshots_take_what_is_said(made, caplog):
    """As libllama says it when it allocates them."""
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        opened(made["qwen35"], num_snapshots=6).close()
    said = re.search(r"6 rs_seq\), R.*: +([\d.]+) MiB, S.*: +([\d.]+) MiB, P", caplog.text)
    states = sum(map(float, said.groups())) * 2**20
    options = LlamaOptions(context_length=256, num_snapshots=6)
    header = check_model_file(made["qwen35"])
    with_states = cache_bytes(header, options)
    keys = cache_bytes(header, replace(options, num_snapshots=0)) - states / 7
    assert with_states - keys == pytest.approx(states, rel=0.05)


def side_by_side(path, count):
    """Models of so many texts in one context."""
    first = LlamaModel.open(
        path,
        LlamaOptions(context_length=256, max_outputs=17, num_snapshots=4, num_sequences=count),
    )
    return [first, *(first.sibling(number) for number in range(1, count))]


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_joint_decode_leaves_others_what_they_can_go_back_to(made, is_settled):
    """libllama moves states for it, and leaves snapshots where they were.

    is_settled: whether the text was cut since its last decode. If not, it may still want its
    snapshots, and others are not joined; else it reads again what they would have spared.
    """
    models = side_by_side(made["qwen35"], 3)
    for number in (0, 2, 1):  # so that the last lies between the others
        models[number].decode(TEXT[number : 20 + number], 1)
        models[number].truncate(20)
    models[2].decode(TEXT[40:44], 4)
    if is_settled:
        models[2].truncate(24)
    before = models[0].handle.num_decodes
    for _ in range(3):
        parts = [JointPart(model, [7], 1) for model in models[:2]]
        decode_parts(parts)
        for part in parts:
            assert part.error is None
            part.model.truncate(part.model.num_cached)
    assert (models[0].handle.num_decodes - before < 6) is is_settled
    models[2].truncate(22)
    assert models[2].num_cached == (0 if is_settled else 22)
    text = [*TEXT[2:22], *TEXT[40:42]]
    assert_goes_on_like_a_fresh_decode(models[2], made["qwen35"], text)
    for number in (0, 1):
        text = [*TEXT[number : 20 + number], 7, 7, 7]
        assert_goes_on_like_a_fresh_decode(models[number], made["qwen35"], text)
    models[0].close()


class Recorder:
    """A policy that says what its steps read."""

    def __init__(self, policy, reads) -> None:
        self._policy = policy
        self._reads = reads

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def learn(self, record) -> None:
        if record.proposer is not None:
            self._reads.append(record.num_read)
