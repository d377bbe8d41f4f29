"""Memory: what an estimate says against libllama and a process, what fits, and which layers go
onto GPUs; what becomes of a load that fails.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import re
import sys
from collections import defaultdict
from dataclasses import replace
from typing import get_args

import llama_cpp
import numpy as np
import psutil
import pytest

import localspec
from adapter_maker import write_adapter
from command_line import run
from gguf_maker import write_random_model
from hollow_model import SHAPES, simulate_load, write_hollow_model
from localspec.engine.vision import has_room_on_gpu
from localspec.errors import MemoryLimitError
from localspec.gguf_file.adapter import AdapterFile, read_adapter
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.projector_facts import checked_projector
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import (
    bytes_per_value,
    repacked_types,
    type_name,
    type_number,
)
from localspec.llama import native
from localspec.llama.devices import Device
from localspec.llama.library import system_info
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import CacheType, LlamaOptions, graph_batch_size
from localspec.llama.placement import MAIN_MEMORY, place_layers
from localspec.planning.free_memory import MemoryRoom, Planned, free_memory, pair_memory
from localspec.planning.memory import (
    cache_bytes,
    estimate_memory,
    graph_bytes,
    projector_memory,
)
from localspec.planning.plan import (
    MARGIN_BYTES,
    check_fit,
    fitting_preset,
    largest_context,
    most_gpu_layers,
    plan_here,
    plan_layers,
)
from shape_pair.bigrams import TextSpec
from shape_pair.pair import PairSpec, make_pair
from spawned import measured_peak_bytes
from vision_maker import write_projector

_MIB = 1 << 20
TEXT = TextSpec(entropy=0.0, agreement=(0.9,), segment=64, period=64, seed=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory, demo_target):
    """Model files of different shapes, by name."""
    folder = tmp_path_factory.mktemp("shapes")
    shared_heads, _ = make_pair(PairSpec("tiny", "tiny", "Q4_0", "Q4_0", TEXT), folder)
    return {
        "demo": demo_target,
        "few key heads": shared_heads,
        "K-quants": make_pair(PairSpec("tiny", "tiny", "Q4_K_M", "Q4_K", TEXT), folder)[0],
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
@pytest.mark.parametrize("name", ["demo", "tiny", "adapted"])
def test_the_estimate_is_what_a_process_takes(tmp_path, demo_target, demo_draft, name):
    """But for a few MB, in lists and in what the allocator keeps."""
    pair, context_length = (demo_target, demo_draft), 2048
    adapters = []
    if name == "tiny":
        pair = make_pair(PairSpec("tiny", "tiny", "Q8_0", "Q4_K_M", TEXT), tmp_path)
    if name == "adapted":
        adapters = [write_adapter(tmp_path / "adapter.gguf", demo_target)]
    headers = tuple(map(read_adapter, adapters))
    target, draft = map(check_model_file, pair)
    models = [Planned(target, adapters=headers), Planned(draft)]
    estimated = pair_memory(models, context_length, free_memory())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured = pool.apply(measured_peak_bytes, (*pair, context_length, adapters))
    assert 0 < measured - estimated.peak_bytes < 5_000_000


def test_adapters_make_the_graph_no_larger(tmp_path, demo_target, caplog):
    """Their products have few columns, and find room among what is there."""
    adapters = [
        AdapterFile(read_adapter(write_adapter(tmp_path / f"{seed}.gguf", demo_target)), 1.0)
        for seed in (1, 2)
    ]
    sizes = []
    for used in ([], adapters):
        caplog.clear()
        options = LlamaOptions(context_length=2048, max_outputs=17, num_threads=1)
        with caplog.at_level(logging.DEBUG, "localspec.llama"):
            model = LlamaModel.open(demo_target, options, adapters=used)
            model.decode([*range(300, 500)], 1)  # plans the graph anew
            model.close()
        logged = re.findall(r"compute buffer size = +(\S+) MiB", "\n".join(caplog.messages))
        sizes.append(set(logged))  # of each plan
    assert sizes[0] == sizes[1] != set()


# --- where layers go ---

CONTEXT = 1024


def gpu(name, free_bytes, kind="GPU"):
    total_bytes = max(free_bytes, 8 << 30)
    return Device(
        name=name,
        description="a GPU",
        kind=kind,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
    )


def room(*free_beyond_margin, main_bytes=1 << 40):
    """Free memory: of GPUs these bytes above what a plan leaves free."""
    gpus = tuple(
        gpu(f"CUDA{index}", free + MARGIN_BYTES)
        for index, free in enumerate(free_beyond_margin)
    )
    return MemoryRoom(main_bytes=main_bytes, gpus=gpus, repacked={})


SMALL, LARGE = room(main_bytes=100 << 20), room()
TWO_GPUS = (gpu("A", 1 << 30), gpu("B", 1 << 30))


def planned(models, where):
    plan = plan_layers([Planned(*model) for model in models], CONTEXT, where)
    return plan, plan.memory


def taken(header, count, **options):
    """On a GPU, by a target with so many layers there."""
    options = LlamaOptions(num_gpu_layers=count, **options)
    memory = pair_memory([Planned(header, options)], CONTEXT, room(1 << 40))
    return memory.gpu_bytes[0]


@pytest.fixture(scope="module")
def target(tmp_path_factory, demo_target):
    path = tmp_path_factory.mktemp("plan") / "target.gguf"
    return write_random_model(path, demo_target, width=256, num_layers=8)


@pytest.fixture(scope="module")
def header(target):
    return check_model_file(target)


@pytest.fixture(scope="module")
def draft(demo_draft):
    return check_model_file(demo_draft)


@pytest.fixture(scope="module")
def mixture_file(tmp_path_factory, demo_target):
    path = tmp_path_factory.mktemp("moe") / "m.gguf"
    return write_random_model(path, demo_target, width=128, num_layers=6, num_experts=8)


@pytest.mark.parametrize("count", range(10))
def test_as_many_layers_go_onto_a_gpu_as_fit(header, count):
    """At the edge, and a byte before it."""
    needed = taken(header, count)
    for free, most in ((needed, count), (needed - 1, max(0, count - 1))):
        plan, memory = planned([(header,)], room(free))
        assert memory.models[0].gpu_layers == (most,)
        assert plan.models[0].options.num_gpu_layers == most
        assert not plan.free.shortages(memory)


def test_the_draft_goes_first_and_whole(header, draft):
    _, alone = planned([(header, LlamaOptions(num_gpu_layers=0)), (draft,)], room(1 << 40))
    [of_draft] = alone.gpu_bytes
    for more, layers in ((0, 0), (taken(header, 4), 4)):
        _, memory = planned([(header,), (draft,)], room(of_draft + more))
        assert [model.gpu_layers for model in memory.models] == [(layers,), (3,)]
    _, memory = planned([(header,), (draft,)], room(of_draft - 1))
    assert memory.models[1].gpu_layers[0] < 3


@pytest.mark.parametrize("role", [0, 1])
def test_a_number_that_is_fixed_stays(header, draft, role):
    models = [[header], [draft]]
    models[role].append(LlamaOptions(num_gpu_layers=2))
    plan, memory = planned(models, room(0))
    assert memory.models[role].gpu_layers == (2,)
    assert memory.models[1 - role].gpu_layers == (0,)
    assert plan.models[role] == plan.wanted[role]
    assert plan.free.shortages(memory) == []
    assert list(plan.smaller_plans()) == []


def test_each_gpu_gets_the_layers_that_fit_there(header):
    """A nearly full one none, and the shares come out as numbers of layers."""
    three, two = taken(header, 3), taken(header, 5) - taken(header, 3)
    plan, memory = planned([(header,)], room(0, 4 * two, three))
    options = plan.models[0].options
    counts = memory.models[0].gpu_layers
    assert counts[0] == 0 < min(counts[1:])
    assert options.tensor_split == tuple(map(float, counts))
    assert options.num_gpu_layers == sum(counts) < 9
    assert not plan.free.shortages(memory)
    gpus = room(1, 1, 1).gpus
    assert place_layers(header, options, gpus, (7, 1, 5)).gpu_layers() == counts


def test_the_margin_is_used_where_the_main_memory_is_too_small(header):
    """What it keeps from the GPU has no other place."""
    memory = planned([(header,)], room(taken(header, 3)))[1]
    plan, closer = planned(
        [(header,)], room(taken(header, 3), main_bytes=memory.main_bytes - 1)
    )
    assert closer.models[0].gpu_layers[0] > 3
    assert not plan.free.shortages(closer)


def test_experts_stay_in_main_memory_before_layers_do(mixture_file):
    """As few of them as must, and all of them before any layer."""
    mixture = check_model_file(mixture_file)
    whole, none = taken(mixture, 7), taken(mixture, 7, num_cpu_moe_layers=6)
    assert none < whole / 2
    for free, experts, layers in (
        (whole, 0, 7),
        (whole - 1, 1, 7),
        (taken(mixture, 7, num_cpu_moe_layers=4), 4, 7),
        (none, 6, 7),
        (none - 1, 6, 6),
    ):
        plan, memory = planned([(mixture,)], room(free))
        [model] = memory.models
        assert (model.num_cpu_moe_layers, sum(model.gpu_layers)) == (experts, layers)
        assert not plan.free.shortages(memory)
    [options] = [model.options for model in planned([(mixture,)], room(0))[0].models]
    assert options == LlamaOptions(num_gpu_layers=0)


def test_a_mixture_with_its_experts_apart_says_the_same(mixture_file, caplog):
    rows = []
    for count in (None, 3, 512):
        options = LlamaOptions(context_length=256, num_threads=1, num_cpu_moe_layers=count)
        with caplog.at_level(logging.DEBUG, "localspec.llama"):
            model = LlamaModel.open(mixture_file, options)
        rows.append(np.array(model.decode([1, 2, 3], 1)))
        model.close()
        overridden = [line for line in caplog.messages if "buffer type overridden" in line]
        assert len(overridden) == 3 * min(6, count or 0)
        caplog.clear()
        assert np.array_equal(rows[0], rows[-1])


def test_a_load_that_finds_no_memory_is_tried_with_fewer_layers(
    target, demo_draft, monkeypatch, caplog
):
    """In the end in the main memory; then with the error."""
    found, num_failures = [], 99
    real = LlamaModel.open.__func__

    def open_(cls, path, options, *rest):
        found.append(options)
        if len(found) <= num_failures:
            raise MemoryLimitError("CUDA0 has no memory", "Close other programs.")
        return real(cls, path, options, *rest)

    monkeypatch.setattr(LlamaModel, "open", classmethod(open_))
    monkeypatch.setattr("localspec.planning.plan.free_memory", lambda _rpc=(): room(1 << 40))
    with pytest.raises(MemoryLimitError, match="CUDA0 has no memory"):
        localspec.load(target=target, context_length=CONTEXT)
    counts = [options.num_gpu_layers for options in found]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1], len(counts)) == (9, 0, 4)
    found.clear()
    caplog.clear()
    num_failures = 2
    with localspec.load(target=target, draft=demo_draft, context_length=CONTEXT) as engine:
        assert engine.generate_raw("hi", max_tokens=2).reply().stats.completion_tokens == 2
    first, second, third, of_draft = (options.num_gpu_layers for options in found)
    assert first == 9 > second > third > 0
    assert of_draft == 3
    [told, _] = [one.message for one in caplog.records if one.name.endswith("loading")]
    assert "CUDA0 has no memory" in told
    assert f"{second} of 9 of the target, 3 of 3 of the draft" in told


def test_explain_shows_the_plan_of_each_device(target, header, demo_draft, monkeypatch):
    draft = check_model_file(demo_draft)
    of_draft = planned([(header, LlamaOptions(num_gpu_layers=0)), (draft,)], room(1 << 40))[1]
    where = room(of_draft.gpu_bytes[0] + taken(header, 4))
    monkeypatch.setattr("localspec.advice.explanation.free_memory", lambda _rpc=(): where)
    command = ["explain", "--target", str(target), "--draft", str(demo_draft), "--ctx", "1024"]
    shown = run(*command).output
    assert re.search(r"of main memory, .* free: 5 of 9 layers of the target \(.*B\)\n", shown)
    assert re.search(r"CUDA0 \(a GPU\), .* free: 4 of 9 layers of the target .*, 3 of 3", shown)
    assert "it fits; the largest context that would fit is 2048" in shown


def test_a_context_that_cannot_fit_is_refused_with_one_that_does(tmp_path, demo_target):
    """The caches would take 256 GB at the context that the model was trained for."""
    path = tmp_path / "long.gguf"
    long_model = write_random_model(path, demo_target, context_length=1 << 30)
    with pytest.raises(
        MemoryLimitError, match=r"long.gguf need \d+\.\d GB of main memory \("
    ) as caught:
        localspec.load(target=long_model, context_length=1 << 30)
    assert 0 < int(re.search(r"up to (\d+) tokens", caught.value.hint)[1]) < 1 << 30
    models = [Planned(check_model_file(long_model))]
    largest = largest_context(models, SMALL)
    assert pair_memory(models, largest, SMALL).needed_bytes <= SMALL.main_bytes
    assert pair_memory(models, largest + 256, SMALL).needed_bytes > SMALL.main_bytes


def test_force_loads_all_the_same(monkeypatch):
    """On a machine that says it has next to nothing left."""
    real = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=1 << 20))
    with pytest.raises(MemoryLimitError, match=r"target.gguf and draft.gguf need 0\.1 GB"):
        localspec.load()
    with localspec.load(force=True) as engine:
        assert engine.generate_raw("hi", max_tokens=2).reply().stats.completion_tokens == 2


def test_the_last_layers_go_onto_gpus_as_libllama_puts_them(header):
    """As the log of libllama 0.3.36 has it, with two devices of its RPC backend."""
    for free, options, layers in (
        ((2, 2), {}, [0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ((2, 2), {"num_gpu_layers": 5}, [-1, -1, -1, -1, 0, 0, 0, 1, 1]),
        ((2, 2), {"num_gpu_layers": 0}, [-1] * 9),
        ((2, 2), {"num_gpu_layers": 99}, [0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ((2, 2), {"tensor_split": (1.0, 3.0)}, [0, 0, 0, 1, 1, 1, 1, 1, 1]),
        ((2, 2), {"num_gpu_layers": 5, "tensor_split": (3.0, 1.0)}, [-1] * 4 + [0] * 4 + [1]),
        ((2, 6), {}, [0, 0, 0, 1, 1, 1, 1, 1, 1]),
        ((0, 2), {}, [1] * 9),
        ((2, 2), {"main_gpu": 1}, [1] * 9),
        ((2, 2), {"main_gpu": 0, "num_gpu_layers": 4}, [-1] * 5 + [0] * 4),
    ):
        found = place_layers(header, LlamaOptions(**options), TWO_GPUS, free)
        assert list(found.layers) == layers, options
    assert place_layers(header, LlamaOptions(), (), ()).layers == (-1,) * 9


def test_each_place_takes_what_libllama_took_there(header):
    """MiB of weights, caches and graphs in its log, with two devices of its RPC backend."""
    f32 = 32 / 8.5  # the model of that log was Q8_0
    for options, weights, caches, compute in (
        ({"num_gpu_layers": 5}, (2.00, 1.73), (3, 1), (5.01, 3.51)),
        ({"num_gpu_layers": 5, "tensor_split": (3, 1)}, (2.66, 1.06), (4, 0), (5.01, 0.28)),
        ({"num_gpu_layers": 1}, (1.06, 0), (0, 0), (0.28, 0)),
        ({}, (3.33, 3.06), (5, 3), (10.04, 10.04)),
    ):
        opened = LlamaOptions(
            context_length=1024, max_outputs=17, flash_attention="auto", **options
        )
        placement = place_layers(header, opened, TWO_GPUS, (1, 1))
        found = estimate_memory(header, opened, {}, placement)
        for place in (0, 1):
            real = f32 * weights[place] + caches[place] + compute[place]
            least = 0.97 * real * 2**20
            # The graph of a few layers is smaller than that of many, up to a layer's width.
            assert least <= found.gpu_bytes[place] <= 1.03 * real * 2**20 + (5 << 20)
        rest = placement.weights_bytes(header, with_head=False)[MAIN_MEMORY]
        assert found.main_bytes >= rest >= header.tensors[0].size_bytes


def test_a_gpu_without_memory_of_its_own_takes_the_main_one(header, monkeypatch):
    models = [Planned(header)]
    integrated = (gpu("A", 1 << 40, kind="integrated GPU"),)
    memory = pair_memory(models, 1024, replace(LARGE, gpus=integrated))
    both = memory.main_bytes + memory.gpu_bytes[0]
    for gpus, platform in ((integrated, "linux"), ((gpu("Metal", 1 << 40),), "darwin")):
        monkeypatch.setattr(sys, "platform", platform)
        room = MemoryRoom(main_bytes=both, gpus=gpus, repacked={})
        assert room.shortages(memory) == []
        short = replace(room, main_bytes=both - 1)
        assert [each.gpu for each in short.shortages(memory)] == [""]


def test_what_lacks_on_a_gpu_is_said_with_the_layers_that_fit(header, monkeypatch):
    """And they do, while one more does not."""
    half, all_of_them = (LlamaOptions(num_gpu_layers=count) for count in (5, 9))
    roomy = replace(LARGE, gpus=(gpu("CUDA0", 1 << 40),))
    free = pair_memory([Planned(header, half)], 2048, roomy).gpu_bytes[0]
    room = replace(LARGE, gpus=(gpu("CUDA0", free),))
    assert most_gpu_layers([Planned(header, all_of_them)], 2048, room) == 5
    monkeypatch.setattr("localspec.planning.plan.free_memory", lambda _rpc=(): room)
    with pytest.raises(MemoryLimitError) as caught:
        check_fit(plan_here([Planned(header, all_of_them)]))
    assert re.fullmatch(
        r"target.gguf need 0\.\d GB on CUDA0 \(0\.\d GB free\) at a context of 2048 tokens",
        str(caught.value),
    )
    assert "5 layers on GPUs (num_gpu_layers=…)" in caught.value.hint
    check_fit(plan_here([Planned(header, half)]))


@pytest.mark.parametrize(
    ("gigabytes", "name"), [(0.5, None), (2, "smollm2-1.7b"), (1000, "qwen3.6-35b-a3b")]
)
def test_the_largest_preset_of_the_newest_year_that_fits_is_named(gigabytes, name):
    free = int(gigabytes * 1e9)
    on_gpu = replace(SMALL, main_bytes=1, gpus=(gpu("A", free),))
    for where in (replace(SMALL, main_bytes=free), on_gpu):
        assert getattr(fitting_preset(where), "name", None) == name


def test_a_projector_is_counted_where_it_lies(tmp_path, demo_target):
    """On the first GPU of this machine, once the model is there; else in main memory.

    Pictures that are kept are in main memory.
    """
    header = checked_projector(write_projector(tmp_path / "mmproj.gguf", "gemma3"))
    everything, kept = projector_memory(header, 0), projector_memory(header, 0).picture_bytes
    needed = everything.needed_bytes - kept
    model = check_model_file(demo_target)
    remote = replace(gpu("RPC0", 1 << 30), kind="remote", server="a:1")

    def on_gpus(*gpus, layers=99):
        room = MemoryRoom(main_bytes=1 << 30, gpus=gpus, repacked={})
        options = LlamaOptions(num_gpu_layers=layers)
        planned = [Planned(model, options), Planned(header, role="mmproj")]
        return pair_memory(planned, 512, room).models[1]

    assert on_gpus(remote, gpu("CUDA0", 1 << 30)).gpu_bytes == (0, needed)
    assert on_gpus(remote, gpu("CUDA0", 1 << 30)).main_bytes == kept
    assert on_gpus(gpu("CUDA0", 1 << 30), layers=0).main_bytes == needed + kept
    # Beside the model.
    assert on_gpus(gpu("CUDA0", needed + 1000)).main_bytes == needed + kept
    assert on_gpus().main_bytes == needed + kept
    # libmtmd takes the first GPU, and ends the process where it has no memory.
    enough = gpu("CUDA0", 1 << 30)
    assert has_room_on_gpu(header, [enough])
    assert not has_room_on_gpu(header, [gpu("CUDA0", 1000), enough])
    assert has_room_on_gpu(header, [replace(enough, free_bytes=0, total_bytes=0)])
