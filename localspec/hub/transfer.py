"""Content of one file: fetched from the hub or taken from another program, and verified.

Received bytes are in a part file and are never fetched again, whatever ends the process.
huggingface_hub's own download has dropped them since 1.18; its session is used instead.
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
    content_of,
    delay_s,
    patiently,
)
from localspec.hub.hub_file import HubFile
from localspec.hub.model_stores import ForeignFile, Slot, Store, check_disk, disk_error
from localspec.system.atomic_write import sync_folder

_LOCK_POLL_S = 0.5
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of one file."""

    file: HubFile
    """The file. For owner/repo:QUANT it is named QUANT.gguf until the hub has named the
    file."""

    state: str = "waiting"
    """"checking" (bytes on this machine), "downloading", "waiting" (for the hub, or for
    another process that fetches the same file), or "done"."""

    received_bytes: int = 0
    total_bytes: int
    """0 until known."""


OnProgress = Callable[[Progress], None]


class DownloadJob(threading.Thread):
    """A thread that downloads a file, and then sets `path` or `failure`, and `is_over`.

    Args:
        remote: The file.
        store: Where it is put.
        candidate: Another program's file that may have the content.
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
        """Fetch the file, and report progress."""
        slot = self._store.slot(self.remote)
        try:
            self.path = self._in_place(slot)
            self._report("done", self.remote.size_bytes)
        except OSError as error:
            self.failure = disk_error(error, slot.content)
        except Exception as error:
            self.failure = error
        self.is_over = True
        self._news.set()

    def _report(self, state: str, num_bytes: int) -> None:
        """Report progress. Raises DownloadError if the job was cancelled."""
        if self._cancelled.is_set():
            raise DownloadError("the download was stopped", "Run it again to continue.")
        self.progress = replace(self.progress, state=state, received_bytes=num_bytes)
        self._news.set()

    def _in_place(self, slot: Slot) -> Path:
        """Get the file; returns its path. Waits while another process fetches it."""
        import filelock  # late: every command imports this module

        slot.content.parent.mkdir(parents=True, exist_ok=True)
        slot.lock.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(slot.lock)  # the one that huggingface_hub takes, too
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_LOCK_POLL_S)
            except filelock.Timeout:
                self._report("waiting", 0)
        try:
            is_new = not self._is_there(slot)
            if is_new:
                self._obtain(slot)
            return self._store.publish(self.remote, fetched=is_new)
        finally:
            lock.release()

    def _is_there(self, slot: Slot) -> bool:
        """Whether the content is there. Raises DownloadError if something else is there."""
        content = slot.content
        if not content.exists() and not content.is_symlink():
            return False
        fault = self._fault_of(content)
        if fault:
            raise DownloadError(
                f"{content} is in the way: {fault}",
                "Remove it, or choose another folder, and try again.",
            )
        return True

    def _fault_of(self, content: Path) -> str:
        """Why a file in the place of the content is not the content, in words, or ""."""
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
        """Whether a file has the content."""
        return has_checksum(
            path,
            self.remote.checksum,
            lambda num_seen: self._report("checking", num_seen),
        )

    def _obtain(self, slot: Slot) -> None:
        """Get the content, from another program or the hub, and give it its final name."""
        if self._candidate is None or not self._adopt(self._candidate.path, slot):
            if self._candidate is not None:
                check_disk(self.remote.size_bytes, slot.content.parent)
            self._fetch(slot.part)
            os.replace(slot.part, slot.content)
        sync_folder(slot.content.parent)

    def _adopt(self, source: Path, slot: Slot) -> bool:
        """Use the other program's file, if its content is right.

        The file is linked or copied first and then checked, so that exactly the checked bytes
        get the name.
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
        with source.open("rb") as theirs, copy.open("xb") as ours:
            for piece in _pieces_of(theirs):
                ours.write(piece)
                self._report("checking", ours.tell())
            ours.flush()
            os.fsync(ours.fileno())

    def _fetch(self, part: Path) -> None:
        """Fetch the missing bytes of the part file; afterwards it is whole and verified.

        Raises DownloadError; received bytes stay unless they are wrong.
        """
        # A link leads to a file that is not ours and must not change; a pipe is never written.
        if part.is_symlink() or (part.exists() and not part.is_file()):
            part.unlink()
        with part.open("ab") as file:
            if _size(file) > self.remote.size_bytes:
                file.truncate(0)
            is_resumed = True
            while is_resumed:  # a power cut may have damaged the earlier bytes
                is_resumed = _size(file) > 0
                self._fetch_missing(file)
                if self._has_content(part):
                    return
                file.truncate(0)
        raise DownloadError(
            f"{self.remote.file.name} was received with wrong content, which does not match "
            f"{self.remote.checksum}",
            "Try again; if it happens again, the hub or a proxy sends wrong bytes.",
        )

    def _fetch_missing(self, file: BinaryIO) -> None:
        """Receive until the size is reached, with retries after errors that may pass."""
        num_vain = 0
        received = _size(file)
        while received < self.remote.size_bytes:
            before = received
            try:
                self._receive(file)
                received = _size(file)
            except HubBusyError as error:
                received = _size(file)
                num_vain += 1
                if received > before:
                    num_vain = 0
                if num_vain > len(RETRY_DELAYS_S):
                    raise DownloadError(
                        f"{self.remote.file.name} stopped at {received} of "
                        f"{self.remote.size_bytes} bytes: {error}",
                        "Run the command again later; it continues from there.",
                    ) from error
                self._report("waiting", received)
                self._cancelled.wait(delay_s(error, num_vain))
                self._report("waiting", received)
        os.fsync(file.fileno())

    def _receive(self, file: BinaryIO) -> None:
        """Send one request, and keep the bytes that arrive."""
        received = _size(file)
        for piece in content_of(self.remote, received):
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
    """A file on the hub as a `header.ByteSource`: each read is a request, with retries."""

    def __init__(self, remote: RemoteFile) -> None:
        self.name = f"{remote.file.repo}/{remote.file.file}"
        self.size_bytes = remote.size_bytes
        self._remote = remote

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from an offset on. Raises DownloadError."""
        try:
            return patiently(lambda: self._fetch_range(offset, size), lambda: None)
        except HubBusyError as error:
            raise DownloadError(
                f"the header of {self.name} cannot be read: {error}",
                "Try again later; check the connection and HF_ENDPOINT.",
            ) from error

    def _fetch_range(self, offset: int, size: int) -> bytes:
        """Try once to read. Raises HubBusyError if the response ends early."""
        data = bytearray()
        last = offset + size - 1
        for piece in content_of(self._remote, offset, last):
            data += piece
            if len(data) >= size:  # a server without ranges sends more
                return bytes(data[:size])
        raise HubBusyError(f"the response ended after {len(data)} of {size} bytes", wait_s=None)


def has_checksum(
    path: Path,
    checksum: str,
    on_read: Callable[[int], None] = lambda _num_bytes: None,
) -> bool:
    """Whether the file has that sha256, or git blob id.

    Args:
        path: The file.
        checksum: 64 hex digits of a sha256, or 40 of a git blob id.
        on_read: Called with the number of bytes read so far.
    """
    if len(checksum) == 64:
        digest = hashlib.sha256()
    else:
        header = f"blob {path.stat().st_size}\0".encode()
        digest = hashlib.sha1(header, usedforsecurity=False)
    with path.open("rb") as file:
        for piece in _pieces_of(file):
            digest.update(piece)
            on_read(file.tell())
    return digest.hexdigest() == checksum


def _pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """The content of an open file, in pieces."""
    piece = file.read(_READ_BYTES)
    while piece:
        yield piece
        piece = file.read(_READ_BYTES)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
