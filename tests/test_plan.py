"""How many layers go onto GPUs by default, and what becomes of a load that fails even so."""

from __future__ import annotations

import ctypes
import json
import logging
import re

import llama_cpp
import numpy as np
import pytest
from click.testing import CliRunner

import localspec
from gguf_maker import write_random_model
from localspec.cli import main
from localspec.errors import MemoryLimitError
from localspec.gguf_file.check import check_model_file
from localspec.llama.devices import Device, cpu_buffer_type
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.llama.params import model_params
from localspec.llama.placement import experts_pattern, place_layers
from localspec.preflight.fit import check_room, plan_here
from localspec.preflight.installation import inspect_installation
from localspec.preflight.plan import MARGIN_BYTES, plan_layers
from localspec.preflight.room import MemoryRoom, Planned, pair_memory

CONTEXT = 1024


def room(*free_beyond_margin, main_bytes=1 << 40):
    """Of GPUs with so many bytes above what a plan leaves free."""
    gpus = tuple(
        Device(
            name=f"CUDA{index}",
            description="a GPU",
            kind="GPU",
            free_bytes=free + MARGIN_BYTES,
            total_bytes=1 << 50,
        )
        for index, free in enumerate(free_beyond_margin)
    )
    return MemoryRoom(main_bytes=main_bytes, gpus=gpus, repacked={})


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


@pytest.fixture(scope="module")
def mixture(mixture_file):
    return check_model_file(mixture_file)


@pytest.mark.parametrize("count", range(10))
def test_as_many_layers_go_onto_a_gpu_as_fit(header, count):
    """At the edge, and a byte before it."""
    needed = taken(header, count)
    for free, most in ((needed, count), (needed - 1, max(0, count - 1))):
        plan, memory = planned([(header,)], room(free))
        assert memory.models[0].gpu_layers == (most,)
        assert plan.models[0].options.num_gpu_layers == most
        assert not plan.room.shortages(memory)


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
    assert plan.room.shortages(memory) == []
    assert list(plan.fewer()) == []


def test_each_gpu_gets_the_layers_that_fit_there(header):
    """A nearly full one none, and the shares come out as numbers of layers."""
    three, two = taken(header, 3), taken(header, 5) - taken(header, 3)
    plan, memory = planned([(header,)], room(0, 4 * two, three))
    options = plan.models[0].options
    counts = memory.models[0].gpu_layers
    assert counts[0] == 0 < min(counts[1:])
    assert options.tensor_split == tuple(map(float, counts))
    assert options.num_gpu_layers == sum(counts) < 9
    assert not plan.room.shortages(memory)
    gpus = room(1, 1, 1).gpus
    assert place_layers(header, options, gpus, (7, 1, 5)).gpu_layers() == counts


def test_memory_of_gpus_and_main_memory_are_two_budgets_and_a_pair_may_use_both(
    target, header, monkeypatch
):
    """What was refused when the GPU lacked room for all of it is loaded in parts."""
    free = taken(header, 5)
    needed = planned([(header,)], room(free))[1].main_bytes
    for main_bytes, beyond_margin, fits in (
        (needed, free, True),
        (needed, free - MARGIN_BYTES, True),  # of which nothing is left
        (needed - 1, free - MARGIN_BYTES, False),
    ):
        here = room(beyond_margin, main_bytes=main_bytes)
        monkeypatch.setattr("localspec.preflight.fit.room_here", lambda _rpc, here=here: here)
        plan = plan_here(
            [Planned(check_model_file(target), LlamaOptions(context_length=CONTEXT))]
        )
        if fits:
            check_room(plan)
        else:
            with pytest.raises(MemoryLimitError, match=r"; free are 0\.0 GB of main memory$"):
                check_room(plan)


def test_the_margin_is_used_where_the_main_memory_is_too_small(header):
    """What it keeps from the GPU has no other place."""
    memory = planned([(header,)], room(taken(header, 3)))[1]
    plan, closer = planned(
        [(header,)], room(taken(header, 3), main_bytes=memory.main_bytes - 1)
    )
    assert closer.models[0].gpu_layers[0] > 3
    assert not plan.room.shortages(closer)


def test_experts_stay_in_main_memory_before_layers_do(mixture):
    """As few of them as must, and all of them before any layer."""
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
        assert not plan.room.shortages(memory)
    [options] = [model.options for model in planned([(mixture,)], room(0))[0].models]
    assert options == LlamaOptions(num_gpu_layers=0)


