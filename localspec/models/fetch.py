"""From a name to files on this machine: what `localspec download` and applications call."""

from __future__ import annotations

import os
from pathlib import Path

from localspec.errors import OptionError, PresetError
from localspec.models.cache import Folder, HubCache, Place
from localspec.models.downloads import plan_download, run_download
from localspec.models.hub_api import find_quantization
from localspec.models.preset import HubFile, HubModel, hub_files
from localspec.models.presets import load_presets
from localspec.models.progress import OnProgress, Progress
from localspec.models.source import Quantized, parse_source


def files_to_download(source: str, on_progress: OnProgress) -> list[HubFile]:
    """The hub's files of a preset, or of one model named hf:… or owner/repo:QUANT.

    The latter asks the hub; on_progress is called in this thread while there is no answer.
    Raises PresetError or OptionError for what is no preset and no such name, DownloadError.
    """
    presets = load_presets()
    model = parse_source(source, "target", presets)
    if source in presets:
        return hub_files(presets[source].models)
    if isinstance(model, Quantized):
        sought = HubFile(repo=model.repo, file=f"{model.quantization}.gguf")
        waiting = Progress(file=sought, state="waiting", received_bytes=0, total_bytes=0)
        return find_quantization(model.repo, model.quantization, lambda: on_progress(waiting))
    if isinstance(model, HubModel):
        return list(model.files)
    raise PresetError(
        f"there is no preset {source!r}",
        "localspec models lists them; or name hf:owner/repo/file.gguf or owner/repo:QUANT.",
    )


def place_for(local_dir: str | os.PathLike[str] | None) -> Place:
    """A folder of the user's, or else the hub's cache. Raises OptionError for no path."""
    if local_dir is None:
        return HubCache()
    try:
        os.fsencode(local_dir)
        if "\0" in str(local_dir):
            raise ValueError("it has a NUL character")
        return Folder(Path(local_dir))
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"local_dir is {local_dir!r}, no path: {error}", "Give the path of a folder."
        ) from error


def download(
    source: str,
    *,
    local_dir: str | os.PathLike[str] | None = None,
    reuse: bool = False,
    on_progress: OnProgress = lambda _progress: None,
) -> list[Path]:
    """Fetch a preset's files, or those of one model; their paths, target first.

    Files that are here already cost nothing. What an earlier call received is kept and
    continued; every file is checked against its sha256 before it gets its name. source: a
    preset, hf:owner/repo/file.gguf, or owner/repo:QUANT. local_dir: a plain folder instead of
    the hub's cache; what stands there under a file's name is compared with its sha256, and
    refused if it is something else. reuse: take files that LM Studio, Ollama or llama.cpp
    keep, after the same check. on_progress: called in this thread when a file has come
    further, with its latest state, and a few times a second while none does; an exception
    in it ends the download within about a second.

    Raises DownloadError, PresetError, or OptionError for an argument that is none.
    """
    if not callable(on_progress):
        raise OptionError(
            f"on_progress is {on_progress!r}",
            "Give a function of one argument, or leave it out.",
        )
    place = place_for(local_dir)
    files = files_to_download(source, on_progress)
    plan = plan_download(files, place, on_progress)
    paths = run_download(plan, on_progress, reuse=reuse)
    return [paths[file] for file in files]
