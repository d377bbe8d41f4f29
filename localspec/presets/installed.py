"""Lists the presets on this machine, checks their files and removes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localspec.hub.cache import HubCache
from localspec.hub.hub_file import HubFile, HubModel, all_parts
from localspec.hub.transfer import has_checksum
from localspec.presets.located import locate, missing_files
from localspec.presets.model_header import role_header
from localspec.presets.preset import Preset, PresetModel, hub_files
from localspec.presets.presets import as_preset, load_presets


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetState:
    """A preset, and whether the files it needs are here: "ready", "partial" or "absent".

    size_bytes: of all its files, None if one of them is unknown. paths: of the files that are
    here, whoever put them there; disk_bytes: their size.
    """

    preset: Preset
    state: str
    size_bytes: int | None
    paths: tuple[Path, ...]
    disk_bytes: int

    @property
    def name(self) -> str:
        """The preset's name."""
        return self.preset.name

    @property
    def description(self) -> str:
        """The preset's description."""
        return self.preset.description

    @property
    def is_installed(self) -> bool:
        """Whether all files it needs are here."""
        return self.state == "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The effect of removing a preset on its files.

    owned: files that are deleted, with their bytes. shared: files that stay, with the presets
    that use them. foreign: files that stay because localspec did not fetch them.
    """

    owned: dict[HubFile, int]
    shared: dict[HubFile, list[str]]
    foreign: list[HubFile]

    @property
    def num_bytes(self) -> int:
        """Bytes that are freed."""
        return sum(self.owned.values())


def list_models() -> list[PresetState]:
    """All presets, the shipped ones first, and whether their files are here.

    Uses no network and reads no model. A malformed file of the user's counts as empty, with a
    warning.
    """
    return [preset_state(preset) for preset in load_presets().values()]


def preset_state(preset: str | Preset) -> PresetState:
    """Whether the files of a preset are here. Reads as little as `list_models`.

    Raises UnknownPresetError for an unknown name.
    """
    preset = as_preset(preset)
    here = [path for model in preset.models for path in _files_of(model) if path is not None]
    paths = tuple(dict.fromkeys(here))
    is_ready = all(None not in _files_of(model) for model in preset.needed)
    state = "absent" if not paths else "ready" if is_ready else "partial"
    sizes = [size_of(model) for model in preset.models]
    return PresetState(
        preset=preset,
        state=state,
        size_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        paths=paths,
        disk_bytes=sum(path.stat().st_size for path in paths),
    )


def removal_of(preset: Preset) -> Removal:
    """The effect of `remove_preset`. Models outside of the cache stay."""
    cache = HubCache()
    owned: dict[HubFile, int] = {}
    shared: dict[HubFile, list[str]] = {}
    foreign: list[HubFile] = []
    others = [
        other
        for other in load_presets().values()
        if other.name != preset.name and not missing_files(other)
    ]
    for file in hub_files(preset.models):
        users = [other.name for other in others if file in hub_files(other.models)]
        path = cache.owned(file)
        if path and not users:
            owned[file] = path.stat().st_size
        elif path:
            shared[file] = users
        elif cache.find(file):
            foreign.append(file)
    return Removal(owned=owned, shared=shared, foreign=foreign)


def remove_preset(removal: Removal) -> int:
    """Delete what the removal owns; returns the freed bytes."""
    cache = HubCache()
    return sum(cache.remove(file) for file in removal.owned)


def damaged_files(preset: Preset, on_bytes: Callable[[int], None]) -> list[Path]:
    """Read all files of a preset, and return those with wrong content.

    Of files that are not on the hub, the headers are checked. on_bytes: called with the length
    of each piece read. Raises PresetError if files are missing, ModelFileError for a local one.
    """
    paths = locate(preset)
    for role, model in preset.by_role().items():
        if not isinstance(model, HubModel):
            role_header(paths[role], role)
    cache = HubCache()
    damaged = []
    for file in hub_files(preset.models):
        named = cache.find(file)
        if named is None:
            continue
        checksum = file.sha256 or named.resolve().name  # the cache names content by its sum
        if not has_checksum(named, checksum, on_bytes):
            damaged.append(named)
    return damaged


def _files_of(model: PresetModel) -> list[Path | None]:
    """The path of each of the model's files, None if it is not here."""
    if isinstance(model, HubModel):
        cache = HubCache()
        return [cache.find(file) for file in model.files]
    paths = [model.path.with_name(name) for name in all_parts(model.path.name)]
    return [path if os.path.isfile(path) else None for path in paths]


def size_of(model: PresetModel) -> int | None:
    """Bytes of all its files; None if one is unknown, or a local one is not here."""
    if isinstance(model, HubModel):
        return model.size_bytes
    sizes = [None if path is None else path.stat().st_size for path in _files_of(model)]
    return None if None in sizes else sum(size or 0 for size in sizes)
