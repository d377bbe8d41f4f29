"""Model files on this machine that no preset names: used before, or in a usual folder."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path

from platformdirs import user_cache_path

from localspec.atomic_write import write_whole
from localspec.hub.cache import HubCache
from localspec.hub.hub_file import all_parts, is_of_model
from localspec.hub.other_caches import model_folders
from localspec.presets.folder_import import FolderWalk
from localspec.presets.installed import list_models

_MOST_KEPT = 100  # paths of files that were used


def note_used(path: Path) -> None:
    """Keep the path of a file that was opened, if there is room for it on disk."""
    used = os.path.abspath(path)
    lines = [*(each for each in _used() if each != used), used]
    with contextlib.suppress(OSError, UnicodeError):
        content = "\n".join(lines[-_MOST_KEPT:])
        write_whole(_used_file(), content.encode(), durable=False)


def files_here() -> list[Path]:
    """Models that were used, in this folder, or where programs keep them; each content once."""
    folders = [
        HubCache().root,
        *(one for several in model_folders().values() for one in several),
    ]
    walk = FolderWalk()
    deep = [one.path for folder in folders for one in walk.models(folder)]
    seen = {path.resolve() for state in list_models() for path in state.paths}
    # Of glob and os, since pathlib raises for folders that are gone and names too long.
    shallow = [*map(os.path.abspath, sorted(glob.glob("*.gguf"))), *_used()]
    found = {
        path.resolve(): path
        for path in (*deep, *map(Path, shallow))
        if is_of_model(path.name)
        and all_parts(path.name)[0] == path.name
        and os.path.isfile(path)
    }
    return [path for content, path in found.items() if content not in seen]


def _used() -> list[str]:
    with contextlib.suppress(OSError, UnicodeError):
        return _used_file().read_text(encoding="utf-8").splitlines()
    return []


def _used_file() -> Path:
    return user_cache_path("localspec", appauthor=False, ensure_exists=True) / "used_files"
