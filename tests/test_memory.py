"""The memory estimate against what libllama says it allocates, and what a process takes."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import re
import sys
from collections import defaultdict
from typing import get_args

import llama_cpp
import pytest

from gguf_maker import write_random_model
from hollow_model import SHAPES, simulate_load, write_hollow_model
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import (
    bytes_per_value,
    repacked_types,
    type_name,
    type_number,
)
from localspec.llama import native
from localspec.llama.library import system_info
from localspec.llama.model import LlamaModel
from localspec.llama.options import CacheType, LlamaOptions, graph_batch_size
from localspec.llama.placement import place_layers
from localspec.preflight.free_memory import Planned, free_memory, pair_memory
from localspec.preflight.memory import cache_bytes, estimate_memory, graph_bytes
from shape_pair.bigrams import TextSpec
from shape_pair.pair import PairSpec, make_pair
from spawned import measured_peak_bytes

_MIB = 1 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory, demo_target):
    """Model files of different shapes, by name."""
    folder = tmp_path_factory.mktemp("shapes")
    text = TextSpec(entropy=0.0, agreement=(0.9,), segment=64, period=64, seed=1)
    shared_heads, _ = make_pair(PairSpec("tiny", "tiny", "Q4_0", "Q4_0", text), folder)
    return {
        "demo": demo_target,
        "few key heads": shared_heads,
        "K-quants": make_pair(PairSpec("tiny", "tiny", "Q4_K_M", "Q4_K", text), folder)[0],
        "odd context": write_random_model(
            folder / "odd.gguf", demo_target, width=192, num_layers=3, context_length=300
        ),
        **{
            kind: write_random_model(
                folder / f"{kind}.gguf", demo_target, width=192, num_layers=3, quantization=kind
            )
            for kind in ("F16", "Q8_0")
        },
        "mamba": write_random_model(
            folder / "mamba.gguf", demo_target, architecture="mamba", num_layers=2
        ),
    }


def logged_bytes(messages) -> dict[str, float]:
    """What libllama logs of its buffers, summed by what they hold."""
    sizes: dict[str, float] = defaultdict(float)
    for message in messages:
        if found := re.search(r"(\S+) (\w+) buffer size = +([\d.]+) MiB", message):
            name = "repacked" if found[1] in ("CPU_REPACK", "AMX") else found[2]
            sizes[name] += float(found[3]) * _MIB
    return sizes


def not_kept_bytes(header, context_length, attention):
    """What an older libllama takes less for the tokens' embeddings."""
    if hasattr(llama_cpp.llama_context_params, "moe_cache_size"):
        return 0
    shape = ModelShape(header)
    count = shape.num_layers
    rows = 1 if attention == "off" else min(5, 2 * count - 1) - min(4, count)
    return rows * shape.width * graph_batch_size(attention, context_length) * 4


def in_main_memory(header, options, repacked):
    placement = place_layers(header, options, (), ())
    return estimate_memory(header, options, repacked, placement)


@pytest.mark.parametrize("attention", ["auto", "off"])
@pytest.mark.parametrize("max_outputs", [1, 17])
@pytest.mark.parametrize(
    ("name", "key_type"),
    [
        ("demo", "f16"), ("few key heads", "f16"), ("K-quants", "f16"),
        ("odd context", "bf16"), ("F16", "q4_1"), ("Q8_0", "f32"), ("mamba", "f16"),
    ],
)  # fmt: skip
def test_the_parts_are_what_libllama_allocates(
    made, caplog, name, key_type, max_outputs, attention
):
    path = made[name]
    header = check_model_file(path)
    context_length = 300 if name == "odd context" else 1000
    options = LlamaOptions(
        context_length=context_length,
        max_outputs=max_outputs,
        num_threads=1,
        flash_attention=attention,
        cache_type_k=key_type,
    )
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        LlamaModel.open(path, options).close()
    real = logged_bytes(caplog.messages)
    found = in_main_memory(header, options, repacked_types(system_info()))
    assert found.cache_bytes == pytest.approx(real["KV"] + real["RS"], abs=0.02 * _MIB)
    grown = found.weights_bytes - header.weights_bytes  # not zero with AMX alone
    stored_anew = found.repacked_bytes + grown
    assert stored_anew == pytest.approx(real["repacked"], abs=0.02 * _MIB)
    if name != "mamba":
        graph = graph_bytes(header, context_length, max_outputs, attention)
        graph -= not_kept_bytes(header, context_length, attention)
        assert graph == pytest.approx(real["compute"], rel=0.02)
        assert found.compute_bytes > graph
    mapped = real["model"]  # from the first to the last tensor that is not repacked
    assert mapped <= found.weights_bytes + 0.01 * _MIB


@pytest.mark.parametrize("attention", ["auto", "off"])
@pytest.mark.parametrize("context_length", [300, 8192, 131072])
@pytest.mark.parametrize("name", SHAPES)
def test_models_of_real_shape_take_what_libllama_would_allocate(
    tmp_path, demo_target, caplog, name, context_length, attention
):
    path = write_hollow_model(tmp_path / "hollow.gguf", demo_target, SHAPES[name])
    header = check_model_file(path)
    options = LlamaOptions(
        context_length=context_length, max_outputs=17, flash_attention=attention
    )
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        simulate_load(path, options)
    caches = [re.search(r"kv_cache: size = +([\d.]+) MiB", line) for line in caplog.messages]
    real = sum(float(found[1]) for found in caches if found) * _MIB
    assert cache_bytes(header, options) == pytest.approx(real, abs=0.02 * _MIB)
    graph = graph_bytes(header, context_length, 17, attention)
    graph -= not_kept_bytes(header, context_length, attention)
    # What is off in a short context is gaps between tensors.
    assert graph == pytest.approx(
        logged_bytes(caplog.messages)["compute"], rel=0.05, abs=3 * _MIB
    )


def test_types_are_libllamas():
    """Names, sizes and numbers, of every type that this build of it has."""
    number, size = ctypes.c_int, ctypes.c_size_t
    name_of = native.ggml_function(llama_cpp, "ggml_type_name", ctypes.c_char_p, number)
    size_of = native.ggml_function(llama_cpp, "ggml_type_size", size, number)
    row_of = native.ggml_function(llama_cpp, "ggml_row_size", size, number, ctypes.c_int64)
    kinds = [k for k in range(llama_cpp.GGML_TYPE_COUNT) if size_of(k) > 0]  # else removed
    known = {kind: name_of(kind) for kind in kinds}
    assert {kind: type_name(kind) for kind in known} == {
        kind: name.decode().upper() for kind, name in known.items()
    }
    assert type_name(999) == "type 999"
    for cached in get_args(CacheType):
        kind = type_number(cached)
        assert type_name(kind) == cached.upper()
        assert bytes_per_value(cached) * 256 == row_of(kind, 256)


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="the peak is not known there")
@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_the_estimate_is_what_a_process_takes(tmp_path, demo_target, demo_draft, name):
    """But for what the process takes for itself, some 5 MB."""
    pair, context_length = (demo_target, demo_draft), 2048
    if name == "tiny":
        text = TextSpec(entropy=0.0, agreement=(0.9,), segment=64, period=64, seed=1)
        pair = make_pair(PairSpec("tiny", "tiny", "Q8_0", "Q4_K_M", text), tmp_path)
    estimated = pair_memory(
        [Planned(check_model_file(path)) for path in pair], context_length, free_memory()
    )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured = pool.apply(measured_peak_bytes, (*pair, context_length))
    assert 0 < measured - estimated.peak_bytes < 8_000_000