def test_libllama_is_told_which_experts(mixture):
    """A list that ends with nulls, and lives as long as the parameters do."""
    params = model_params(LlamaOptions(num_cpu_moe_layers=2))
    words = ctypes.cast(params.tensor_buft_overrides, ctypes.POINTER(ctypes.c_void_p * 4))[0]
    pattern = ctypes.string_at(words[0]).decode()
    assert words[1] == cpu_buffer_type(llama_cpp) != 0
    assert words[2:] == [None, None]
    names = [t.name for t in mixture.tensors if re.search(pattern, t.name)]
    assert sorted(names) == sorted(
        f"blk.{layer}.ffn_{kind}_exps.weight"
        for layer in (0, 1)
        for kind in ("gate", "up", "down")
    )
    assert not re.search(experts_pattern(2), "blk.11.ffn_up_exps.weight")
    assert not model_params(LlamaOptions()).tensor_buft_overrides


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


@pytest.fixture
def opened(monkeypatch):
    """What models were opened with; `failures` of the opens find no memory."""
    found, failures = [], [0]
    real = LlamaModel.open.__func__

    def open_(cls, path, options, *rest):
        found.append(options)
        if len(found) <= failures[0]:
            raise MemoryLimitError("CUDA0 has no memory", "Close other programs.")
        return real(cls, path, options, *rest)

    monkeypatch.setattr(LlamaModel, "open", classmethod(open_))
    return found, failures


def see(monkeypatch, where):
    monkeypatch.setattr("localspec.preflight.fit.room_here", lambda _rpc=(): where)


def test_a_load_that_finds_no_memory_is_tried_with_fewer_layers(
    target, demo_draft, header, opened, monkeypatch, caplog
):
    found, failures = opened
    see(monkeypatch, room(1 << 40))
    failures[0] = 2
    with localspec.load(target=target, draft=demo_draft, context_length=CONTEXT) as engine:
        assert engine.generate_raw("hi", max_tokens=2).reply().stats.completion_tokens == 2
    first, second, third, of_draft = (options.num_gpu_layers for options in found)
    assert first == 9 > second > third > 0
    assert of_draft == 3
    [told, _] = [one.message for one in caplog.records if one.name.endswith("fitting")]
    assert "CUDA0 has no memory" in told
    assert f"{second} of 9 of the target, 3 of 3 of the draft" in told


def test_a_draft_that_finds_no_memory_frees_the_target_first(
    target, demo_draft, opened, monkeypatch
):
    found, _ = opened
    see(monkeypatch, room(1 << 40))
    closed = []
    real_open, real_close = LlamaModel.open, LlamaModel.close
    monkeypatch.setattr(LlamaModel, "close", lambda m: (closed.append(m.name), real_close(m)))

    def open_(path, options, *rest):
        if len(found) == 1:
            found.append(options)
            raise MemoryLimitError("CUDA0 has no memory", "")
        return real_open(path, options, *rest)

    monkeypatch.setattr(LlamaModel, "open", open_)
    with localspec.load(target=target, draft=demo_draft, context_length=CONTEXT):
        assert closed == [target.name]
    assert found[2].num_gpu_layers < found[0].num_gpu_layers


def test_it_ends_in_the_main_memory_and_then_with_the_error(target, opened, monkeypatch):
    found, failures = opened
    see(monkeypatch, room(1 << 40))
    failures[0] = 99
    with pytest.raises(MemoryLimitError, match="CUDA0 has no memory"):
        localspec.load(target=target, context_length=CONTEXT)
    counts = [options.num_gpu_layers for options in found]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1], len(counts)) == (9, 0, 4)


def test_explain_and_doctor_show_the_plan_of_each_device(
    target, header, demo_draft, monkeypatch
):
    draft = check_model_file(demo_draft)
    of_draft = planned([(header, LlamaOptions(num_gpu_layers=0)), (draft,)], room(1 << 40))[1]
    where = room(of_draft.gpu_bytes[0] + taken(header, 4))
    monkeypatch.setattr("localspec.preflight.explanation.room_here", lambda _rpc=(): where)
    command = ["explain", "--target", str(target), "--draft", str(demo_draft), "--ctx", "1024"]
    shown = CliRunner().invoke(main, command).output
    assert re.search(r"of main memory, .* free: 5 of 9 layers of the target \(.*B\)\n", shown)
    assert re.search(
        r"CUDA0 \(a GPU\), .* free: 4 of 9 layers of the target \(.*B\), "
        r"3 of 3 layers of the draft \(.*B\)\n",
        shown,
    )
    assert "it fits, and a context of up to 2048 would" in shown
    models = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)["memory"]
    assert [model["gpu_layers"] for model in models["models"]] == [[4], [3]]
    for module in ("fit", "installation"):
        monkeypatch.setattr(f"localspec.preflight.{module}.room_here", lambda _rpc=(): where)
    assert inspect_installation(()).plans["demo"].models[1].gpu_layers == (3,)
    shown = CliRunner().invoke(main, ["doctor"]).output
    assert re.search(r"Layers +demo at a context of 2048: fits\n", shown)
    assert re.search(r"CUDA0 .* of the target .*, 3 of 3 layers of the draft", shown)
    assert json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)["plans"]["demo"]
