"""Conversations side by side in one context, each in a lane: going back to one is exact, and
copies nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import inside
import localspec
from engines import Owner, answered
from localspec.errors import OptionError
from localspec.llama.kv_cache import Cache
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions


@pytest.mark.parametrize("attention", ["on", "off"])
def test_rows_of_a_sequence_are_those_of_a_context_of_its_own(cache_kind_file, attention):
    """Bit for bit, through changes, cuts and a copy from another sequence."""
    options = LlamaOptions(
        context_length=200, flash_attention=attention, max_outputs=4, num_snapshots=3
    )
    one = LlamaModel.open(cache_kind_file, options)
    first = LlamaModel.open(cache_kind_file, replace(options, num_sequences=3))
    assert (first.num_sequences, first.context_length) == (3, one.context_length)
    many = [first, first.sibling(1), first.sibling(2)]
    random = np.random.default_rng(0)
    texts = [random.integers(5, 900, size).tolist() for size in (40, 90, 7)]
    more, cuts = [11, 12, 13], (2, 1, 3)

    def steps(model, number):
        """Each part of what happens to a text, and the rows that it gives."""
        yield model.decode(texts[number], 1).copy()
        yield model.decode(more, 3).copy()
        model.truncate(model.num_cached - min(cuts[number], model.max_rollback))
        yield np.float32([model.num_cached])
        yield model.decode([17, 18], 2).copy()

    alone = []
    for number in range(3):
        one.truncate(0)
        alone.append(list(steps(one, number)))
    runs = [steps(many[number], number) for number in range(3)]
    for place in range(4):
        for number in (0, 2, 1):
            np.testing.assert_array_equal(next(runs[number]), alone[number][place])
    many[0].restore_state(many[1].cache.save_state())
    expected = one_more(one, steps(one, 1), more)
    np.testing.assert_array_equal(many[0].decode(more, 1), expected)
    many[2].truncate(0)  # and the others stay
    np.testing.assert_array_equal(many[1].decode(more, 1), expected)
    one.close()
    first.close()


def one_more(model, steps, more):
    """The row after these tokens behind the steps of a text."""
    model.truncate(0)
    list(steps)
    return model.decode(more, 1).copy()


@pytest.mark.parametrize("parallel", [1, 3])
def test_what_is_said_is_what_a_fresh_engine_says(cache_kind_file, parallel):
    """Five conversations in so many lanes: changes, beginnings that are shared, cuts back
    to an earlier question, and texts that are copied out.
    """
    random = np.random.default_rng(1)
    system = random.integers(5, 900, 60).tolist()
    with (
        localspec.load(
            target=cache_kind_file, draft=cache_kind_file, context_length=512, parallel=parallel
        ) as engine,
        localspec.load(
            target=cache_kind_file, draft=cache_kind_file, context_length=512, kept_bytes=0
        ) as fresh,
    ):
        assert inside.models(engine).num_sequences == parallel
        owners = [Owner() for _ in range(5)]
        texts = {owner: [*system, *random.integers(5, 900, 20).tolist()] for owner in owners}
        copied = 0
        for number in range(24):
            owner = owners[random.integers(0, 5)]
            if number % 7 == 6:  # an edited question
                del texts[owner][70:]
            texts[owner] += random.integers(5, 900, 4).tolist()
            said, _ = answered(engine, owner, texts[owner])
            with inside.lent(fresh):
                pass
            assert said == answered(fresh, None, texts[owner])[0]
            texts[owner] += said
            copied = max(copied, inside.cache_pool(engine).num_bytes)
        assert copied > 0


def test_changing_over_copies_nothing(demo_target, demo_draft, monkeypatch):
    """And decodes nothing again, in target and draft; also behind a text of nobody's."""
    with localspec.load(
        target=demo_target, draft=demo_draft, context_length=512, parallel=3
    ) as engine:
        texts = {Owner(): list(range(100, 250)), Owner(): list(range(300, 450))}
        for owner, tokens in texts.items():
            tokens += answered(engine, owner, tokens)[0]
        copies = []
        monkeypatch.setattr(Cache, "save_state", copies.append)
        for _ in range(3):
            for owner, tokens in texts.items():
                tokens += [7, 8]
                said, num_decoded = answered(engine, owner, tokens)
                assert num_decoded <= 3
                tokens += said
                answered(engine, None, [5, 6, 7])
        assert copies == []
        assert inside.cache_pool(engine).num_bytes == 0


def test_a_conversation_that_ends_gives_its_sequence_back(demo_target):
    with localspec.load(
        target=demo_target, draft_tokens=0, context_length=512, parallel=2
    ) as engine:
        kept = Owner()
        answered(engine, kept, range(100, 200))
        for number in range(4):
            answered(engine, Owner(), range(200 + number, 260 + number))
            assert inside.cache_pool(engine).num_bytes == 0
            assert answered(engine, kept, [*range(100, 200), 7 + number])[1] <= 2


def test_sequences_are_counted_and_bounded_by_what_is_kept(demo_target):
    options = {"target": demo_target, "draft_tokens": 0, "context_length": 512}
    with localspec.load(**options) as engine:
        alone = engine.memory()
    with localspec.load(**options, parallel=3) as engine:
        memory = engine.memory()
        assert engine.context_length == 512
    reserved = memory.models.needed_bytes - alone.models.needed_bytes
    cache = alone.models.models[0].cache_bytes
    computed = memory.models.models[0].compute_bytes - alone.models.models[0].compute_bytes
    assert 0 < computed < cache
    assert reserved == 2 * cache + computed
    assert memory.most_kept_bytes == alone.most_kept_bytes - reserved
    # Half of what is kept pays for one more.
    with localspec.load(**options, parallel=3, kept_bytes=2 * reserved - 2) as engine:
        assert engine.parallel == 2
        assert engine.memory().most_kept_bytes > reserved
    with localspec.load(**options, parallel=3, kept_bytes=cache) as engine:
        assert inside.models(engine).num_sequences == 1
    for wrong in (0, 17, 2.0):
        with pytest.raises(OptionError, match=f"parallel is {wrong}"):
            localspec.load(**options, parallel=wrong)
