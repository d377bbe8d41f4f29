"""Which device a model is loaded on, from times that are recorded, or that a process finds."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import inside
import localspec
from head_maker import write_per_layer_model
from hollow_model import SHAPES, write_hollow_model
from localspec.errors import MemoryLimitError, OptionError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.header import read_header
from localspec.gguf_file.miniature import write_miniature
from localspec.llama import drivers
from localspec.llama.device_times import Times
from localspec.llama.devices import Device
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.planning import device_plans, device_trials
from localspec.planning.device_choice import DeviceTimes, Measured
from localspec.planning.device_plans import device_in_words, ranked_plans
from localspec.planning.free_memory import MemoryRoom, Planned
from localspec.planning.plan import plan_layers
from recorded_devices import MACHINES, Machine, Speed

GIB = 1 << 30
CONTEXT = 512


def card(name, gib=24.0, kind="GPU"):
    return Device(
        name=name,
        description=f"the {name}",
        kind=kind,
        free_bytes=int(gib * GIB),
        total_bytes=int(gib * GIB),
    )


def times_of(speed: Speed) -> Times:
    if speed.reading:
        return Times(512 / speed.reading, 1 / speed.writing)
    return Times(1e-9, 1 / speed.writing)  # writing alone is compared


@pytest.fixture
def header(tmp_path, demo_target):
    """Of a model of the shape of the 14B that was swept, 48 layers and the output."""
    shape = replace(SHAPES["Llama 3.1 8B"], num_layers=48)
    return check_model_file(write_hollow_model(tmp_path / "h.gguf", demo_target, shape))


@pytest.fixture
def ranked(monkeypatch, header):
    """Ranks the plans of the model, by these times, for GPUs with this memory."""

    def rank(measured: Measured, main_gib=200.0):
        monkeypatch.setattr(device_plans, "gpus_to_choose_from", lambda _: list(measured.gpus))
        monkeypatch.setattr(device_trials, "measured_devices", lambda *_, **__: measured)
        room = MemoryRoom(main_bytes=int(main_gib * GIB), gpus=measured.gpus, repacked={})
        return ranked_plans(
            [Planned(header)], lambda models: plan_layers(models, CONTEXT, room), measure=True
        )

    return rank


def recorded_cost_s(machine: Machine, num_layers: int) -> float:
    """Of a model with so many layers on the GPU, also between two that were recorded."""
    known = {0: times_of(machine.cpu).cost_s}
    known |= {count: times_of(speed).cost_s for count, speed in machine.splits.items()}
    if machine.most_layers is None:
        return times_of(machine.gpus[next(iter(machine.gpus))]).cost_s
    below = max(count for count in known if count <= num_layers)
    above = min((count for count in known if count >= num_layers), default=below)
    part = (num_layers - below) / (above - below) if above > below else 0.0
    return known[below] + part * (known[above] - known[below])


def memory_for(header, num_layers: int) -> Device:
    """A GPU with room for so many layers of a model at most."""
    for tenths in range(10, 400):
        gpu = card("CUDA0", gib=tenths / 10)
        room = MemoryRoom(main_bytes=200 * GIB, gpus=(gpu,), repacked={})
        plan = plan_layers([Planned(header, LlamaOptions(device="CUDA0"))], CONTEXT, room)
        if sum(plan.memory.models[0].gpu_layers) >= num_layers:
            return gpu
    raise AssertionError(num_layers)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.what)
def test_the_choice_is_the_best_of_what_people_have_measured(ranked, header, machine):
    """A split is predicted from the times of the whole model on either side."""
    gpus = tuple(card(name) for name in machine.gpus)
    if machine.most_layers is not None:
        gpus = (memory_for(header, machine.most_layers),)
    found = {name: DeviceTimes(whole=times_of(speed)) for name, speed in machine.gpus.items()}
    measured = Measured(gpus, times_of(machine.cpu), found)
    plan = ranked(measured).plans[0]
    layers = sum(plan.memory.models[0].gpu_layers)
    chosen_s = recorded_cost_s(machine, layers) if layers else times_of(machine.cpu).cost_s
    best_s = times_of(machine.cpu).cost_s
    for speed in machine.gpus.values():
        if machine.most_layers is None:
            best_s = min(best_s, times_of(speed).cost_s)
    for count, speed in machine.splits.items():
        if count <= layers:
            best_s = min(best_s, times_of(speed).cost_s)
    assert best_s / chosen_s >= 0.97
    assert "measured at" in device_in_words(plan, measured) or not gpus


def test_ten_kinds_of_machines_are_recorded_with_their_sources():
    assert len({machine.what.split(",")[0] for machine in MACHINES}) >= 10
    assert all(
        "://" in machine.source or "LocalLLaMA" in machine.source for machine in MACHINES
    )


def test_a_split_takes_what_was_recorded_of_it():
    """Within a fifth, from the ends alone; most layers, where a mistake would cost most."""
    machine = MACHINES[-1]
    measured = Measured(
        (card("CUDA0"),),
        times_of(machine.cpu),
        {"CUDA0": DeviceTimes(whole=times_of(machine.gpus["CUDA0"]))},
    )
    for count in (8, 16, 40):
        share = count / machine.num_layers
        predicted = measured.times(["CUDA0"], share, num_copies=1)
        assert predicted.write_s * machine.splits[count].writing == pytest.approx(1, abs=0.2)


CPU, FAST, SLOW = Times(8.0, 0.1), Times(0.5, 0.02), Times(3.0, 0.3)


def test_the_words_name_what_was_measured(ranked):
    uhd = Measured((card("Vulkan0"),), CPU, {"Vulkan0": DeviceTimes(whole=SLOW)})
    assert device_in_words(ranked(uhd).plans[0], uhd) == (
        "CPU: Vulkan0 (the Vulkan0) was measured at 0.33 of it for writing, 2.7 for reading"
    )
    rtx = Measured((card("CUDA0"),), CPU, {"CUDA0": DeviceTimes(whole=FAST)})
    assert device_in_words(ranked(rtx).plans[0], rtx) == (
        "CUDA0 (the CUDA0): the CPU was measured at 0.2 of it for writing, 0.062 for reading"
    )


def test_large_batches_alone_go_to_a_gpu_that_reads_well_and_writes_badly(ranked):
    found = DeviceTimes(whole=Times(0.5, 0.3), offload=Times(1.0, 0.1))
    measured = Measured((card("Vulkan0"),), CPU, {"Vulkan0": found})
    plan = ranked(measured).plans[0]
    assert plan.models[0].options.device == "Vulkan0"
    assert plan.models[0].options.num_gpu_layers == 0
    words = device_in_words(plan, measured)
    assert words.startswith("CPU, with Vulkan0 (the Vulkan0) for large batches")


def test_a_copy_that_costs_more_than_it_gains_keeps_the_model_in_one_place(ranked, header):
    gpu = memory_for(header, 24)
    found = DeviceTimes(whole=FAST, offload=CPU, copies=Times(0.0, 0.0))
    split = ranked(Measured((gpu,), CPU, {gpu.name: found})).plans[0]
    assert 24 <= sum(split.memory.models[0].gpu_layers) < 49
    dear = replace(found, copies=Times(0.0, 0.2))
    assert ranked(Measured((gpu,), CPU, {gpu.name: dear})).plans[0].memory.gpu_bytes == (0,)


def test_the_better_of_two_gpus_is_taken_and_the_other_one_if_memory_runs_out(ranked):
    gpus = (card("Vulkan0"), card("Vulkan1", kind="integrated GPU"))
    found = {"Vulkan0": DeviceTimes(whole=FAST), "Vulkan1": DeviceTimes(whole=Times(1.0, 0.05))}
    plans = ranked(Measured(gpus, CPU, found))
    tried = [plan.models[0].options.device for plan in plans.attempts()]
    assert tried[0] == "Vulkan0"
    assert tried.index("Vulkan1") < tried.index(None)
    slow = {"Vulkan0": DeviceTimes(whole=SLOW), "Vulkan1": DeviceTimes(whole=FAST)}
    assert ranked(Measured(gpus, CPU, slow)).plans[0].models[0].options.device == "Vulkan1"


def test_two_equal_cards_share_what_one_cannot_hold(ranked, header):
    one = memory_for(header, 26)
    gpus = (one, replace(one, name="CUDA1", description="the CUDA1"))
    found = {gpu.name: DeviceTimes(whole=FAST, offload=CPU) for gpu in gpus}
    plan = ranked(Measured(gpus, CPU, found)).plans[0]
    assert plan.models[0].options.device is None
    assert all(plan.memory.gpu_bytes)


def test_a_gpu_that_failed_is_not_used_and_that_is_said(ranked):
    fault = DeviceTimes(fault="crashed in its trial (signal 11)")
    measured = Measured((card("Vulkan0"),), CPU, {"Vulkan0": fault})
    plans = ranked(measured).plans
    assert [plan.memory.gpu_bytes for plan in plans] == [(0,)]
    assert device_in_words(plans[0], measured) == (
        "CPU: Vulkan0 (the Vulkan0) crashed in its trial (signal 11) and is not used"
    )


def test_without_measurements_the_rule_holds_and_the_words_say_so(ranked):
    for measured, words in (
        (Measured((card("CUDA0"),)), "devices are measured when the model is loaded"),
        (Measured((card("CUDA0"),), fault="no space"), "no device was measured: no space"),
    ):
        plan = ranked(measured).plans[0]
        assert sum(plan.memory.models[0].gpu_layers) == 49
        assert device_in_words(plan, measured) == f"CUDA0 (the CUDA0): {words}"


def test_a_device_that_the_user_chose_is_not_measured(monkeypatch):
    monkeypatch.setattr(device_plans, "usable_gpus", lambda _: (card("CUDA0"),))
    assert device_plans.gpus_to_choose_from(LlamaOptions()) == []  # as in all tests
    monkeypatch.delenv("LOCALSPEC_MEASURE")
    assert device_plans.gpus_to_choose_from(LlamaOptions())
    for chosen in (
        {"num_gpu_layers": 3},
        {"device": "CUDA0"},
        {"device": "cpu"},
        {"main_gpu": 0},
        {"tensor_split": (1.0,)},
        {"rpc": ("host:1",)},
    ):
        assert device_plans.gpus_to_choose_from(LlamaOptions(**chosen)) == []


def test_the_cpu_as_a_device_is_no_layers_on_gpus():
    assert LlamaOptions(device="CPU") == LlamaOptions(num_gpu_layers=0)
    with pytest.raises(OptionError, match="num_gpu_layers is 3"):
        LlamaOptions(device="cpu", num_gpu_layers=3)
    with pytest.raises(OptionError, match="main_gpu is 1"):
        LlamaOptions(device="Vulkan0", main_gpu=1)
    with pytest.raises(OptionError, match="device is 3"):
        LlamaOptions(device=3)


def test_a_device_that_is_not_there_is_refused_with_those_that_are(demo_target):
    with pytest.raises(OptionError, match="no device 'Vulkan7'") as caught:
        localspec.load(demo_target, device="Vulkan7")
    assert "cpu" in caught.value.hint
    with pytest.raises(OptionError, match="no device 'Vulkan7'"):
        localspec.explain(demo_target, device="Vulkan7")
    with localspec.load(demo_target, device="cpu", draft_tokens=0) as engine:
        assert engine.device == "CPU"
    assert localspec.explain(demo_target, device="cpu").device == "CPU"


def test_a_miniature_is_a_model_of_the_same_shapes(tmp_path, demo_target):
    header = check_model_file(demo_target)
    for num_bytes in (1, 10**12):
        made = write_miniature(header, tmp_path / "m.gguf", num_bytes)
        small = read_header(made.path)
        ours, theirs = small.by_name(), header.by_name()
        assert made.num_layers >= 4
        assert {name for name in theirs if name.startswith("blk.3.")} <= set(ours)
        for name, tensor in ours.items():
            assert tensor.kind == theirs[name].kind
            if name.startswith("blk."):
                assert tensor.shape == theirs[name].shape
                assert bytes_of(small, tensor) == bytes_of(header, theirs[name])
    assert made.scale == 1
    assert made.num_tokens == len(header.tokens)


def test_a_miniature_has_the_embeddings_of_its_own_layers(tmp_path, demo_target):
    model = check_model_file(write_per_layer_model(tmp_path / "whole.gguf", demo_target))
    layers_bytes = sum(
        tensor.size_bytes for tensor in model.tensors if tensor.name.startswith("blk.")
    )
    # The fifth layer is the first that looks back at the whole text.
    for num_bytes, num_layers in ((1, 5), (0.75 * layers_bytes, 8), (10**12, 10)):
        made = write_miniature(model, tmp_path / "m.gguf", num_bytes)
        assert made.num_layers == num_layers
        small = LlamaModel.open(made.path, LlamaOptions(num_gpu_layers=0))
        assert np.isfinite(small.decode([1, 2, 3], 1)).all()
        small.close()


def bytes_of(header, tensor):
    with header.path.open("rb") as file:
        file.seek(tensor.offset)
        return file.read(min(tensor.size_bytes, 100))


@pytest.mark.process
def test_a_trial_times_a_miniature_on_the_processor(tmp_path, demo_target, monkeypatch):
    monkeypatch.setattr(device_trials, "TRIAL_S", 600.0)  # the processor may be busy
    made = write_miniature(check_model_file(demo_target), tmp_path / "m.gguf", 1)
    tried = device_trials.run_trials(made, {"whole": LlamaOptions(num_gpu_layers=0)}, 1e9)
    assert tried.fault == ""
    assert tried.times["whole"].read_s > tried.times["whole"].write_s > 0
    slow = device_trials.run_trials(
        made, {name: LlamaOptions(num_gpu_layers=0) for name in ("whole", "half")}, slow_s=0.0
    )
    assert set(slow.times) == {"whole"}


@pytest.fixture
def fake_gpu(monkeypatch, tmp_path, demo_target):
    """Measures the demo target on this machine and on a GPU whose process runs `program`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(device_trials, "trials_folder", lambda: tmp_path / "devices")
    monkeypatch.setattr(device_trials, "driver_version", lambda _: drivers_version[0])
    drivers_version = ["1"]
    started = []
    header = check_model_file(demo_target)

    def measure(program: str, *, driver="1", again=False, of_cpu=None):
        drivers_version[0] = driver

        def command(asked: str):
            on_gpu = json.loads(asked)["trials"][0]["options"]["device"] is not None
            started.append("GPU" if on_gpu else "CPU")
            return [sys.executable, "-c", program if on_gpu else of_cpu or SAID_OF_CPU]

        monkeypatch.setattr(device_trials, "trial_command", command)
        started.clear()
        found = device_trials.measured_devices(
            header, [card("Vulkan0")], measure=True, again=again
        )
        return found, list(started)

    return measure


