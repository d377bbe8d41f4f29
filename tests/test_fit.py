"""What cannot fit is refused before it is loaded, with what would fit."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import psutil
import pytest
from vision_maker import write_projector

import localspec
from gguf_maker import write_random_model
from localspec.engine.vision import has_room_on_gpu
from localspec.errors import MemoryLimitError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.projector import checked_projector
from localspec.llama.devices import Device
from localspec.llama.options import LlamaOptions
from localspec.llama.placement import MAIN_MEMORY, place_layers
from localspec.preflight.fit import (
    check_room,
    fitting_preset,
    largest_context,
    most_gpu_layers,
    plan_here,
    room_here,
)
from localspec.preflight.memory import estimate_memory, projector_memory
from localspec.preflight.room import MemoryRoom, Planned, pair_memory

SMALL = MemoryRoom(main_bytes=100 << 20, gpus=(), repacked={})
LARGE = replace(SMALL, main_bytes=1 << 40)


def gpu(name, free_bytes, kind="GPU"):
    return Device(
        name=name,
        description="a GPU",
        kind=kind,
        free_bytes=free_bytes,
        total_bytes=max(free_bytes, 8 << 30),
    )


@pytest.fixture
def long_model(tmp_path, demo_target):
    """A model whose caches would take 256 GB at the context it was trained for."""
    return write_random_model(tmp_path / "long.gguf", demo_target, context_length=1 << 30)


def test_a_context_that_cannot_fit_is_refused_with_one_that_does(long_model):
    with pytest.raises(MemoryLimitError, match=r"long.gguf need \d+\.\d GB at a") as caught:
        localspec.load(target=long_model, context_length=1 << 30)
    fitting = int(re.search(r"up to (\d+) tokens", caught.value.hint)[1])
    assert 0 < fitting < 1 << 30
    model = Planned(check_model_file(long_model))
    room = room_here()
    assert pair_memory([model], fitting, replace(room, main_bytes=room.main_bytes * 2))


def test_force_loads_all_the_same(monkeypatch):
    """On a machine that says it has next to nothing left."""
    real = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=1 << 20))
    with pytest.raises(MemoryLimitError, match=r"target.gguf and draft.gguf need 0\.1 GB"):
        localspec.load()
    with localspec.load(force=True) as engine:
        assert engine.generate_raw("hi", max_tokens=2).reply().stats.completion_tokens == 2


def test_the_largest_context_is_the_edge(long_model, demo_draft):
    models = [Planned(check_model_file(path)) for path in (long_model, demo_draft)]
    largest = largest_context(models, SMALL)
    assert pair_memory(models, largest, SMALL).needed_bytes <= SMALL.main_bytes
    assert pair_memory(models, largest + 256, SMALL).needed_bytes > SMALL.main_bytes


@pytest.fixture(scope="module")
def eight_layers(tmp_path_factory, demo_target):
    path = tmp_path_factory.mktemp("gpu") / "m.gguf"
    return write_random_model(path, demo_target, width=256, num_layers=8)


def test_the_last_layers_go_onto_gpus_as_libllama_puts_them(eight_layers):
    """As the log of libllama 0.3.36 has it, with two devices of its RPC backend."""
    header = check_model_file(eight_layers)
    gpus = (gpu("A", 1 << 30), gpu("B", 1 << 30))
    for free, options, layers in (
        ((2, 2), {}, [0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ((2, 2), {"num_gpu_layers": 5}, [-1, -1, -1, -1, 0, 0, 0, 1, 1]),
        ((2, 2), {"num_gpu_layers": 1}, [-1] * 8 + [0]),
        ((2, 2), {"num_gpu_layers": 0}, [-1] * 9),
        ((2, 2), {"num_gpu_layers": 99}, [0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ((2, 2), {"tensor_split": (1.0, 3.0)}, [0, 0, 0, 1, 1, 1, 1, 1, 1]),
        ((2, 2), {"num_gpu_layers": 5, "tensor_split": (3.0, 1.0)}, [-1] * 4 + [0] * 4 + [1]),
        ((2, 6), {}, [0, 0, 0, 1, 1, 1, 1, 1, 1]),
        ((0, 2), {}, [1] * 9),
        ((2, 2), {"main_gpu": 1}, [1] * 9),
        ((2, 2), {"main_gpu": 0, "num_gpu_layers": 4}, [-1] * 5 + [0] * 4),
    ):
        found = place_layers(header, LlamaOptions(**options), gpus, free)
        assert list(found.layers) == layers, options
    assert place_layers(header, LlamaOptions(), (), ()).layers == (-1,) * 9


def test_each_place_takes_what_libllama_took_there(eight_layers):
    """MiB of weights, caches and graphs in its log, with two devices of its RPC backend."""
    header, gpus = check_model_file(eight_layers), (gpu("A", 1 << 30), gpu("B", 1 << 30))
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
        placement = place_layers(header, opened, gpus, (1, 1))
        found = estimate_memory(header, opened, {}, placement)
        for place in (0, 1):
            real = f32 * weights[place] + caches[place] + compute[place]
            least = 0.97 * real * 2**20
            # The graph of a few layers is smaller than that of many, up to a layer's width.
            assert least <= found.gpu_bytes[place] <= 1.03 * real * 2**20 + (5 << 20)
        rest = placement.weights_bytes(header, with_head=False)[MAIN_MEMORY]
        assert found.main_bytes >= rest >= header.tensors[0].size_bytes


def test_a_gpu_without_memory_of_its_own_takes_the_main_one(eight_layers, monkeypatch):
    models = [Planned(check_model_file(eight_layers))]
    integrated = (gpu("A", 1 << 40, kind="integrated GPU"),)
    memory = pair_memory(models, 1024, replace(LARGE, gpus=integrated))
    both = memory.main_bytes + memory.gpu_bytes[0]
    for gpus, platform in ((integrated, "linux"), ((gpu("Metal", 1 << 40),), "darwin")):
        monkeypatch.setattr(sys, "platform", platform)
        room = MemoryRoom(main_bytes=both, gpus=gpus, repacked={})
        assert room.shortages(memory) == []
        short = replace(room, main_bytes=both - 1)
        assert [each.gpu for each in short.shortages(memory)] == [""]


def test_what_lacks_on_a_gpu_is_said_with_the_layers_that_fit(eight_layers, monkeypatch):
    """And they do, while one more does not."""
    header = check_model_file(eight_layers)
    half, all_of_them = (LlamaOptions(num_gpu_layers=count) for count in (5, 9))
    roomy = replace(LARGE, gpus=(gpu("CUDA0", 1 << 40),))
    free = pair_memory([Planned(header, half)], 2048, roomy).gpu_bytes[0]
    room = replace(LARGE, gpus=(gpu("CUDA0", free),))
    assert most_gpu_layers([Planned(header, all_of_them)], 2048, room) == 5
    monkeypatch.setattr("localspec.preflight.fit.room_here", lambda _rpc=(): room)
    with pytest.raises(MemoryLimitError) as caught:
        check_room(plan_here([Planned(header, all_of_them)]))
    assert re.fullmatch(
        r"m.gguf need 0\.\d GB on CUDA0 at a context of 2048 tokens; free are "
        r"0\.\d GB on CUDA0",
        str(caught.value),
    )
    assert "5 layers on GPUs (num_gpu_layers=…)" in caught.value.hint
    check_room(plan_here([Planned(header, half)]))


@pytest.mark.parametrize(
    ("gigabytes", "name"), [(0.5, None), (2, "smollm2-1.7b"), (1000, "llama-3.3-70b")]
)
def test_the_largest_preset_that_fits_is_named(gigabytes, name):
    free = int(gigabytes * 1e9)
    in_main, on_gpu = (
        fitting_preset(room)
        for room in (
            replace(SMALL, main_bytes=free),
            replace(SMALL, main_bytes=1, gpus=(gpu("A", free),)),
        )
    )
    assert (in_main.name if in_main else None) == name
    assert on_gpu == in_main


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


def test_a_projector_is_on_the_gpu_only_where_it_has_room(tmp_path):
    """libmtmd ends the process otherwise."""
    header = checked_projector(write_projector(tmp_path / "mmproj.gguf", "gemma3"))
    enough = gpu("CUDA0", 1 << 30)
    assert has_room_on_gpu(header, [enough])
    assert not has_room_on_gpu(header, [gpu("CUDA0", 1000), enough])  # it takes the first
    assert has_room_on_gpu(header, [replace(enough, free_bytes=0, total_bytes=0)])
    assert has_room_on_gpu(header, [])
