"""What of the presets is on this machine: its state, whether it is whole, how to remove it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localspec.gguf_file.check import check_model_file
from localspec.models.cache import HubCache
from localspec.models.hub import locate, missing_files
from localspec.models.hub_api import RemoteFile
from localspec.models.preset import HubFile, HubModel, Model, Preset, hub_files
from localspec.models.presets import load_presets
from localspec.models.transfer import hash_file


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetState:
    """A preset and whether its files are here: "ready", "partial" or "absent".

    size_bytes: of all its files, None if one of them is not known.
    """

    preset: Preset
    state: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What removing a preset does to its files.

    owned: what goes, with its bytes. shared: what stays, with the presets that use it.
    foreign: what stays as localspec did not fetch it.
    """

    owned: dict[HubFile, int]
    shared: dict[HubFile, list[str]]
    foreign: list[HubFile]

    @property
    def num_bytes(self) -> int:
        """What becomes free."""
        return sum(self.owned.values())


def state_of(preset: Preset) -> PresetState:
    """Whether the preset's files are here. Asks no network and reads no content."""
    num_here = [_num_here(model) for model in preset.models]
    num_files = [len(hub_files([model])) or 1 for model in preset.models]
    state = "ready" if num_here == num_files else "partial" if any(num_here) else "absent"
    sizes = [_size_of(model) for model in preset.models]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return PresetState(preset=preset, state=state, size_bytes=total)


def removal_of(preset: Preset) -> Removal:
    """What `remove` would do. Models that came with localspec or lie elsewhere stay."""
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
        paths = cache.owned(file)
        if paths and not users:
            owned[file] = paths[0].stat().st_size
        elif paths:
            shared[file] = users
        elif cache.find(file):
            foreign.append(file)
    return Removal(owned=owned, shared=shared, foreign=foreign)


def remove(removal: Removal) -> int:
    """Delete what the removal owns; the bytes freed."""
    cache = HubCache()
    return sum(cache.remove(file) for file in removal.owned)


def damaged_files(preset: Preset, on_bytes: Callable[[int], None]) -> list[Path]:
    """The files of a preset whose content is not what it should be, all of them re-read.

    Of files without a known sum the header is checked. on_bytes: called with the length of
    each piece read. Raises PresetError if files are missing, ModelFileError for a local one.
    """
    paths = locate(preset).by_role()
    for role, model in preset.by_role().items():
        if not isinstance(model, HubModel):
            check_model_file(paths[role])
    cache = HubCache()
    damaged = []
    for file in hub_files(preset.models):
        named = cache.find(file)
        if named is not None and not hash_file(named, _as_stored(file, named), on_bytes):
            damaged.append(named)
    return damaged


def _as_stored(file: HubFile, named: Path) -> RemoteFile:
    """The file as the cache states it: content is named by its sum there."""
    return RemoteFile(
        file=file,
        commit=file.revision or "",
        etag=file.sha256 or named.resolve().name,
        size_bytes=named.stat().st_size,
        url="",
    )


def _num_here(model: Model) -> int:
    """How many of the model's files are here."""
    if isinstance(model, HubModel):
        return len(model.files) - len(missing_files(model))
    return int(os.path.exists(model.path))


def _size_of(model: Model) -> int | None:
    if isinstance(model, HubModel):
        return model.size_bytes
    return os.path.getsize(model.path) if os.path.exists(model.path) else None
