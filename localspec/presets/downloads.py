"""Downloads models by their names: plans, checks the disk, fetches several files at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from localspec.errors import DownloadError, OptionError
from localspec.gguf_file.projector_facts import named_projectors
from localspec.hub.api import BEAT_S, RemoteFile, list_files, pinned_file, remote_file
from localspec.hub.hub_file import HubFile, HubModel, choose_quantization, is_of_model
from localspec.hub.model_stores import (
    Folder,
    ForeignFile,
    HubCache,
    Store,
    check_disk,
    find_elsewhere,
    free_bytes,
)
from localspec.hub.transfer import DownloadJob, OnProgress, Progress
from localspec.presets.located import path_of
from localspec.presets.model_names import Quantized, resolve
from localspec.presets.presets import (
    LocalModel,
    PackagedModel,
    Preset,
    hub_files,
    no_such_preset,
)

_MAX_AT_ONCE = 4
_JOIN_S = 1.0  # a thread that waits longer for a silent server ends later, unjoined


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadPlan:
    """The files of a download, and what is to be done for them."""

    store: Store
    files: tuple[HubFile, ...]
    """All requested files, each once, in their order."""

    present: dict[HubFile, Path]
    """Paths of files that are there."""

    unchecked: tuple[RemoteFile, ...]
    """Files of the right name in a folder, where they may have any content."""

    missing: tuple[RemoteFile, ...]
    """Files to fetch."""

    elsewhere: dict[HubFile, ForeignFile]
    """Missing files that another program stores."""

    num_bytes: int
    """Bytes to fetch, without those received before."""

    free_bytes: int
    """Free bytes on the disk of the store."""


def download(
    source: str | Preset,
    *,
    local_dir: str | os.PathLike[str] | None = None,
    reuse: bool = False,
    mmproj: bool = True,
    on_progress: OnProgress = lambda _progress: None,
) -> list[Path]:
    """Fetch a preset's files, or those of one model; returns their paths, target first.

    Files that are here already are not fetched. An interrupted download continues where it
    stopped; every file is checked against its sha256 before it gets its name.

    Raises DownloadError, PresetError, or OptionError for an invalid argument.

    Args:
        source: A preset or its name, hf:owner/repo/file.gguf, hf:owner/repo@revision/file.gguf,
            or owner/repo:QUANT.
        local_dir: A plain folder instead of the hub's cache; a file that has the right name
            there is checked against the sha256, and refused if it differs.
        reuse: Use files that LM Studio, Ollama or llama.cpp store, after the same check.
        mmproj: Fetch the projector, too, with which the model sees, if there is one.
        on_progress: Called in this thread with the latest state of a file that has made
            progress, and a few times a second while none has; an exception in it ends the
            download within about a second.
    """
    if not callable(on_progress):
        raise OptionError(f"on_progress is {on_progress!r}", "Give a function of one argument.")
    plan = plan_download(
        [source],
        local_dir,
        on_progress,
        mmproj=mmproj,
    )
    return run_download(plan, on_progress, reuse=reuse)


def plan_download(
    sources: Sequence[str | Preset],
    local_dir: str | os.PathLike[str] | None,
    on_progress: OnProgress,
    *,
    mmproj: bool,
) -> DownloadPlan:
    """Ask the hub about every file that is not known to be there.

    Raises what `download` raises, DownloadError also if two files would get the same name.

    Args:
        sources, local_dir, mmproj: Values as in `download`.
        on_progress: Called in this thread while there is no answer; an exception in it ends the
            planning.
    """
    store = _store_for(local_dir)
    files: dict[HubFile, None] = {}  # a set that keeps the order
    for source in sources:
        files |= dict.fromkeys(_files_of(source, on_progress, mmproj=mmproj))
    present = {}
    asked = []
    unchecked = []
    missing = []
    for file in files:
        path = store.find(file)
        if path is not None and store.is_checked:
            present[file] = path
            continue
        remote = _remote_of(file, path, on_progress)
        asked.append(remote)
        if path is None:
            missing.append(remote)
        else:
            unchecked.append(remote)
    _check_names(asked, store)
    elsewhere = {}
    for remote in missing:
        foreign = find_elsewhere(remote)
        if foreign is not None:
            elsewhere[remote.file] = foreign
    return DownloadPlan(
        store=store,
        files=tuple(files),
        present=present,
        unchecked=tuple(unchecked),
        missing=tuple(missing),
        elsewhere=elsewhere,
        num_bytes=_num_bytes(missing, store),
        free_bytes=free_bytes(store.root),
    )


def run_download(plan: DownloadPlan, on_progress: OnProgress, *, reuse: bool) -> list[Path]:
    """Carry out the plan; returns the path of each of its files.

    Raises DownloadError.

    Args:
        on_progress, reuse: Values as in `download`. An exception in on_progress, Ctrl-C
            included, stops everything within about a second; received bytes stay.
    """
    candidates: dict[HubFile, ForeignFile] = {}
    if reuse:
        candidates = plan.elsewhere
    fetched = [remote for remote in plan.missing if remote.file not in candidates]
    check_disk(_num_bytes(fetched, plan.store), plan.store.root)
    news = threading.Event()
    cancelled = threading.Event()
    jobs = []
    for remote in (*plan.unchecked, *plan.missing):
        candidate = candidates.get(remote.file)
        jobs.append(DownloadJob(remote, plan.store, candidate, news, cancelled))
    try:
        _run_together(jobs, news, on_progress)
    finally:
        cancelled.set()
        end = time.monotonic() + _JOIN_S
        for job in jobs:
            if job.is_alive():
                job.join(max(0.0, end - time.monotonic()))
    paths = dict(plan.present)
    for job in jobs:
        paths[job.remote.file] = job.path
    return [paths[file] for file in plan.files]


def _run_together(
    jobs: Sequence[DownloadJob],
    news: threading.Event,
    on_progress: OnProgress,
) -> None:
    """Run the jobs, a few at a time. Raises the first failure."""
    waiting = list(jobs)
    running = list[DownloadJob]()
    while waiting or running:
        while waiting and len(running) < _MAX_AT_ONCE:
            running.append(waiting.pop(0))
            running[-1].start()
        # Not a SimpleQueue: in CPython 3.11 a long signal handler makes it forget its timeout.
        news.wait(BEAT_S)
        news.clear()
        # Reports without news, too: the caller may want to stop the download.
        for job in running[:]:
            is_over = job.is_over  # read first, so that its last progress is reported
            on_progress(job.progress)
            if is_over:
                running.remove(job)
                if job.failure is not None:
                    raise job.failure


def _files_of(source: str | Preset, on_progress: OnProgress, *, mmproj: bool) -> list[HubFile]:
    """The hub's files of a preset, or of one model named hf:… or owner/repo:QUANT.

    For owner/repo:QUANT the hub is asked; on_progress is called in this thread meanwhile.
    Raises PresetError or OptionError for any other name, DownloadError.
    """
    if isinstance(source, Preset):
        for packaged in source.models:
            if isinstance(packaged, PackagedModel):
                path_of(packaged)  # the error says how to install it
        if mmproj:
            return hub_files(source.models)
        return hub_files(source.needed)
    found = resolve(source)
    if found.preset is not None:
        return _files_of(found.preset, on_progress, mmproj=mmproj)
    model = found.model
    if isinstance(model, Quantized):
        sought = HubFile(repo=model.repo, file=f"{model.quantization}.gguf")
        waiting = Progress(file=sought, total_bytes=0)
        listed = list_files(model.repo, on_wait=lambda: on_progress(waiting))
        by_name = {file.file: file for file in listed}
        return _chosen(model, by_name, mmproj=mmproj)
    if isinstance(model, HubModel):
        return list(model.files)
    if isinstance(model, LocalModel) and os.path.exists(model.path):
        raise OptionError(
            f"{source} is on this machine: there is nothing to fetch",
            "Use it by its path.",
        )
    raise no_such_preset(source)


def _chosen(model: Quantized, listed: dict[str, HubFile], *, mmproj: bool) -> list[HubFile]:
    """Files of a repository's model, and its projector from the same folder."""
    chosen = choose_quantization(model.repo, model.quantization, list(listed))
    if mmproj and is_of_model(chosen[0]):
        path = PurePosixPath(chosen[0])
        neighbours = []
        for name in listed:
            other = PurePosixPath(name)
            if other.parent == path.parent:
                neighbours.append(other.name)
        projectors = named_projectors(path.name, neighbours, is_alone=True)
        if projectors:
            chosen.append(str(path.with_name(projectors[0])))
    return [listed[name] for name in chosen]


