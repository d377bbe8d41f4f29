"""The download of one file from the hub, or its copy from another program."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from localspec.atomic_write import sync_folder
from localspec.errors import DownloadError
from localspec.hub.api import RemoteFile
from localspec.hub.cache import FileStore, Slot
from localspec.hub.disk import check_disk, disk_error
from localspec.hub.other_caches import ForeignFile
from localspec.hub.progress import Progress, ProgressBoard
from localspec.hub.transfer import Transfer, has_checksum

_LOCK_POLL_S = 0.5
_COPY_BYTES = 1 << 20


class DownloadJob(threading.Thread):
    """A thread that sets `path` or `failure`, and then says on the board that it ended.

    candidate: another program's file that may have the content. cancelled: ends the job.
    """

    def __init__(
        self,
        remote: RemoteFile,
        place: FileStore,
        candidate: ForeignFile | None,
        board: ProgressBoard,
        cancelled: threading.Event,
    ) -> None:
        super().__init__(name=f"download-{remote.file.name}", daemon=True)
        self.remote = remote
        self.path = Path()
        self.failure: Exception | None = None
        self._place = place
        self._candidate = candidate
        self._board = board
        self._cancelled = cancelled

    def run(self) -> None:
        """Fetch the file, and report how it goes."""
        try:
            self._tell("waiting", 0)
            self.path = self._fetch()
            self._tell("done", self.remote.size_bytes)
        except Exception as error:
            self.failure = error
        self._board.end(self.remote.file)

    def _tell(self, state: str, received: int) -> None:
        """Report progress. Raises DownloadError if the job was cancelled."""
        if self._cancelled.is_set():
            raise DownloadError("the download was stopped", "Run it again to continue.")
        self._board.tell(
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
        import filelock

        lock = filelock.FileLock(path)
        while True:
            try:
                lock.acquire(timeout=_LOCK_POLL_S)
                break
            except filelock.Timeout:
                self._tell("waiting", 0)
        try:
            yield
        finally:
            lock.release()

    def _is_there(self, slot: Slot) -> bool:
        """Whether the content is there. Raises DownloadError if something else is."""
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
        if not self._place.is_checked:
            self._compare(slot.content)
        return True

    def _compare(self, path: Path) -> None:
        """Raise DownloadError if the file has the wrong content."""
        try:
            is_right = has_checksum(path, self.remote.checksum, self._counter())
        except OSError as error:
            raise DownloadError(
                f"{path} cannot be read: {error.strerror}", "Remove it and try again."
            ) from error
        if not is_right:
            file = self.remote.file
            raise DownloadError(
                f"{path} is in the way: its content is not that of {file.repo}/{file.file}",
                "Remove it, or choose another folder, and try again.",
            )

    def _obtain(self, slot: Slot) -> None:
        """Get the content, from another program or the hub, and give it its final name."""
        if self._candidate is None or not self._adopt(self._candidate.path, slot):
            if self._candidate is not None:
                check_disk(self.remote.size_bytes, slot.content.parent)
            Transfer(self.remote, slot.part, self._tell, self._cancelled).run()
            os.replace(slot.part, slot.content)
        sync_folder(slot.content.parent)

    def _adopt(self, source: Path, slot: Slot) -> bool:
        """Use the other program's file, if its content is right.

        It is linked or copied first and then checked, so that exactly what was checked gets the
        name. A link still shares its bytes with that program, which must not have written to
        them in the meantime.
        """
        slot.adopted.unlink(missing_ok=True)
        try:
            try:
                os.link(source.resolve(), slot.adopted)
            except OSError:
                if not os.access(source, os.R_OK):
                    return False
                self._copy(source, slot.adopted)
            before = slot.adopted.stat()
            if not has_checksum(slot.adopted, self.remote.checksum, self._counter()):
                return False
            after = slot.adopted.stat()
            if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
                return False
            os.replace(slot.adopted, slot.content)
        finally:
            slot.adopted.unlink(missing_ok=True)
        slot.part.unlink(missing_ok=True)
        return True

    def _copy(self, source: Path, copy: Path) -> None:
        check_disk(self.remote.size_bytes, copy.parent)
        count = self._counter()
        with source.open("rb") as theirs, copy.open("xb") as ours:
            while chunk := theirs.read(_COPY_BYTES):
                ours.write(chunk)
                count(len(chunk))
            ours.flush()
            os.fsync(ours.fileno())

    def _counter(self) -> Callable[[int], None]:
        """A callback for the length of each piece that is read."""
        seen = 0

        def on_bytes(num_bytes: int) -> None:
            nonlocal seen
            seen += num_bytes
            self._tell("checking", seen)

        return on_bytes
