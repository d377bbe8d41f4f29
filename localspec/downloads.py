"""Several files at once, into one place: plan, check the disk, fetch, publish."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.cache import Place, Slot
from localspec.errors import DownloadError
from localspec.hub_api import HubBusyError, RemoteFile, remote_file
from localspec.other_caches import Candidate, find_elsewhere
from localspec.preset import HubFile
from localspec.transfer import Listener, Transfer, disk_error, hash_file, wait_before_retry_s

_MAX_AT_ONCE = 4
_MAX_ASKS = 4
_LOCK_POLL_S = 0.5
_JOIN_S = 2.0  # a thread that waits for a silent server longer than that ends by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one file is.

    state: "checking" (bytes that were here already), "downloading", "waiting" (for the hub,
    or for another process that fetches the same file), or "done".
    """

    file: HubFile
    state: str
    received_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a download will do.

    present: files that are there, with their paths. missing: files to fetch. elsewhere:
    those of the missing that another program keeps. num_bytes: to fetch, without what was
    received before. free_bytes: on the disk of the place.
    """

    place: Place
    present: dict[HubFile, Path]
    missing: tuple[RemoteFile, ...]
    elsewhere: dict[HubFile, Candidate]
    num_bytes: int
    free_bytes: int


def plan_download(files: Sequence[HubFile], place: Place) -> Plan:
    """Ask the hub about every file that is not there yet.

    Raises DownloadError, also if the disk has too little room.
    """
    found = {file: place.find(file) for file in files}
    missing = tuple(_ask_patiently(file) for file, path in found.items() if path is None)
    num_bytes = sum(remote.size_bytes - _received(place.slot(remote)) for remote in missing)
    candidates = {remote.file: find_elsewhere(_with_facts(remote)) for remote in missing}
    return Plan(
        place=place,
        present={file: path for file, path in found.items() if path is not None},
        missing=missing,
        elsewhere={file: one for file, one in candidates.items() if one is not None},
        num_bytes=num_bytes,
        free_bytes=free_bytes(place.root),
    )


def run_download(plan: Plan, on_progress: OnProgress, *, reuse: bool) -> dict[HubFile, Path]:
    """Do what the plan says; the path of every file.

    on_progress is called from this thread. reuse: take what other programs keep, after its
    content was checked, instead of fetching it. An exception in on_progress, Ctrl-C included,
    stops everything; what was received stays. Raises DownloadError.
    """
    if plan.num_bytes > plan.free_bytes and not reuse:
        raise DownloadError(
            f"{plan.num_bytes} bytes are to be downloaded, {plan.free_bytes} are free "
            f"at {plan.place.root}",
            "Make room, or choose another place: --local-dir DIR, or HF_HUB_CACHE=DIR.",
        )
    jobs = [
        _Job(remote, plan.place, plan.elsewhere.get(remote.file) if reuse else None)
        for remote in plan.missing
    ]
    paths = dict(plan.present)
    for job in _run_together(jobs, on_progress):
        paths[job.remote.file] = job.path
    return paths


class _Job(threading.Thread):
    """One file on its way, in a thread of its own."""

    def __init__(self, remote: RemoteFile, place: Place, candidate: Candidate | None) -> None:
        super().__init__(name=f"download-{remote.file.name}", daemon=True)
        self.remote = remote
        self.path = Path()
        self.failure: Exception | None = None
        self._place = place
        self._candidate = candidate

    def connect(self, events: queue.Queue[Progress | _Job], cancelled: threading.Event) -> None:
        """Say whom to tell and what stops it. Before `start`."""
        self._events = events
        self._listener = Listener(self._tell, cancelled)

    def run(self) -> None:
        try:
            self.path = self._fetch()
            self._tell("done", self.remote.size_bytes)
        except Exception as error:
            self.failure = error
        self._events.put(self)

    def _tell(self, state: str, received: int) -> None:
        self._events.put(
            Progress(
                file=self.remote.file,
                state=state,
                received_bytes=received,
                total_bytes=self.remote.size_bytes,
            )
        )

    def _fetch(self) -> Path:
        slot = self._place.slot(self.remote)
        try:
            slot.content.parent.mkdir(parents=True, exist_ok=True)
            slot.lock.parent.mkdir(parents=True, exist_ok=True)
            with self._lock(slot.lock):
                fetched = not self._is_there(slot)
                if fetched:
                    self._obtain(slot)
                return self._place.publish(self.remote, fetched=fetched)
        except OSError as error:
            raise disk_error(error, slot.content) from error

    @contextlib.contextmanager
    def _lock(self, path: Path) -> Iterator[None]:
        """The lock that huggingface_hub takes, too; waited for as long as another has it."""
        import filelock

        lock = filelock.FileLock(path)
        while True:
            try:
                lock.acquire(timeout=_LOCK_POLL_S)
                break
            except filelock.Timeout:
                self._tell("waiting", 0)
                if self._listener.cancelled.is_set():
                    raise DownloadError("the download was stopped") from None
        try:
            yield
        finally:
            lock.release()

    def _is_there(self, slot: Slot) -> bool:
        """Whether the content is there: another process or another commit brought it."""
        try:
            size = slot.content.stat().st_size
        except OSError:
            if slot.content.is_symlink():
                raise DownloadError(
                    f"{slot.content} is a symbolic link to nothing", "Remove it and try again."
                ) from None
            return False
        if size != self.remote.size_bytes:
            raise DownloadError(
                f"{slot.content} is in the way: it has {size} bytes instead of "
                f"{self.remote.size_bytes}",
                "Remove it and try again.",
            )
        return True

    def _obtain(self, slot: Slot) -> None:
        """Bring the content, from another program or the hub, under its final name."""
        if self._candidate is None or not self._adopt(self._candidate.path, slot):
            Transfer(self.remote, slot.part, self._listener).run()
        os.replace(slot.part, slot.content)
        _sync_folder(slot.content.parent)

    def _adopt(self, source: Path, slot: Slot) -> bool:
        """Link or copy the other program's file into the part file, if its content is right."""
        seen = 0

        def on_bytes(num_bytes: int) -> None:
            nonlocal seen
            seen += num_bytes
            self._tell("checking", seen)
            if self._listener.cancelled.is_set():
                raise DownloadError("the download was stopped")

        if not hash_file(source, self.remote, on_bytes):
            return False
        slot.part.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), slot.part)
        except OSError:
            shutil.copyfile(source, slot.part)
        return True