def _store_for(local_dir: str | os.PathLike[str] | None) -> Store:
    """The user's folder, or the hub's cache. Raises OptionError for an invalid path."""
    if local_dir is None:
        return HubCache()
    try:
        os.fsencode(local_dir)
        if "\0" in str(local_dir):
            raise ValueError("it has a NUL character")
        return Folder(Path(local_dir))
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"local_dir is {local_dir!r}, not a path: {error}",
            "Give the path of a folder.",
        ) from error


def _remote_of(file: HubFile, path: Path | None, on_progress: OnProgress) -> RemoteFile:
    """The file's size and checksum, by its pin or from the hub.

    Args:
        file: The file on the hub.
        path: The local file of its name, if there is one.
        on_progress: Called while the hub has not answered.
    """
    if path is not None:
        pinned = pinned_file(file, path.stat().st_size)
        if pinned is not None:
            return pinned
    waiting = Progress(file=file, total_bytes=file.size_bytes or 0)
    try:
        return remote_file(file, lambda: on_progress(waiting))
    except DownloadError as error:
        if path is None:
            raise
        raise DownloadError(
            f"{path} is there, but its content could not be checked: {error}",
            f"{error.hint} Or use the file as it is, by its path.".strip(),
        ) from error


def _check_names(remotes: Iterable[RemoteFile], store: Store) -> None:
    """Raise DownloadError if different contents would get the same name."""
    names: dict[str, RemoteFile] = {}
    for remote in remotes:
        path = store.slot(remote).content
        # Many file systems ignore case.
        other = names.setdefault(str(path).casefold(), remote)
        if other.etag != remote.etag:
            raise DownloadError(
                f"{other.file.file} of {other.file.repo} and {remote.file.file} of "
                f"{remote.file.repo} would both be {path}",
                "Download them into different folders, one at a time, or leave projectors out.",
            )


def _num_bytes(remotes: Iterable[RemoteFile], store: Store) -> int:
    """Bytes still to be written; files with the same content count once."""
    sizes = {}
    for remote in remotes:
        slot = store.slot(remote)
        size = remote.size_bytes
        if slot.part.is_file():
            size -= slot.part.stat().st_size
        sizes[slot.content] = size
    return sum(sizes.values())