def say(*, is_slow=False, **times):
    """A program that says these times."""
    said = [
        {"name": name, "read_s": read_s, "write_s": write_s, "is_slow": is_slow}
        for name, (read_s, write_s) in times.items()
    ]
    return "\n".join(f"print({json.dumps(each)!r}, flush=True)" for each in said)


SAID_OF_CPU = say(whole=(1.0, 0.01))
WELL = say(whole=(0.1, 0.001), offload=(0.2, 0.01), half=(0.15, 0.0065))


@pytest.mark.process
def test_what_was_measured_is_kept_until_the_driver_changes(fake_gpu):
    found, started = fake_gpu(WELL)
    assert started == ["CPU", "GPU"]
    gpu = found.gpu_times["Vulkan0"]
    assert gpu.whole.write_s == pytest.approx(found.cpu.write_s / 10)
    assert gpu.copies.write_s == pytest.approx(0.001, rel=0.5)
    again, started = fake_gpu("raise SystemExit(1)")
    assert started == []
    assert again == found
    _, started = fake_gpu(WELL, driver="2")
    assert started == ["GPU"]
    _, started = fake_gpu(WELL, again=True)
    assert started == ["CPU", "GPU"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("import os; os.abort()", "crashed in its trial (signal 6)"),
        (say(whole=(1, 1)) + "\nimport os; os.abort()", "crashed in its trial (signal 6)"),
        ("raise SystemExit(3)", "crashed in its trial (exit status 3)"),
        ("import time; time.sleep(60)", "was not done with its trial in 0 s"),
        (
            'print(\'{"error": "it refuses", "lacks_memory": false}\')',
            "failed in its trial (it refuses)",
        ),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_driver_that_fails_is_not_used_and_not_tried_again(
    fake_gpu, monkeypatch, program, fault
):
    fake_gpu(WELL)
    if "sleep" in program:
        monkeypatch.setattr(device_trials, "TRIAL_S", 0.4)
    found, _ = fake_gpu(program, driver="2")
    assert found.gpu_times["Vulkan0"] == DeviceTimes(fault=fault)
    found, started = fake_gpu(WELL, driver="2")
    assert (found.gpu_times["Vulkan0"].fault, started) == (fault, [])


@pytest.mark.process
def test_memory_that_was_short_is_tried_again(fake_gpu):
    short = 'print(\'{"error": "no memory", "lacks_memory": true}\')'
    found, _ = fake_gpu(short)
    assert "no memory" in found.gpu_times["Vulkan0"].fault
    found, started = fake_gpu(WELL)
    assert started == ["GPU"]
    assert found.gpu_times["Vulkan0"].whole is not None


@pytest.mark.process
def test_a_device_that_is_much_slower_is_compared_by_its_first_trial(fake_gpu):
    found, _ = fake_gpu(say(is_slow=True, whole=(50.0, 0.5)))
    gpu = found.gpu_times["Vulkan0"]
    assert (gpu.whole.write_s, gpu.offload) == (pytest.approx(found.cpu.write_s * 50), None)


@pytest.mark.process
def test_a_model_that_cannot_be_timed_is_placed_by_rule(fake_gpu):
    found, started = fake_gpu(WELL, of_cpu="raise SystemExit(1)")
    assert found.cpu is None
    assert found.fault == "the processor crashed in its trial (exit status 1)"
    assert started == ["CPU"]


def test_memory_that_runs_out_goes_to_the_next_plan(monkeypatch, caplog):
    """As in a load: the first plan's model does not fit after all."""
    from localspec.engine import loading

    tried = []

    def open_models(sources, sight, stack):
        tried.append(sources[0].options)
        if len(tried) == 1:
            raise MemoryLimitError("vk::OutOfDeviceMemory", "")
        return inside.open_models(sources, sight, stack)

    monkeypatch.setattr(loading, "_open_models", open_models)
    monkeypatch.setattr(
        loading, "ranked_plans", lambda files, make, measure: two_plans(files, make)
    )
    with localspec.load("demo", draft_tokens=0) as engine:
        assert engine.generate("Hello", max_tokens=2).reply().text
    assert [each.num_threads for each in tried] == [1, 2]
    assert "memory ran out (vk::OutOfDeviceMemory); trying again" in caplog.text


def two_plans(files, make_plan):
    changed = [[files[0].changed(num_threads=count), *files[1:]] for count in (1, 2)]
    return device_plans.Ranked([make_plan(each) for each in changed])


@pytest.mark.skipif(sys.platform != "linux", reason="drivers are looked for on Linux")
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "it is no description of a driver"),
        ("[]", "it is no description of a driver"),
        (
            '{"ICD": {"library_path": "/nowhere/libvulkan_x.so"}}',
            "libvulkan_x.so does not exist",
        ),
        ('{"ICD": {"library_path": "libnone_such.so"}}', "is not there, or does not fit"),
        (None, "No such file"),
    ],
)
def test_a_driver_that_cannot_be_loaded_is_named(tmp_path, monkeypatch, content, fault):
    file = tmp_path / "x_icd.json"
    if content is not None:
        file.write_text(content)
    for name in ("VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VK_DRIVER_FILES", str(file))
    cpu = card("CPU", kind="CPU")
    words = drivers.driver_fault([cpu])
    assert words.startswith(f"the Vulkan driver of {file} cannot be loaded: ")
    assert fault in words
    assert drivers.driver_fault([cpu, card("Vulkan0")]) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only there the home folder is looked in")
def test_drivers_are_looked_for_without_a_home_folder(homeless, monkeypatch):
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "GGML_VK_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(drivers.driver_fault([]), str)


def test_a_device_number_that_no_device_has_is_named(monkeypatch):
    monkeypatch.setattr(drivers, "_driver_files", list)
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "7")
    assert drivers.driver_fault([card("CPU", kind="CPU")]) == (
        "GGML_VK_VISIBLE_DEVICES=7 names a device that is not there"
    )
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "")
    assert drivers.driver_fault([]) == ""
