"""Gets the content of one file from the hub or from another program, and verifies it.

Received bytes go to a part file and are kept, whatever ends the process, so they are not
fetched again. huggingface_hub's own download has dropped such bytes since version 1.18, so only
its session is used.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from localspec.errors import DownloadError
from localspec.hub.api import (
    RETRY_DELAYS_S,
    HubBusyError,
    RemoteFile,
    delay_s,
    retry_while_busy,
    stream_content,
)
from localspec.hub.hub_file import SHA256_DIGITS, HubFile
from localspec.hub.model_stores import (
    ForeignFile,
    Store,
    StorePaths,
    check_disk,
    disk_error,
)
from localspec.system.atomic_write import sync_folder

_LOCK_POLL_S = 0.5
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of the download of one file."""

    file: HubFile
    """The file. For owner/repo:QUANT it is named QUANT.gguf until the hub has named the
    file."""

    state: str = "waiting"
    """"checking" (bytes on this machine), "downloading", "waiting" (for the hub, or for
    another process that fetches the same file), or "done"."""

    received_bytes: int = 0
    total_bytes: int
    """The size of the file; 0 until it is known."""


OnProgress = Callable[[Progress], None]


class DownloadJob(threading.Thread):
    """A thread that downloads a file, then sets `path` or `failure`, and last `is_over`.

    Args:
        remote: The file.
        store: The store that the file goes to.
        candidate: Another program's file that may have the content; None if there is none.
        news: Set whenever `progress` changes, and at the end.
        cancelled: Ends the job when it is set.
    """

    def __init__(
        self,
        remote: RemoteFile,
        store: Store,
        candidate: ForeignFile | None,
        news: threading.Event,
        cancelled: threading.Event,
    ) -> None:
        super().__init__(name=f"download-{remote.file.name}", daemon=True)
        self.remote = remote
        self.path = Path()
        self.failure: Exception | None = None
        self.is_over = False
        # The latest progress.
        self.progress = Progress(file=remote.file, total_bytes=remote.size_bytes)
        self._store = store
        self._candidate = candidate
        self._news = news
        self._cancelled = cancelled

    def run(self) -> None:
        """Download the file, and report progress."""
        paths = self._store.paths(self.remote)
        try:
            self.path = self._download(paths)
            self._report("done", self.remote.size_bytes)
        except OSError as error:
            self.failure = disk_error(error, paths.content)
        except Exception as error:
            self.failure = error
        self.is_over = True
        self._news.set()

    def _report(self, state: str, num_bytes: int) -> None:
        """Set `progress` and `news`. Raises DownloadError if the job was cancelled."""
        if self._cancelled.is_set():
            raise DownloadError("the download was stopped", "Run it again to continue.")
        self.progress = replace(self.progress, state=state, received_bytes=num_bytes)
        self._news.set()

    def _download(self, paths: StorePaths) -> Path:
        """Put the file into the store unless it is there, and return its path.

        Waits while another process downloads the same file.
        """
        import filelock  # late: every command imports this module

        paths.content.parent.mkdir(parents=True, exist_ok=True)
        paths.lock.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(paths.lock)  # huggingface_hub takes the same lock
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_LOCK_POLL_S)
            except filelock.Timeout:
                self._report("waiting", 0)
        try:
            is_missing = not self._is_in_place(paths.content)
            if is_missing:
                self._get_content(paths)
            return self._store.publish(self.remote, fetched=is_missing)
        finally:
            lock.release()

    def _is_in_place(self, content: Path) -> bool:
        """Whether the content is at its path; False if nothing is there.

        Raises DownloadError if something else is there.
        """
        if not content.exists() and not content.is_symlink():
            return False
        fault = self._fault(content)
        if fault:
            raise DownloadError(
                f"{content} is in the way: {fault}",
                "Remove it, or choose another folder, and try again.",
            )
        return True

    def _fault(self, content: Path) -> str:
        """Why the file at the content's path is not the content, in words; "" if it is."""
        if not content.exists():
            return "it is a broken symbolic link"
        size = content.stat().st_size
        if size != self.remote.size_bytes:
            return f"it has {size} bytes instead of {self.remote.size_bytes}"
        if not self._store.is_checked and not self._has_content(content):
            file = self.remote.file
            return f"its content is not that of {file.repo}/{file.file}"
        return ""

    def _has_content(self, path: Path) -> bool:
        """Whether a file has the content, by its checksum. Reports progress."""
        return has_checksum(
            path,
            self.remote.checksum,
            lambda num_checked: self._report("checking", num_checked),
        )

    def _get_content(self, paths: StorePaths) -> None:
        """Put the content at its path: from another program, or else from the hub."""
        if self._candidate is None or not self._adopt(self._candidate.path, paths):
            if self._candidate is not None:
                # Not checked before, since the candidate might have needed no space.
                check_disk(self.remote.size_bytes, paths.content.parent)
            self._fetch(paths.part)
            os.replace(paths.part, paths.content)
        sync_folder(paths.content.parent)

    def _adopt(self, source: Path, paths: StorePaths) -> bool:
        """Take another program's file as the content; False if it differs or cannot be read.

        The file is linked or copied first and then checked, so that exactly the checked bytes
        become the content.
        """
        paths.adopted.unlink(missing_ok=True)
        try:
            try:
                os.link(source.resolve(), paths.adopted)
            except OSError:
                if not os.access(source, os.R_OK):
                    return False
                self._copy(source, paths.adopted)
            if not self._has_content(paths.adopted):
                return False
            os.replace(paths.adopted, paths.content)
        finally:
            paths.adopted.unlink(missing_ok=True)
        paths.part.unlink(missing_ok=True)
        return True

    def _copy(self, source: Path, target: Path) -> None:
        """Copy a file to the disk. Reports progress; raises DownloadError without room."""
        check_disk(self.remote.size_bytes, target.parent)
        with source.open("rb") as source_file, target.open("xb") as target_file:
            for piece in _pieces(source_file):
                target_file.write(piece)
                self._report("checking", target_file.tell())
            target_file.flush()
            os.fsync(target_file.fileno())

    def _fetch(self, part: Path) -> None:
        """Fetch the missing bytes of the part file; afterwards it is whole and verified.

        Raises DownloadError; received bytes stay unless they are wrong.
        """
        # A link leads to a file that is not ours and must not change; opening a pipe may wait.
        if part.is_symlink() or (part.exists() and not part.is_file()):
            part.unlink()
        with part.open("ab") as file:
            if _size(file) > self.remote.size_bytes:
                file.truncate(0)
            is_resumed = True
            while is_resumed:
                is_resumed = _size(file) > 0
                self._fetch_missing(file)
                if self._has_content(part):
                    return
                # A power cut may have damaged the bytes of an earlier run: fetch all again.
                file.truncate(0)
        raise DownloadError(
            f"{self.remote.file.name} was received with wrong content, which does not match "
            f"{self.remote.checksum}",
            "Try again; if it happens again, the hub or a proxy sends wrong bytes.",
        )

    def _fetch_missing(self, file: BinaryIO) -> None:
        """Send requests until the file has its size, and wait before another try.

        Raises DownloadError if no bytes arrive in six tries in a row.
        """
        num_vain_tries = 0  # in a row, without a byte
        received = _size(file)
        while received < self.remote.size_bytes:
            received_before = received
            try:
                self._receive(file)
                received = _size(file)
            except HubBusyError as error:
                received = _size(file)
                num_vain_tries += 1
                if received > received_before:
                    num_vain_tries = 0
                if num_vain_tries > len(RETRY_DELAYS_S):
                    raise DownloadError(
                        f"{self.remote.file.name} stopped at {received} of "
                        f"{self.remote.size_bytes} bytes: {error}",
                        "Run the command again later; it continues from there.",
                    ) from error
                self._report("waiting", received)
                delay_step = max(num_vain_tries - 1, 0)
                self._cancelled.wait(delay_s(error, delay_step))
                self._report("waiting", received)  # raises if cancelled during the wait
        os.fsync(file.fileno())

    def _receive(self, file: BinaryIO) -> None:
        """Request the missing bytes once, and append those that arrive to the file.

        Raises HubBusyError if the response ends early.
        """
        received = _size(file)
        for piece in stream_content(self.remote, received):
            received += len(piece)
            if received > self.remote.size_bytes:
                raise DownloadError(
                    f"the server sends more than the {self.remote.size_bytes} bytes of "
                    f"{self.remote.file.name}",
                    "Try again later; check HF_ENDPOINT and the proxy.",
                )
            file.write(piece)
            file.flush()
            self._report("downloading", received)
        if received < self.remote.size_bytes:
            raise HubBusyError("the response ended early", None)


