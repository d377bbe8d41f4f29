"""A long prompt that is given up goes on where it was read to, whoever asks it again."""

from __future__ import annotations

import contextlib

import pytest

import inside
import localspec
from engines import Owner, answered
from hybrid_maker import CACHE_KINDS, write_cache_kind
from localspec.llama.library import llama_cpp
from localspec.llama.model_options import LlamaOptions

TEXT = [5 + 37 * index % 900 for index in range(700)]
GRAPH = 128  # tokens that one graph computes, without flash attention
BATCH = 512
OPTIONS = LlamaOptions(flash_attention="off")


@pytest.fixture(scope="module", params=CACHE_KINDS)
def made(request, tmp_path_factory, demo_target):
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return request.param, write_cache_kind(path, demo_target, request.param)


@contextlib.contextmanager
def aborted_at(model, position):
    """libllama aborts the first graph of the block that computes that position."""
    context, memory = model.handle.context, model.handle.memory

    def is_there(_data):
        return any(
            llama_cpp.llama_memory_seq_pos_max(memory, number) >= position
            for number in range(model.num_sequences)
        )

    callback = llama_cpp.ggml_abort_callback(is_there)
    llama_cpp.llama_set_abort_callback(context, callback, None)
    try:
        yield
    finally:
        llama_cpp.llama_set_abort_callback(context, llama_cpp.ggml_abort_callback(), None)


@pytest.mark.parametrize("is_same", [True, False])
def test_what_was_read_is_kept_for_whoever_asks_next(made, is_same):
    """The graphs before the one that was ended; of a recurrent state the batches before."""
    architecture, path = made
    options = {"target": path, "draft_tokens": 0, "context_length": 1024, "memory": False}
    with localspec.load(**options, target_options=OPTIONS) as engine:
        expected = answered(engine, Owner(), TEXT)[0]
        with inside.lent(engine):
            pass  # nothing is cached
        engine.free_kept()
        first = Owner()
        with aborted_at(inside.target(engine), BATCH + GRAPH):
            assert answered(engine, first, TEXT)[0] == ()
        is_recurrent = architecture in ("mamba", "qwen35")
        num_read = BATCH if is_recurrent else BATCH + GRAPH
        last = TEXT if is_same else [*TEXT[:-1], 7]
        said, num_decoded = answered(engine, first if is_same else Owner(), last)
        assert num_decoded == len(TEXT) - num_read
        if is_same:
            assert said == expected


@pytest.mark.parametrize("is_same", [True, False])
def test_where_several_answers_run_it_is_kept_as_well(made, is_same):
    """There a piece of a prompt is as long as others may wait for it."""
    options = {"target": made[1], "draft_tokens": 0, "context_length": 1024, "memory": False}
    with localspec.load(**options, parallel=2) as engine:
        seen: list[int] = []
        given_up = engine.generate_raw(TEXT, max_tokens=2, on_prompt=lambda num, _: stop(num))

        def stop(num_read):
            seen.append(num_read)
            given_up.cancel()

        assert given_up.reply().finish_reason == "cancelled"
        num_decoded = answered(engine, Owner() if is_same else None, TEXT)[1]
        assert 0 < num_decoded <= len(TEXT) - seen[-1]