def _run_together(jobs: Sequence[_Job], on_progress: OnProgress) -> Iterator[_Job]:
    """Run the jobs, a few at a time; each as it ends. The first failure stops all."""
    events: queue.Queue[Progress | _Job] = queue.Queue()
    cancelled = threading.Event()
    waiting, running = list(jobs), 0
    for job in waiting:
        job.connect(events, cancelled)
    try:
        while waiting or running:
            while waiting and running < _MAX_AT_ONCE:
                waiting.pop(0).start()
                running += 1
            event = events.get()
            if isinstance(event, Progress):
                on_progress(event)
                continue
            running -= 1
            if event.failure is not None:
                raise event.failure
            yield event
    finally:
        cancelled.set()
        for job in jobs:
            if job.is_alive():
                job.join(_JOIN_S)


def _ask_patiently(file: HubFile) -> RemoteFile:
    """The hub's answer about a file, waiting where it asks to."""
    for attempt in range(_MAX_ASKS):
        try:
            return remote_file(file)
        except HubBusyError as error:
            if attempt == _MAX_ASKS - 1:
                raise
            time.sleep(wait_before_retry_s(error, attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _with_facts(remote: RemoteFile) -> HubFile:
    """The file, completed with what the hub said of it."""
    sha256 = remote.etag if len(remote.etag) == 64 else remote.file.sha256
    return replace(remote.file, size_bytes=remote.size_bytes, sha256=sha256)


def _received(slot: Slot) -> int:
    try:
        return slot.part.stat().st_size
    except OSError:
        return 0


def free_bytes(folder: Path) -> int:
    """Free space on the disk where the folder is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _sync_folder(folder: Path) -> None:
    """Write the new name to the disk itself, where folders can be opened for that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