class RemoteSource:
    """A `header.ByteSource` of a file on the hub. Each read is one request, and its retries."""

    def __init__(self, remote: RemoteFile) -> None:
        self.name = f"{remote.file.repo}/{remote.file.file}"
        self.size_bytes = remote.size_bytes
        self._remote = remote

    def read(self, offset: int, size: int) -> bytes:
        """The `size` bytes at an offset. Raises DownloadError."""
        try:
            return retry_while_busy(lambda: self._fetch_range(offset, size), lambda: None)
        except HubBusyError as error:
            raise DownloadError(
                f"the header of {self.name} cannot be read: {error}",
                "Try again later; check the connection and HF_ENDPOINT.",
            ) from error

    def _fetch_range(self, offset: int, size: int) -> bytes:
        """The bytes of one request. Raises HubBusyError if the response ends early."""
        data = bytearray()
        last = offset + size - 1
        for piece in stream_content(self._remote, offset, last):
            data += piece
            if len(data) >= size:  # a server that does not support ranges sends more
                return bytes(data[:size])
        raise HubBusyError(f"the response ended after {len(data)} of {size} bytes", wait_s=None)


def has_checksum(
    path: Path,
    checksum: str,
    on_read: Callable[[int], None] = lambda _num_bytes: None,
) -> bool:
    """Whether a file has that sha256 or git blob id.

    Args:
        path: The file.
        checksum: 64 hex digits of a sha256, or 40 of a git blob id.
        on_read: Called after each piece with the number of bytes read so far.
    """
    if len(checksum) == SHA256_DIGITS:
        digest = hashlib.sha256()
    else:
        num_bytes = path.stat().st_size
        blob_header = f"blob {num_bytes}\0".encode()  # git hashes it before the content
        digest = hashlib.sha1(blob_header, usedforsecurity=False)
    with path.open("rb") as file:
        for piece in _pieces(file):
            digest.update(piece)
            on_read(file.tell())
    return digest.hexdigest() == checksum


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """The content of an open file, in pieces."""
    piece = file.read(_READ_BYTES)
    while piece:
        yield piece
        piece = file.read(_READ_BYTES)


def _size(file: BinaryIO) -> int:
    """The size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size
