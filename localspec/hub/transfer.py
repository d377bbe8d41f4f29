"""One file over HTTP: resumed where it stopped, and verified.

Received bytes are in the part file and are never fetched again, whatever ends the process.
Each GET goes to the hub's own address, since the signed address that it redirects to expires
after about an hour.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, BinaryIO

from localspec.errors import DownloadError
from localspec.hub.api import RemoteFile
from localspec.hub.patience import (
    RETRY_DELAYS_S,
    HubBusyError,
    patiently,
    wait_before_retry_s,
)

if TYPE_CHECKING:
    import requests

_CHUNK_BYTES = 1 << 16  # small: a broken connection loses what is in a buffer
_READ_BYTES = 1 << 20
_SYNC_BYTES = 64 << 20  # between two fsyncs: what a power cut may lose


class Transfer:
    """Fetches one file into its part file.

    tell: called with the state and the bytes received so far; what it raises ends the
    transfer. cancelled: ends a wait, before `tell` is called again.
    """

    def __init__(
        self, remote: RemoteFile, part: Path, tell: Callable[[str, int], None], cancelled: Event
    ) -> None:
        self._remote = remote
        self._part = part
        self._tell = tell
        self._cancelled = cancelled
        self._digest = _digest_for(remote.checksum, remote.size_bytes)
        self._received = 0
        self._can_resume = True

    def run(self) -> None:
        """Fetch what is missing; afterwards the part file is whole and verified.

        Raises DownloadError, and what `tell` raises; received bytes stay unless they are wrong.
        OSError comes from the disk.
        """
        with _open_part(self._part) as part:
            resumed = self._take_up(part) > 0
            self._fetch_all(part)
            if self._is_wrong() and resumed:
                # The wrong bytes may be earlier ones, damaged by a power cut: start again.
                self._start_again(part)
                self._fetch_all(part)
            if self._is_wrong():
                part.truncate(0)
                raise DownloadError(
                    f"{self._remote.file.name} arrived with wrong content: sum "
                    f"{self._digest.hexdigest()} instead of {self._remote.checksum}",
                    "Try again; if it stays so, the hub or a proxy sends wrong bytes.",
                )
            os.fsync(part.fileno())

    def _take_up(self, part: BinaryIO) -> int:
        """Read what earlier calls received; returns the number of bytes."""
        if part.seek(0, os.SEEK_END) > self._remote.size_bytes:
            self._start_again(part)
        part.seek(0)
        while chunk := part.read(_READ_BYTES):
            self._digest.update(chunk)
            self._advance(len(chunk), "checking")
        return self._received

    def _start_again(self, part: BinaryIO) -> None:
        part.seek(0)
        part.truncate()
        self._received = 0
        self._digest = _digest_for(self._remote.checksum, self._remote.size_bytes)

    def _fetch_all(self, part: BinaryIO) -> None:
        """Receive until the size is reached, with retries after errors that may pass."""
        num_vain = 0
        while self._received < self._remote.size_bytes:
            before = self._received
            try:
                self._receive(part)
            except HubBusyError as error:
                num_vain = 0 if self._received > before else num_vain + 1
                if num_vain > len(RETRY_DELAYS_S):
                    raise self._given_up(error) from error
                self._tell("waiting", self._received)
                self._cancelled.wait(wait_before_retry_s(error, num_vain))
                self._tell("waiting", self._received)

    def _receive(self, part: BinaryIO) -> None:
        """One request, from the received bytes to wherever it ends."""
        from localspec.hub.request import content_of

        wanted = f"{self._received}-" if self._received else None
        with content_of(self._remote, wanted) as response:
            self._check_range(response)
            # A server without ranges sends the received bytes again. They are skipped, so that
            # only new bytes count as progress.
            known = self._received if response.status_code == 200 else 0
            self._can_resume = known == 0
            self._write(part, response.iter_content(_CHUNK_BYTES), known)
            if self._received < self._remote.size_bytes:
                raise HubBusyError("the answer ended early", None)

    def _write(self, part: BinaryIO, chunks: Iterator[bytes], known: int) -> None:
        """Write what comes after the known bytes."""
        unsynced = 0
        for chunk in chunks:
            new, known = chunk[known:], max(0, known - len(chunk))
            if self._received + len(new) > self._remote.size_bytes:
                raise self._wrong_length(f"more than {self._remote.size_bytes}")
            part.write(new)
            part.flush()
            self._digest.update(new)
            self._advance(len(new), "downloading")
            unsynced += len(new)
            if unsynced >= _SYNC_BYTES:
                os.fsync(part.fileno())
                unsynced = 0

    def _advance(self, num_bytes: int, state: str) -> None:
        self._received += num_bytes
        self._tell(state, self._received)

    def _check_range(self, response: requests.Response) -> None:
        """Raise DownloadError unless the response has the missing bytes, and the right size."""
        size = self._remote.size_bytes
        if response.status_code == 206:
            got = response.headers.get("Content-Range", "")
            if got != f"bytes {self._received}-{size - 1}/{size}":
                raise self._wrong_length(f"range {got!r}")
        elif (got := response.headers.get("Content-Length", str(size))) != str(size):
            raise self._wrong_length(got)

    def _wrong_length(self, got: str) -> DownloadError:
        return DownloadError(
            f"the server offers {self._remote.file.name} with a wrong length: "
            f"{got} instead of {self._remote.size_bytes} bytes",
            "Try again later; check HF_ENDPOINT and the proxy.",
        )

    def _is_wrong(self) -> bool:
        return self._digest.hexdigest() != self._remote.checksum

    def _given_up(self, error: Exception) -> DownloadError:
        hint = "Run the command again later; it continues from there."
        if not self._can_resume:
            hint = (
                "The server sends each file from its first byte only, and stops before any new "
                "byte comes: try a more stable connection, or check HF_ENDPOINT."
            )
        return DownloadError(
            f"{self._remote.file.name} stopped at {self._received} of "
            f"{self._remote.size_bytes} bytes: {error}",
            hint,
        )


class RemoteSource:
    """A file on the hub as a `header.ByteSource`: each read is a request, with retries."""

    def __init__(self, remote: RemoteFile) -> None:
        self.name = f"{remote.file.repo}/{remote.file.file}"
        self.size_bytes = remote.size_bytes
        self._remote = remote

    def read(self, offset: int, size: int) -> bytes:
        """size bytes from an offset on. Raises DownloadError."""
        if size == 0:
            return b""
        try:
            return patiently(lambda: self._read(offset, size), lambda: None)
        except HubBusyError as error:
            raise DownloadError(
                f"the header of {self.name} cannot be read: {error}",
                "Try again later; check the connection and HF_ENDPOINT.",
            ) from error

    def _read(self, offset: int, size: int) -> bytes:
        from localspec.hub.request import content_of

        with content_of(self._remote, f"{offset}-{offset + size - 1}") as response:
            # A server without ranges sends the file from its first byte.
            start = offset if response.status_code == 206 else 0
            data = bytearray()
            for chunk in response.iter_content(_CHUNK_BYTES):
                data += chunk
                if start + len(data) >= offset + size:
                    break
        found = bytes(data[offset - start : offset - start + size])
        if len(found) < size:
            raise HubBusyError(f"the answer ended after {len(found)} of {size} bytes", None)
        return found


def has_checksum(path: Path, checksum: str, on_bytes: Callable[[int], None]) -> bool:
    """Whether the file has that sha256, or git blob id. on_bytes: gets each piece's length."""
    digest = _digest_for(checksum, path.stat().st_size)
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest() == checksum


def _open_part(path: Path) -> BinaryIO:
    """The part file for reading and writing, created if it does not exist.

    Never through a symbolic link: it could lead to somebody else's file.
    """
    if path.is_symlink():
        raise DownloadError(f"{path} is a symbolic link", "Remove it and try again.")
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o644), "r+b")


def _digest_for(checksum: str, size_bytes: int) -> hashlib._Hash:
    """What computes the checksum: a sha256, or else a git blob id."""
    if len(checksum) == 64:
        return hashlib.sha256()
    if len(checksum) != 40:
        raise DownloadError(
            f"{checksum!r} is not the checksum of a file",
            "Download the file by other means if you trust its source.",
        )
    return hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)
