"""The download of one file from the hub, or its copy from another program."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

from localspec.atomic_write import sync_folder
from localspec.errors import DownloadError
from localspec.hub.api import RemoteFile
from localspec.hub.cache import Place, Slot, check_disk, disk_error
from localspec.hub.hub_file import HubFile
from localspec.hub.other_caches import ForeignFile
from localspec.hub.transfer import counting, fetch, has_checksum

_LOCK_POLL_S = 0.5
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of one file.

    state: "checking" (bytes that are here), "downloading", "waiting" (for the hub, or for
    another process that fetches the same file), or "done". file: for owner/repo:QUANT it is
    named QUANT.gguf until the hub has said which file that is. total_bytes: 0 until known.
    """

    file: HubFile
    state: str
    received_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]
# The methods of this queue are C functions: Ctrl-C cannot come in between.
Events: TypeAlias = "SimpleQueue[Progress | DownloadJob]"


class DownloadJob(threading.Thread):
    """A thread that sets `path` or `failure`.

    candidate: another program's file that may have the content. events: gets the job's
    progress, and the job itself when it ends. cancelled: ends the job.
    """

    def __init__(
        self,
        remote: RemoteFile,
        place: Place,
        candidate: ForeignFile | None,
        events: Events,
        cancelled: threading.Event,
    ) -> None:
        super().__init__(name=f"download-{remote.file.name}", daemon=True)
        self.remote = remote
        self.path = Path()
        self.failure: Exception | None = None
        self._place = place
        self._candidate = candidate
        self._events = events
        self._cancelled = cancelled

    def run(self) -> None:
        """Fetch the file, and report how it goes."""
        try:
            self._tell("waiting", 0)
            self.path = self._fetch()
            self._tell("done", self.remote.size_bytes)
        except Exception as error:
            self.failure = error
        self._events.put(self)

    def _tell(self, state: str, received: int) -> None:
        """Report progress. Raises DownloadError if the job was cancelled."""
        if self._cancelled.is_set():
            raise DownloadError("the download was stopped", "Run it again to continue.")
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
        """Hold the lock that huggingface_hub takes, too; wait as long as another has it."""
        import filelock  # late: every command imports this module

        lock = filelock.FileLock(path)
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_LOCK_POLL_S)
            except filelock.Timeout:
                self._tell("waiting", 0)
        try:
            yield
        finally:
            lock.release()

    def _is_there(self, slot: Slot) -> bool:
        """Whether the content is there. Raises DownloadError if something else is."""
        if slot.content.is_symlink() and not slot.content.exists():
            raise DownloadError(
                f"{slot.content} is a symbolic link to nothing", "Remove it and try again."
            )
        if not slot.content.exists():
            return False
        size, file = slot.content.stat().st_size, self.remote.file
        if size != self.remote.size_bytes:
            raise DownloadError(
                f"{slot.content} is in the way: it has {size} bytes instead of "
                f"{self.remote.size_bytes}",
                "Remove it and try again.",
            )
        if not self._place.is_checked and not self._has_content(slot.content):
            raise DownloadError(
                f"{slot.content} is in the way: its content is not that of "
                f"{file.repo}/{file.file}",
                "Remove it, or choose another folder, and try again.",
            )
        return True

    def _has_content(self, path: Path) -> bool:
        return has_checksum(path, self.remote.checksum, counting(self._tell))

    def _obtain(self, slot: Slot) -> None:
        """Get the content, from another program or the hub, and give it its final name."""
        if self._candidate is None or not self._adopt(self._candidate.path, slot):
            if self._candidate is not None:
                check_disk(self.remote.size_bytes, slot.content.parent)
            fetch(self.remote, slot.part, self._tell, self._cancelled)
            os.replace(slot.part, slot.content)
        sync_folder(slot.content.parent)

    def _adopt(self, source: Path, slot: Slot) -> bool:
        """Use the other program's file, if its content is right.

        It is linked or copied first and then checked, so that exactly the checked bytes get
        the name.
        """
        slot.adopted.unlink(missing_ok=True)
        try:
            try:
                os.link(source.resolve(), slot.adopted)
            except OSError:
                if not os.access(source, os.R_OK):
                    return False
                self._copy(source, slot.adopted)
            if not self._has_content(slot.adopted):
                return False
            os.replace(slot.adopted, slot.content)
        finally:
            slot.adopted.unlink(missing_ok=True)
        slot.part.unlink(missing_ok=True)
        return True

    def _copy(self, source: Path, copy: Path) -> None:
        check_disk(self.remote.size_bytes, copy.parent)
        count = counting(self._tell)
        with source.open("rb") as theirs, copy.open("xb") as ours:
            while piece := theirs.read(_COPY_BYTES):
                ours.write(piece)
                count(len(piece))
            ours.flush()
            os.fsync(ours.fileno())
