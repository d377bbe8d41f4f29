"""Which preset `localspec models` recommends, on machines of several sizes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import pytest

import localspec
from command_line import run
from gguf_maker import write_random_model
from localspec.advice import recommendation
from localspec.advice.recommendation import measured_bytes_per_s, recommend
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.file_content import FileContent
from localspec.llama.devices import Device
from localspec.planning.free_memory import MemoryRoom
from localspec.planning.plan import fits_by_size
from localspec.policy.profile import Profile

GIB = 1 << 30

pytestmark = pytest.mark.usefixtures("own_folders", "own_home")


@pytest.fixture
def own_home(own_folders, monkeypatch):
    """No presets of the user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own_folders))


def machine(main_gib: float, gpu_gib: float = 0) -> MemoryRoom:
    size = int(gpu_gib * GIB)
    gpu = Device(
        name="CUDA0", description="a GPU", kind="GPU", free_bytes=size, total_bytes=size
    )
    return MemoryRoom(
        main_bytes=int(main_gib * GIB), gpus=(gpu,) if gpu_gib else (), repacked={}
    )


def names_of(listed: str) -> list[str]:
    """The names in the list of presets, without their marks."""
    table, _, _ = listed.partition("\n\n")
    return [line.split()[0].rstrip("*") for line in table.splitlines()[1:]]


def test_each_shipped_preset_says_when_it_was_released():
    for state in localspec.list_models():
        is_demo = state.name.startswith("demo")
        assert is_demo == (state.preset.released == ""), state.name
        is_mixture = "mixture" in state.description
        assert is_mixture == (state.preset.active_share < 1.0), state.name


def test_what_fits_comes_first_and_of_that_the_newest(monkeypatch):
    monkeypatch.setattr(
        sys.modules["localspec.cli.commands.models"], "free_memory", lambda: machine(12)
    )
    names = names_of(run("models").stdout)
    presets = {state.name: state for state in localspec.list_models()}
    assert {*names} == {*presets}
    assert names[:2] == ["demo", "demo@head"]  # they are here
    sizes = [presets[name].size_bytes for name in names]
    fits = [size and fits_by_size(size, machine(12)) for size in sizes]
    assert fits == sorted(fits, key=[True, None, False].index)
    for order in ([True], [False]):
        part = [
            presets[name].preset.released
            for name, has_room in zip(names[2:], fits[2:], strict=True)
            if [has_room] == order
        ]
        assert len(part) > 5
        assert part == sorted(part, reverse=True)
    only = run("models", "--fits")
    assert names_of(only.stdout) == [n for n, fit in zip(names, fits, strict=True) if fit]
    listed = json.loads(run("models", "--fits", "--json").stdout)
    assert [one["name"] for one in listed] == names_of(only.stdout)
    assert all(one["fits"] for one in listed)


@pytest.mark.parametrize(
    ("room", "bytes_per_s", "name"),
    [
        (machine(64, 24), None, "qwen3.8-27b"),  # all of it on the GPU
        (machine(16, 4), None, "nemotron-3-nano-4b"),
        (machine(64), 100e9, "qwen3.8-27b"),
        (machine(10), 100e9, "gemma-4-12b"),
        (machine(8), 40e9, "gemma-4-12b"),
        (machine(32), 20e9, "qwen3.6-35b-a3b"),  # a mixture reads little
        (machine(8), 14e9, "gemma-4-e2b"),
        (machine(64), 1e9, "qwen3.6-35b-a3b"),  # none is quick
        (machine(2), 40e9, "smolvlm2-2.2b"),
        (machine(0.5), 40e9, None),
    ],
)
def test_the_largest_current_preset_that_fits_and_is_quick(room, bytes_per_s, name):
    found = recommend(localspec.list_models(), room, bytes_per_s)
    assert name == (found and found.state.name)
    if found is not None:
        assert fits_by_size(found.state.size_bytes, room)


def test_the_answer_names_a_preset_and_what_is_known(monkeypatch):
    monkeypatch.setattr(
        sys.modules["localspec.cli.commands.models"], "free_memory", lambda: machine(10)
    )
    question, numbers, command = run("models").stdout.partition("\n\n")[2].splitlines()[:3]
    assert question.startswith(
        "Which should I take? gemma-4-12b: the newest of the largest models of 2026 that fit"
    )
    assert "40 GB/s (assumed, since nothing was measured here)" in numbers
    assert command.split() == ["localspec", "chat", "gemma-4-12b"]
    assert localspec.find_preset(command.split()[-1])
    monkeypatch.setattr(
        sys.modules["localspec.cli.commands.models"], "measured_bytes_per_s", lambda *_: 5e9
    )
    question, numbers, _ = run("models").stdout.partition("\n\n")[2].splitlines()[:3]
    assert re.search("gemma-4-e2b: .* though none can write 5 tokens/s", question)
    assert "5 GB/s (measured here)" in numbers
    monkeypatch.setattr(
        sys.modules["localspec.cli.commands.models"], "free_memory", lambda: machine(0.1)
    )
    assert "Which should I take? demo: nothing else fits" in run("models").stdout


def test_the_speed_of_memory_is_that_of_a_model_that_ran_here(
    tmp_path, monkeypatch, demo_target
):
    monkeypatch.setattr(recommendation, "_LARGE_BYTES", 100_000)
    model = write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    room = machine(8)
    assert measured_bytes_per_s([model], room) is None
    header = check_model_file(model)
    setting = f"{FileContent(header).digest()} · 2 threads"
    fastest = {"1": {"0": 0.25, "7": 9.0}, "3": {"0": 0.5}}
    Profile([setting]).save({"threads": fastest})
    embeddings = header.by_name()["token_embd.weight"].size_bytes  # a row of them is read
    expected = (header.weights_bytes - embeddings) / 0.25
    assert measured_bytes_per_s([tmp_path / "gone.gguf", model], room) == expected
    assert measured_bytes_per_s([model], machine(8, 8)) is None
    mixture = write_random_model(tmp_path / "moe.gguf", demo_target, num_experts=4)
    content = FileContent(check_model_file(mixture)).digest()
    Profile([f"{content} · 2 threads"]).save({"threads": fastest})
    assert measured_bytes_per_s([mixture], room) is None


def test_a_release_is_a_month():
    preset = localspec.find_preset("qwen3-8b")
    for change in ({"released": "2026"}, {"released": "2026-13"}, {"active_share": 0.0}):
        with pytest.raises(localspec.OptionError):
            replace(preset, **change)
