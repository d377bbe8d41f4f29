"""What doctor finds here, and what it makes of it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import localspec
from command_line import run
from localspec.cli import installation
from localspec.cli.fact_sheet import FactSheet
from localspec.cli.installation import (
    HubCacheState,
    add_build,
    add_cache,
    add_cores,
    add_devices,
    add_memory,
    add_presets,
    add_stale_builds,
    add_unused_gpu,
    inspect_installation,
)
from localspec.llama import drivers, loaded, placement
from localspec.llama.devices import Device, gpus_of_drivers
from localspec.llama.quirks.amx import AmxTrial
from localspec.presets.presets import find_preset, hub_files, user_presets_file
from localspec.system.machine import Cores, Memory
from standin_hub import StandinHub

# A laptop's, whose hyperthreads are nothing to mend.
CORES = Cores(
    physical=4, logical=8, allowed=8, efficiency=0, hyperthreads=4, quota=None, usable=4
)


MEMORY = Memory(16_000_000_000, 8_000_000_000)
CACHE = HubCacheState(
    path=Path("hub"), size_bytes=0, free_bytes=10**12, is_writable=True, unfinished={}
)
BUILD = {
    "library": "llama-cpp-python",
    "build": "CPU : AVX2 = 1",
    "amx_verdict": AmxTrial.ABSENT,
    "processor_flags": frozenset({"avx2"}),
    "has_gpus": False,
}


def problems(add, *arguments, **named):
    """What is wrong with a part of the installation."""
    sheet = FactSheet()
    add(sheet, *arguments, **named)
    return sheet.problems


def test_nothing_is_found_where_nothing_is_wrong():
    assert problems(add_build, **BUILD) == []
    assert problems(add_stale_builds, {}) == []
    assert problems(add_devices, [], "") == []
    assert problems(add_unused_gpu, "", "llama-cpp-python") == []
    assert problems(add_cores, CORES) == []
    assert problems(add_memory, MEMORY, []) == []
    assert problems(add_cache, CACHE, is_offline=False) == []


@pytest.mark.parametrize(
    ("change", "what", "remedy"),
    [
        (
            {"processor_flags": frozenset({"avx2", "avx512f"})},
            "has AVX512, and",
            "localspec kernels",
        ),
        (
            {"processor_flags": frozenset({"amx_int8"})},
            "has AMX_INT8, and",
            "localspec kernels",
        ),
        (
            {"processor_flags": frozenset({"avx512f"}), "has_gpus": True},
            "has AVX512, and",
            "Build it here",
        ),
        ({"amx_verdict": AmxTrial.WRONG}, "AMX kernels fail", "CXXFLAGS=-fno-dse"),
        ({"amx_verdict": AmxTrial.UNTRIED}, "could not be tried", "neither frozen"),
    ],
)
def test_each_fault_of_a_build_has_its_remedy(change, what, remedy):
    [problem] = problems(add_build, **BUILD | change)
    assert what in problem.what
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("add", "arguments", "what", "remedy"),
    [
        (
            add_stale_builds,
            [{Path("old"): "it is of llama-cpp-python 0.3.35"}],
            "old is not used: it is of",
            "localspec kernels --remove",
        ),
        (add_devices, [[], "a driver is not there"], "a driver", "Install the driver"),
        (
            add_cores,
            [replace(CORES, allowed=2, hyperthreads=0, usable=2)],
            "2 of 8 cores",
            "taskset",
        ),
        (add_cores, [replace(CORES, quota=1.5, usable=1)], "1 of 8 cores", "container"),
        (add_memory, [Memory(16 * 10**9, 5 * 10**8), []], "0.5 GB of memory", "Close"),
    ],
)
def test_each_problem_has_its_remedy(add, arguments, what, remedy):
    [problem] = problems(add, *arguments)
    assert what in problem.what
    assert remedy in problem.remedy


def test_downloads_that_are_off_are_a_problem():
    [problem] = problems(add_cache, CACHE, is_offline=True)
    assert "offline mode" in problem.what
    assert "Unset" in problem.remedy


def test_malformed_presets_are_a_problem(own_config):
    file = user_presets_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[mine]\nmodel = 3\n")
    [problem] = problems(add_presets)
    assert str(file) in problem.what
    assert problem.remedy


CARD = Device(name="CUDA0", description="A card", kind="GPU", free_bytes=1, total_bytes=1)


@pytest.mark.parametrize(
    ("gpus", "num_gpu_layers", "hidden", "reason"),
    [
        ((), None, None, "Some H100 is not used: this build of llama.cpp cannot compute on it"),
        ((), None, "-1", "Some H100 is not used: CUDA_VISIBLE_DEVICES hides it"),
        ((), 0, None, "Some H100 is not used: num_gpu_layers=0"),
        ((CARD,), 0, None, "A card is not used: num_gpu_layers=0"),
        ((CARD,), None, None, "A card is not used: too little of its memory is free"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_gpu_that_is_not_used_is_named_with_the_reason(
    tmp_path, monkeypatch, gpus, num_gpu_layers, hidden, reason
):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t Some H100\nIRQ:   \t\t 42\n")
    names = gpus_of_drivers(tmp_path)
    monkeypatch.setattr(placement, "gpus_of_drivers", lambda: names)
    assert placement.unused_gpu(gpus, num_gpu_layers) == reason
    if not gpus and num_gpu_layers is None:
        [problem] = problems(add_unused_gpu, reason, "llama-cpp-python")
        assert problem.remedy.startswith("Unset CUDA" if hidden else "Install a build")
    if num_gpu_layers == 0 and not gpus:
        with localspec.load(draft_tokens=0, num_gpu_layers=0) as engine:
            assert engine.description.endswith(f"({reason})")


@pytest.mark.parametrize("has_vulkan", [False, True])
def test_a_variable_of_vulkan_is_no_fault_of_a_build_without_it(
    tmp_path, monkeypatch, has_vulkan
):
    fault = "GGML_VK_VISIBLE_DEVICES=7 names a device that is not there"
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(drivers, "_driver_files", list)
    if has_vulkan:
        (tmp_path / "libggml-vulkan.so").touch()
    monkeypatch.setattr(loaded, "library", replace(loaded.library, folder=tmp_path))
    sheet = inspect_installation([])
    assert sheet.values["driver_fault"] == (fault if has_vulkan else "")
    with localspec.load(draft_tokens=0) as engine:
        assert (fault in engine.description) is has_vulkan


def test_a_full_gpu_and_a_full_or_closed_disk_are_problems():
    """No layers go onto a full GPU by default."""
    full = replace(CARD, free_bytes=300_000_000, total_bytes=8 << 30)
    gpus = [full, replace(full, name="CUDA1", free_bytes=4 << 30)]
    [on_gpu] = problems(add_memory, MEMORY, gpus)
    assert "only 0.3 GB of memory is free on CUDA0" in on_gpu.what
    assert "normally leaves 1.1 GB" in on_gpu.what
    assert "num_gpu_layers=N" in on_gpu.remedy
    cache = replace(CACHE, free_bytes=10**9, is_writable=False)
    closed, disk = problems(add_cache, cache, is_offline=False)
    assert "cannot be written" in closed.what
    assert "1.0 GB of disk space is free" in disk.what


def test_unfinished_downloads_are_found_with_the_way_on(hub: StandinHub, tmp_path):
    target = hub_files(find_preset("qwen2-7b").models)[0]
    blobs = tmp_path / "cache" / "models--owner--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{target.sha256}.localspec-part").write_bytes(bytes(3_000_000))
    (blobs / "0123.localspec-part").write_bytes(b"half")
    (blobs / "0123.89abcdef.incomplete").write_bytes(b"half")
    (blobs / "4567").write_bytes(b"whole")
    found = inspect_installation(())
    cache = found.values["cache"]
    assert cache.path == tmp_path / "cache"
    assert cache.size_bytes == 3_000_000 + 4 + 4 + 5
    problems = [one for one in found.problems if "a download stopped" in one.what]
    assert len(problems) == 3
    assert all("Repeat the download" in problem.remedy for problem in problems)
    assert any("after 3.0 MB" in problem.what for problem in problems)


def test_the_most_serious_problem_comes_first():
    """Even if the facts that it is about come last."""
    sheet = FactSheet()
    add_stale_builds(sheet, {Path("old"): "it is of llama-cpp-python 0.3.35"})
    add_devices(sheet, [], "a driver is not there")
    add_memory(sheet, Memory(16 * 10**9, 5 * 10**8), [])
    add_cache(sheet, CACHE, is_offline=True)
    lines = re.findall(r"^Problem +(.+)", sheet.text(), re.M)
    assert lines == [problem.what for problem in sheet.problems]
    starts = ("offline mode", "a driver", "the libllama in old", "0.5 GB of memory")
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))


def test_json_has_all_of_it():
    whole = json.loads(run("doctor", "--json").output)
    assert whole["cores"].keys() >= {"allowed", "efficiency", "hyperthreads", "quota", "usable"}
    assert {device["kind"] for device in whole["devices"]} >= {"CPU"}
    assert all(one.keys() == {"what", "remedy"} for one in whole["problems"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "4 of 8 cores; not used: 4 hyperthreads"),
        (
            {"allowed": 7, "efficiency": 4, "hyperthreads": 1, "quota": 1.5, "usable": 1},
            "1 of 8 cores; not used: 1 excluded core, 4 efficiency cores, 1 hyperthread, the "
            "container's quota is 1.5",
        ),
    ],
)
def test_a_stranger_understands_it(monkeypatch, change, words):
    """Cores that are left out have a reason, and there is one number for the free memory."""
    monkeypatch.setattr(installation, "cores_here", lambda: replace(CORES, **change))
    monkeypatch.setattr(installation, "memory_here", lambda: MEMORY)
    output = run("doctor").output
    assert f"Cores {words} " in " ".join(output.split()) + " "
    assert re.search(r"^Conversations /", output, re.M)
    assert "Memory        8.0 GB of 16.0 GB free\n" in output
    assert set(re.findall(r"([\d.]+ GB)(?: of [\d.]+ GB)? free", output)) == {"8.0 GB"}
