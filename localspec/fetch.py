"""From a name to files on this machine: what `localspec download` and applications call."""

from __future__ import annotations

from pathlib import Path

from localspec.cache import Folder, HubCache, Place
from localspec.downloads import OnProgress, plan_download, run_download
from localspec.errors import PresetError
from localspec.hub_api import cache_folder, find_quantization
from localspec.model_source import Quantized, parse_source
from localspec.preset import HubFile, HubModel, hub_files
from localspec.presets import load_presets


def files_to_download(source: str) -> list[HubFile]:
    """The hub's files of a preset, or of one model named hf:… or owner/repo:QUANT.

    The latter asks the hub. Raises PresetError for what is no preset and no such name.
    """
    presets = load_presets()
    if source in presets:
        return hub_files(presets[source].models)
    model = parse_source(source, "target", presets)
    if isinstance(model, Quantized):
        return find_quantization(model.repo, model.quantization)
    if isinstance(model, HubModel):
        return list(model.files)
    raise PresetError(
        f"there is no preset {source!r}",
        "localspec models lists them; or name hf:owner/repo/file.gguf or owner/repo:QUANT.",
    )


def place_for(local_dir: Path | None) -> Place:
    """A folder of the user's, or else the hub's cache."""
    return HubCache(cache_folder()) if local_dir is None else Folder(local_dir)


def download(
    source: str,
    *,
    local_dir: Path | None = None,
    reuse: bool = False,
    on_progress: OnProgress = lambda _progress: None,
) -> list[Path]:
    """Fetch a preset's files, or those of one model; their paths, target first.

    Files that are here already cost nothing. What an earlier call received is kept and
    continued; every file is checked against its sha256 before it gets its name. source: a
    preset, hf:owner/repo/file.gguf, or owner/repo:QUANT. local_dir: a plain folder instead of
    the hub's cache. reuse: take files that LM Studio, Ollama or llama.cpp keep, after the
    same check. on_progress: called in this thread; an exception in it ends the download.

    Raises DownloadError or PresetError.
    """
    files = files_to_download(source)
    plan = plan_download(files, place_for(local_dir))
    paths = run_download(plan, on_progress, reuse=reuse)
    return [paths[file] for file in files]
