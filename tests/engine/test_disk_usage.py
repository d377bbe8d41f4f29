"""What an application learns of presets and their files, and what it can free."""

from __future__ import annotations

from pathlib import Path

import pytest

import localspec
from gguf_maker import write_random_model
from localspec.engine.cache_store import kept_files
from localspec.policy.profile import profiles_folder
from localspec.presets.presets import user_presets_file
from standin_hub import DRAFT, SMALL, StandinHub

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def preset(tmp_path: Path, demo_target: Path) -> localspec.Preset:
    """A pair of files, named by nothing but this object."""
    models = [
        localspec.LocalModel(
            path=write_random_model(tmp_path / f"{width}.gguf", demo_target, width=width)
        )
        for width in (192, 64)
    ]
    return localspec.Preset(name="mine", target=models[0], draft=models[1], context_length=256)


def test_all_presets_are_listed_with_what_is_here(hub: StandinHub):
    localspec.download(f"hf:{SMALL}/{DRAFT}")
    states = {state.name: state for state in localspec.list_models()}
    demo = states["demo"]
    assert demo.is_installed
    assert demo.description.startswith("A tiny pair")
    assert [path.name for path in demo.paths] == ["target.gguf", "draft.gguf"]
    assert demo.disk_bytes == demo.size_bytes == sum(p.stat().st_size for p in demo.paths)
    half = states["qwen2-7b"]
    assert not half.is_installed
    assert (half.state, [path.name for path in half.paths]) == ("partial", [DRAFT])
    assert half.disk_bytes == len(hub.files[SMALL, DRAFT].content)
    assert (states["qwen3-8b"].paths, states["qwen3-8b"].disk_bytes) == ((), 0)


def test_one_preset_is_asked_for_by_name_or_as_it_is(preset):
    assert localspec.preset_state("demo").is_installed
    assert localspec.preset_state(preset).is_installed
    preset.draft.path.unlink()
    assert localspec.preset_state(preset).state == "partial"
    for ask in (localspec.preset_state, localspec.disk_usage, localspec.free_disk):
        with pytest.raises(localspec.UnknownPresetError, match="no preset 'nope'"):
            ask("nope")


def test_a_preset_made_in_code_is_downloaded(hub: StandinHub):
    file = localspec.HubFile(repo=SMALL, file=DRAFT)
    preset = localspec.Preset(
        name="mine", target=localspec.HubModel(files=(file,)), context_length=128
    )
    with pytest.raises(localspec.PresetError, match="not on this machine") as caught:
        localspec.load(preset)
    assert "localspec.download(preset)" in caught.value.hint
    assert localspec.explain(preset).memory.context_length == 128
    (path,) = localspec.download(preset)
    assert localspec.preset_state(preset).paths == (path,)
    size = path.stat().st_size
    assert localspec.disk_usage(preset).files == {path: size}
    assert localspec.free_disk(preset, "files") == size
    assert not path.exists()
    assert localspec.free_disk("demo", "files") == 0


def use(preset: localspec.Preset) -> None:
    """Run a pair so that costs and a conversation's caches are kept."""
    with localspec.load(preset, num_threads=1, cache_disk=10**9) as engine:
        engine.chat(template="chatml").send("Hello! " * 70, max_tokens=5).reply()


def test_kept_caches_and_costs_are_those_of_the_models(tmp_path, demo_target, preset):
    use(preset)
    [mine] = kept_files()
    use(localspec.find_preset("demo"))
    kept = localspec.disk_usage(preset)
    assert kept.files == {}
    assert kept.caches == {mine: mine.stat().st_size}
    assert len(kept.costs) == 1
    assert kept.num_bytes == sum(kept.caches.values()) + sum(kept.costs.values())
    alone = localspec.Preset(name="x", target=preset.target, context_length=256)
    assert localspec.disk_usage(alone).costs == {}
    assert localspec.free_disk(preset) == 0
    assert localspec.free_disk(preset, "costs") == sum(kept.costs.values())
    assert localspec.free_disk(preset, "files", "caches") == sum(kept.caches.values())
    assert localspec.disk_usage(preset).num_bytes == 0
    assert preset.target.path.exists()
    assert len(kept_files()) == 1
    assert len(list(profiles_folder().glob("*.json"))) == 1


def test_what_is_no_use_of_the_disk_is_refused():
    with pytest.raises(
        localspec.OptionError, match="'all' is not a kind of kept data"
    ) as caught:
        localspec.free_disk("demo", "all")
    assert "files, caches, costs" in caught.value.hint


def test_while_the_users_file_is_malformed_no_file_is_deleted(hub: StandinHub):
    """A preset in it may use the files."""
    paths = localspec.download("qwen2-7b")
    preset = localspec.find_preset("qwen2-7b")
    users_file = user_presets_file()
    text = users_file.read_text()
    users_file.write_text(text + '[mine]\nextends = "qwen2-7b"\n')
    assert localspec.disk_usage(preset).files == {}
    users_file.write_text(users_file.read_text() + "[wrong]\nmodel = 3\n")
    for ask in (localspec.disk_usage, lambda kept: localspec.free_disk(kept, "files")):
        with pytest.raises(localspec.PresetError, match="wrong"):
            ask(preset)
    assert localspec.free_disk("demo", "files") == 0
    assert all(path.exists() for path in paths)
