"""Where a preset's files are on this machine."""

from __future__ import annotations

from pathlib import Path

from localspec.errors import PresetError
from localspec.presets import HubFile, PackagedFile, Preset


def locate(preset: Preset) -> tuple[Path, Path | None]:
    """Paths of target and draft, from the package or the hub's standard cache.

    Asks no network. Raises PresetError, with the commands that fetch them, if files are
    missing.
    """
    files = [preset.target] if preset.draft is None else [preset.target, preset.draft]
    paths = [_find(file) for file in files]
    absent = [file for file, path in zip(files, paths, strict=True) if path is None]
    if absent:
        names = " and ".join(file.file for file in absent)
        raise PresetError(
            f"preset {preset.name!r} needs {names}, not on this machine",
            "Fetch them with: " + " && ".join(map(_download_command, absent)),
        )
    found = [path for path in paths if path is not None]
    return found[0], found[1] if len(found) > 1 else None


def _find(file: PackagedFile | HubFile) -> Path | None:
    if isinstance(file, PackagedFile):
        return file.path
    # Imported late: it takes longer than everything else here together.
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(file.repo, file.file, revision=file.revision)
    return Path(cached) if isinstance(cached, str) else None


def _download_command(file: PackagedFile | HubFile) -> str:
    if isinstance(file, PackagedFile):
        return "python -m pip install --force-reinstall localspec"
    return f"hf download {file.repo} {file.file} --revision {file.revision}"
