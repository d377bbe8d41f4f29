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

_MAX_RUNNING = 4  # downloads at the same time
_JOIN_S = 1.0  # all threads together; one that waits longer for a silent server ends unjoined


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadPlan:
    """The files of a download, and what has to be done for them."""

    store: Store
    files: tuple[HubFile, ...]
    """All requested files in their order, each once."""

    present: dict[HubFile, Path]
    """Paths of verified files that are in the store."""

    unchecked: tuple[RemoteFile, ...]
    """Files whose name is in the store, a plain folder, with content that has to be checked."""

    missing: tuple[RemoteFile, ...]
    """Files to fetch."""

    elsewhere: dict[HubFile, ForeignFile]
    """Missing files that another program may store."""

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
    """Ask the hub about files that are not verified in the store, and plan the download.

    Raises what `download` raises, and DownloadError if two files would get the same name.

    Args:
        sources, local_dir, mmproj: Values as in `download`.
        on_progress: Called in this thread while the hub has not answered; an exception in it
            ends the planning.
    """
    store = _store_for(local_dir)
    files: dict[HubFile, None] = {}  # a set that keeps the order
    for source in sources:
        files |= dict.fromkeys(_hub_files_of(source, on_progress, mmproj=mmproj))
    present = {}
    remotes = []
    unchecked = []
    missing = []
    for file in files:
        path = store.find(file)
        if path is not None and store.is_checked:
            present[file] = path
            continue
        remote = _remote_file(file, path, on_progress)
        remotes.append(remote)
        if path is None:
            missing.append(remote)
        else:
            unchecked.append(remote)
    _check_names(remotes, store)
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
    """Carry out a plan, and return the paths of its files in their order.

    Raises DownloadError.

    Args:
        plan: The plan.
        on_progress, reuse: Values as in `download`. An exception in on_progress, Ctrl-C
            included, stops all downloads within about a second; received bytes stay.
    """
    candidates: dict[HubFile, ForeignFile] = {}
    if reuse:
        candidates = plan.elsewhere
    surely_fetched = [remote for remote in plan.missing if remote.file not in candidates]
    check_disk(_num_bytes(surely_fetched, plan.store), plan.store.root)
    news = threading.Event()
    cancelled = threading.Event()
    jobs = []
    for remote in (*plan.unchecked, *plan.missing):
        candidate = candidates.get(remote.file)
        jobs.append(DownloadJob(remote, plan.store, candidate, news, cancelled))
    try:
        _run_jobs(jobs, news, on_progress)
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


def _run_jobs(
    jobs: Sequence[DownloadJob],
    news: threading.Event,
    on_progress: OnProgress,
) -> None:
    """Run the jobs, up to `_MAX_RUNNING` at the same time. Raises the first failure of a job.

    Args:
        jobs: Jobs that were not started.
        news: The event that the jobs set when there is news.
        on_progress: Called in this thread with the progress of each running job, after news
            and a few times a second.
    """
    waiting = list(jobs)
    running: list[DownloadJob] = []
    while waiting or running:
        while waiting and len(running) < _MAX_RUNNING:
            job = waiting.pop(0)
            job.start()
            running.append(job)
        # Not a SimpleQueue: in CPython 3.11 a long signal handler makes it forget its timeout.
        news.wait(BEAT_S)
        news.clear()
        # Without news, too: an exception in on_progress is how the caller stops the download.
        for job in running[:]:
            is_over = job.is_over  # read before the progress, so that the last one is reported
            on_progress(job.progress)
            if is_over:
                running.remove(job)
                if job.failure is not None:
                    raise job.failure


def _hub_files_of(
    source: str | Preset, on_progress: OnProgress, *, mmproj: bool
) -> list[HubFile]:
    """The hub's files of a preset, or of one model named hf:… or owner/repo:QUANT.

    For owner/repo:QUANT the hub is asked; until it answers, on_progress is called in this
    thread.

    Raises:
        PresetError: The name is unknown, or a package of the preset is not installed.
        OptionError: The name is a path on this machine.
        DownloadError: The hub cannot be asked, or it has no such model.
    """
    if isinstance(source, Preset):
        for model in source.models:
            if isinstance(model, PackagedModel):
                path_of(model)  # the error says how to install it
        if mmproj:
            return hub_files(source.models)
        return hub_files(source.needed)
    resolved = resolve(source)
    if resolved.preset is not None:
        return _hub_files_of(resolved.preset, on_progress, mmproj=mmproj)
    named = resolved.model
    if isinstance(named, Quantized):
        placeholder = HubFile(repo=named.repo, file=f"{named.quantization}.gguf")
        waiting = Progress(file=placeholder, total_bytes=0)
        files = list_files(named.repo, on_wait=lambda: on_progress(waiting))
        by_name = {file.file: file for file in files}
        return _quantized_files(named, by_name, mmproj=mmproj)
    if isinstance(named, HubModel):
        return list(named.files)
    if isinstance(named, LocalModel) and os.path.exists(named.path):
        raise OptionError(
            f"{source} is on this machine: there is nothing to fetch",
            "Use it by its path.",
        )
    raise no_such_preset(source)


def _quantized_files(
    model: Quantized,
    by_name: dict[str, HubFile],
    *,
    mmproj: bool,
) -> list[HubFile]:
    """The files of a model in one quantization, and its projector from the same folder.

    Args:
        model: The model.
        by_name: All files of the repository by their names.
        mmproj: Whether to include the projector, if there is one.
    """
    names = choose_quantization(model.repo, model.quantization, list(by_name))
    first = PurePosixPath(names[0])
    if mmproj and is_of_model(names[0]):
        neighbours = []
        for name in by_name:
            path = PurePosixPath(name)
            if path.parent == first.parent:
                neighbours.append(path.name)
        projectors = named_projectors(first.name, neighbours, is_alone=True)
        if projectors:
            names.append(str(first.with_name(projectors[0])))
    return [by_name[name] for name in names]


def _store_for(local_dir: str | os.PathLike[str] | None) -> Store:
    """The user's folder, or the hub's cache if `local_dir` is None.

    Raises OptionError for an invalid path.
    """
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


def _remote_file(file: HubFile, path: Path | None, on_progress: OnProgress) -> RemoteFile:
    """A file's commit, size and checksum, from the hub.

    From the file's pin if it has one and the name is in the folder already: then nothing has to
    be fetched, only checked.

    Args:
        file: The file on the hub.
        path: The path in the user's folder that has the file's name; None without one.
        on_progress: Called while the hub has not answered.

    Raises:
        DownloadError: The hub could not be asked.
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
    """Raise DownloadError if files with different contents would get the same path."""
    by_path: dict[str, RemoteFile] = {}
    for remote in remotes:
        path = store.paths(remote).content
        # Many file systems ignore case.
        other = by_path.setdefault(str(path).casefold(), remote)
        if other.etag != remote.etag:
            raise DownloadError(
                f"{other.file.file} of {other.file.repo} and {remote.file.file} of "
                f"{remote.file.repo} would both be {path}",
                "Download them into different folders, one at a time, or leave projectors out.",
            )


def _num_bytes(remotes: Iterable[RemoteFile], store: Store) -> int:
    """The bytes still to be fetched for these files; the same content counts once."""
    sizes = {}
    for remote in remotes:
        paths = store.paths(remote)
        num_received = 0
        if paths.part.is_file():
            num_received = paths.part.stat().st_size
        sizes[paths.content] = remote.size_bytes - num_received
    return sum(sizes.values())
