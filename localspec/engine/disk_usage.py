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
    found by the content of the models, so only while the model files are here. If another
    preset has the same models, they are listed for neither preset."""

    @property
    def num_bytes(self) -> int:
        """The bytes of all files together."""
        num_bytes = 0
        for sizes in (self.files, self.caches, self.costs):
            num_bytes += sum(sizes.values())
        return num_bytes


def disk_usage(preset: str | Preset) -> DiskUsage:
    """The files that are kept for a preset. Asks no network.

    Raises UnknownPresetError for an unknown name, and PresetError if the preset has files that
    could be deleted while the user's own presets are malformed: one may use them, too.
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
    """The files with caches of the models that have these contents."""
    return [path for path in kept_files() if _are_of(identities_in(path), contents)]


def _profiles_of(contents: Sequence[str]) -> list[Path]:
    """The profiles of the models that have these contents.

    A profile says what the models' decodes cost, or which of their decodes are exact.
    """
    paths = []
    for path, identity, _ in kept_profiles():
        models = identity
        if is_of_exactness(identity):
            # The last part is no model, but the setting in which decodes are exact.
            models = identity[:-1]
        if _are_of(models, contents):
            paths.append(path)
    return paths


def free_disk(preset: str | Preset, *uses: DiskUse) -> int:
    """Delete the files of some kinds that are kept for a preset. Returns the bytes freed.

    A running engine still has what it has read, and writes its costs when it is closed.

    Args:
        preset: The preset, or its name.
        uses: The kinds of files to delete: "files", "caches", "costs".

    Raises:
        OptionError: For another kind.
        UnknownPresetError: For an unknown name.
        PresetError: If the preset has files that could be deleted while the user's own presets
            are malformed: one may use them, too. Nothing is deleted.
        OSError: If a file cannot be deleted.
    """
    for use in uses:
        if use not in get_args(DiskUse):
            raise OptionError(
                f"{use!r} is not a kind of kept data",
                f"Choose from: {', '.join(get_args(DiskUse))}.",
            )
    preset = as_preset(preset)
    usage = disk_usage(preset)
    to_delete: dict[Path, int] = {}
    if "caches" in uses:
        to_delete.update(usage.caches)
    if "costs" in uses:
        to_delete.update(usage.costs)
    for path in to_delete:
        path.unlink(missing_ok=True)
    num_bytes = sum(to_delete.values())
    if "files" in uses:
        cache = HubCache()
        for file in located.removal_of(preset).owned:
            num_bytes += cache.remove(file)
    return num_bytes


def _contents(preset: Preset) -> list[str]:
    """The digests of the contents of a preset's model files, the target's first.

    Empty if a file is missing or not a model, or if another preset has the same models.
    """
    paths = _paths(preset)
    for other in load_presets().values():
        if other.name != preset.name and _paths(other) == paths:
            return []
    contents = []
    try:
        for path in paths:
            content = FileContent(check_model_file(path)).digest()
            if content is None:
                return []
            contents.append(content)
    except LocalspecError:
        return []
    return contents


def _paths(preset: Preset) -> list[Path]:
    """The paths of a preset's models, the target's first; empty if one is missing."""
    try:
        return list(locate(preset).values())
    except LocalspecError:
        return []


def _are_of(identities: Sequence[str], contents: Sequence[str]) -> bool:
    """Whether the targets are the same, and each other model has one of these contents.

    Args:
        identities: See `LlamaModel.identity`; the target's first.
        contents: The digests of model files, the target's first.
    """
    model_contents = [identity.partition(" · ")[0] for identity in identities]
    is_same_target = model_contents[:1] == list(contents[:1])
    return is_same_target and set(model_contents) <= set(contents)
