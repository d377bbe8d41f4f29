"""The shipped models.toml."""

from __future__ import annotations

import re

import pytest

from localspec.errors import PresetError
from localspec.hub import locate
from localspec.presets import HubFile, find_preset, load_presets


@pytest.mark.parametrize("preset", load_presets().values(), ids=lambda preset: preset.name)
def test_every_preset_is_complete(preset):
    """A description, a context, and files that are pinned by commit and content."""
    assert preset.description
    assert 0 < preset.context_length <= 131072
    for file in (preset.target, preset.draft):
        if isinstance(file, HubFile):
            assert re.fullmatch(r"[0-9a-f]{40}", file.revision)
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
            assert file.size_bytes > 10**8
            assert file.file.endswith(".gguf")
        assert file.license
        assert file.quantization


def test_the_demo_pair_came_with_the_package():
    target, draft = locate(find_preset("demo"))
    assert target.stat().st_size + draft.stat().st_size <= 14_000_000


def test_a_file_in_the_hubs_cache_is_found(monkeypatch, tmp_path):
    """In the layout that every tool of the hub shares, without asking the network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    preset = find_preset("qwen2-7b")
    with pytest.raises(PresetError, match="not on this machine"):
        locate(preset)
    for file in (preset.target, preset.draft):
        folder = tmp_path / f"models--{file.repo.replace('/', '--')}/snapshots/{file.revision}"
        folder.mkdir(parents=True)
        (folder / file.file).write_bytes(b"GGUF")
    target, draft = locate(preset)
    assert target.name == preset.target.file
    assert draft.name == preset.draft.file


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(PresetError, match="'nope'") as caught:
        find_preset("nope")
    assert "demo" in caught.value.hint
