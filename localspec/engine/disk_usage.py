"""Files that localspec keeps on this machine for a preset, and how to free them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from localspec.engine.cache_file import identities_in
from localspec.engine.cache_store import file_sizes, kept_files
from localspec.errors import LocalspecError, OptionError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.file_content import FileContent
from localspec.hub.model_stores import HubCache
from localspec.policy.profile import is_of_exactness, kept_profiles
from localspec.presets import located
from localspec.presets.located import locate
from localspec.presets.presets import Preset, as_preset, load_presets

DiskUse = Literal["files", "caches", "costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """Files that could be freed, each with its bytes."""

    files: Mapping[Path, int]
    """Models that localspec fetched and no other preset uses, also partly received ones."""

    caches: Mapping[Path, int]
    """Kept caches of conversations."""

    costs: Mapping[Path, int]
    """What decodes cost on this machine, learned while the models ran. Caches and costs are
    found by the content of the models, so only while the model files are here. Where another
    preset has the same models, they count for neither."""

    @property
    def num_bytes(self) -> int:
        """The bytes of all files together."""
        return sum(sum(files.values()) for files in (self.files, self.caches, self.costs))


def disk_usage(preset: str | Preset) -> DiskUsage:
    """The files that are kept for a preset. Asks no network.

    Raises UnknownPresetError for an unknown name.
    """
    preset = as_preset(preset)
    cache = HubCache()
    removal = located.removal_of(preset)
    files = {}
    for file, size in removal.owned.items():
        path = cache.owned(file)
        if path is not None:
            files[path] = size
    contents = _contents(preset)
    if not contents:
        return DiskUsage(files=files, caches={}, costs={})
    caches = file_sizes(_caches_of(contents))
    costs = file_sizes(_profiles_of(contents))
    return DiskUsage(files=files, caches=caches, costs=costs)


def _caches_of(contents: Sequence[str]) -> list[Path]:
    """The files of caches of these models."""
    return [path for path in kept_files() if _are_of(identities_in(path), contents)]


def _profiles_of(contents: Sequence[str]) -> list[Path]:
    """The files that say what decodes of these models cost, or which of them are exact."""
    paths = []
    for path, identity, _ in kept_profiles():
        models = identity
        if is_of_exactness(identity):
            # Its last part is no model, but the setting in which decodes are exact.
            models = identity[:-1]
        if _are_of(models, contents):
            paths.append(path)
    return paths


def free_disk(preset: str | Preset, *uses: DiskUse) -> int:
    """Delete what is kept for a preset. Returns the bytes freed.

    A running engine keeps what it has read, and writes its costs when it is closed.

    Args:
        preset: The preset, or its name.
        uses: What to delete: "files", "caches", "costs".

    Raises:
        OptionError: For another use.
        UnknownPresetError: For an unknown name.
        OSError: If a file cannot be deleted.
    """
    for use in uses:
        if use not in get_args(DiskUse):
            raise OptionError(
                f"{use!r} is not a kind of kept data",
                f"Choose from: {', '.join(get_args(DiskUse))}.",
            )
    preset = as_preset(preset)
    kept = disk_usage(preset)
    doomed: dict[Path, int] = {}
    if "caches" in uses:
        doomed.update(kept.caches)
    if "costs" in uses:
        doomed.update(kept.costs)
    for path in doomed:
        path.unlink(missing_ok=True)
    num_bytes = sum(doomed.values())
    if "files" in uses:
        cache = HubCache()
        for file in located.removal_of(preset).owned:
            num_bytes += cache.remove(file)
    return num_bytes


def _contents(preset: Preset) -> list[str]:
    """The content of each model (`FileContent`).

    Empty where a file is missing or not a model, or where another preset has the same models.
    """
    paths = _paths(preset)
    others = [other for other in load_presets().values() if other.name != preset.name]
    if any(_paths(other) == paths for other in others):
        return []
    try:
        headers = [check_model_file(path) for path in paths]
    except LocalspecError:
        return []
    contents = [FileContent(header).digest() for header in headers]
    if None in contents:
        return []
    return [content for content in contents if content]


def _paths(preset: Preset) -> list[Path]:
    """Where the models are, the target first; none where one is missing."""
    try:
        return list(locate(preset).values())
    except LocalspecError:
        return []


def _are_of(identities: Sequence[str], contents: Sequence[str]) -> bool:
    """Whether the models with these identities are among those with these contents.

    Args:
        identities, contents: The target's first; see `LlamaModel.identity`.
    """
    own = [identity.partition(" · ")[0] for identity in identities]
    return own[:1] == list(contents[:1]) and set(own) <= set(contents)
