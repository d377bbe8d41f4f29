"""Arguments and files of presets that are no names, paths or functions."""

from __future__ import annotations

import pytest

import localspec
from localspec.errors import OptionError, PresetError
from localspec.hub.api import list_files
from localspec.hub.hub_file import HubFile, HubModel, all_parts
from localspec.presets.located import locate, preset_state
from localspec.presets.preset_file import read_presets
from localspec.presets.presets import load_presets
from localspec.presets.user_presets import add_preset
from standin_hub import StandinHub


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": None},
        {"local_dir": 3},
        {"local_dir": "\0"},
        {"on_progress": "print"},
    ],
    ids=lambda wrong: str(wrong)[:30],
)
def test_arguments_of_download(hub: StandinHub, wrong):
    with pytest.raises(OptionError) as caught:
        localspec.download(**{"source": "demo", **wrong})
    assert caught.value.hint


def test_a_users_file_that_cannot_be_read_is_told_by_add(hub: StandinHub, tmp_path):
    (tmp_path / "config/localspec/models.toml").write_bytes(b"\xff")
    with pytest.raises(PresetError, match="cannot be read"):
        add_preset("x", {"target": "demo"}, description="d", context_length=8)


def test_a_model_of_no_parts():
    head = '[a]\ndescription = "d"\ncontext_length = 5\n'
    with pytest.raises(PresetError, match=r"mine: \[a.target\] .*no files"):
        read_presets("mine", f'{head}[a.target]\nrepo = "o/m"\nparts = []\n', {})
    with pytest.raises(OptionError, match="no files") as caught:
        HubModel(files=())
    assert caught.value.hint


@pytest.mark.parametrize("numbers", ["00000-of-00000", "00000-of-00002", "00003-of-00002"])
def test_parts_that_there_cannot_be(numbers):
    name = f"x-{numbers}.gguf"
    assert all_parts(name) == [name]
    with pytest.raises(OptionError, match="is part") as caught:
        HubFile(repo="o/m", file=name)
    assert "00001" in caught.value.hint


def test_odd_names_in_a_repository_do_not_hide_the_others(hub: StandinHub):
    for name in ("x-00000-of-00000.gguf", "x[Q4_0].gguf", "größer-Q4_0.gguf", "x-Q4_0.gguf"):
        hub.add("o/m", name, b"GGUF" * 5000)
    assert [file.file for file in list_files("o/m")] == ["x-Q4_0.gguf"]
    (path,) = localspec.download("o/m:Q4_0")
    assert path.name == "x-Q4_0.gguf"


@pytest.mark.parametrize("path", ["~nouser/x.gguf", "x" * 5000, "\\u0000"])
def test_a_preset_of_no_path_leaves_the_others(hub: StandinHub, tmp_path, path):
    presets = tmp_path / "config/localspec/models.toml"
    presets.write_text(
        f'[a]\ndescription = "d"\ncontext_length = 5\n[a.target]\npath = "{path}"\n'
    )
    assert preset_state(load_presets()["a"]).state == "absent"
    locate(load_presets()["demo"])
    with pytest.raises(PresetError, match="preset 'a': there is no file") as caught:
        localspec.load("a")
    assert str(presets) in caught.value.hint
