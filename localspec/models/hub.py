"""Where the files of presets and named models are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from localspec.errors import DownloadError, PresetError
from localspec.models.cache import HubCache
from localspec.models.preset import (
    HubFile,
    HubModel,
    LocalModel,
    Model,
    PackagedModel,
    Preset,
    choose_quantization,
    hub_files,
)
from localspec.models.presets import user_presets_file
from localspec.models.source import Quantized, Role, parse_source


def locate(preset: Preset) -> tuple[Path, Path | None]:
    """Paths of target and draft, from the package, the hub's cache or the user's folders.

    Asks no network. Raises PresetError if files are missing, with the command that fetches
    them.
    """
    absent = missing_files(preset)
    if absent:
        names = " and ".join(file.name for file in absent)
        raise PresetError(
            f"preset {preset.name!r} needs {names}, not on this machine",
            f"Fetch with: localspec download {preset.name}",
        )
    paths = [path_of(model) for model in preset.models]
    for path in paths:
        if not os.path.isfile(path):
            raise PresetError(
                f"preset {preset.name!r}: there is no file {str(path)!r}",
                f"Correct its path in {user_presets_file()}.",
            )
    return paths[0], paths[1] if len(paths) > 1 else None


def locate_source(text: str, role: Role) -> Path:
    """The path of a model named in any of the ways of `models.source`.

    Asks no network. Raises PresetError, with the command that fetches it, if it is missing.
    """
    named = parse_source(text, role)
    model = cached_quantization(named) if isinstance(named, Quantized) else named
    if model is None or missing_files(model):
        raise PresetError(
            f"{text} is not on this machine", f"Fetch with: localspec download {text}"
        )
    return path_of(model)


def missing_files(wanted: Preset | Model) -> list[HubFile]:
    """The hub's files that are not on this machine. Asks no network."""
    models = wanted.models if isinstance(wanted, Preset) else (wanted,)
    files = hub_files(models)
    if not files:
        return []
    cache = HubCache()
    return [file for file in files if cache.find(file) is None]


def path_of(model: Model) -> Path:
    """The path of a model whose files are here; of a split one its first part."""
    if isinstance(model, PackagedModel | LocalModel):
        return model.path
    path = HubCache().find(model.files[0])
    if path is None:
        raise PresetError(f"{model.files[0].name} was removed meanwhile", "Download it again.")
    return path


def cached_quantization(model: Quantized) -> HubModel | None:
    """The model among the files of its repository that are here, if it is."""
    names = HubCache().file_names(model.repo)
    try:
        chosen = choose_quantization(model.repo, model.quantization, names)
    except DownloadError:
        return None
    return HubModel(files=tuple(HubFile(repo=model.repo, file=name) for name in chosen))
