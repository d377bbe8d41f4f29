"""One file over HTTP: resumed where it stopped, verified, renamed only when it is whole.

What is received lies in the part file and is never fetched again, whatever ends the process.
The GET goes to the hub's own address each time, as the signed address that it redirects to
lives about an hour.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, BinaryIO

from localspec.errors import DownloadError
from localspec.hub.api import RemoteFile
from localspec.hub.patience import RETRY_DELAYS_S, HubBusyError, wait_before_retry_s

if TYPE_CHECKING:
    import requests

_CHUNK_BYTES = 1 << 16  # small: what a broken connection leaves in a buffer is lost
_READ_BYTES = 1 << 20
_SYNC_BYTES = 64 << 20  # written to the disk itself at least so often, for a power cut


@dataclass(frozen=True, slots=True)
class Listener:
    """How a transfer tells what it does: state and bytes received so far."""

    tell: Callable[[str, int], None]
    cancelled: Event


class Transfer:
    """The way of one file into its part file."""

    def __init__(self, remote: RemoteFile, part: Path, listener: Listener) -> None:
        self._remote = remote
        self._part = part
        self._listener = listener
        self._digest = _new_digest(remote)
        self._received = 0
        self._can_resume = True

    def run(self) -> None:
        """Fetch what is missing; afterwards the part file is whole and verified.

        Raises DownloadError, also if the listener was cancelled; what was received stays,
        unless it is wrong. OSError comes from the disk.
        """
        with _open_part(self._part) as part:
            resumed = self._take_up(part) > 0
            self._fetch_all(part)
            if self._is_wrong() and resumed:
                # The wrong bytes may be old ones, lost in a power cut: once more from zero.
                self._start_again(part)
                self._fetch_all(part)
            if self._is_wrong():
                part.truncate(0)
                raise DownloadError(
                    f"{self._remote.file.name} arrived with wrong content: sum "
                    f"{self._digest.hexdigest()} instead of {_wanted(self._remote)}",
                    "Try again; if it stays so, the hub or a proxy sends wrong bytes.",
                )
            os.fsync(part.fileno())

    def _take_up(self, part: BinaryIO) -> int:
        """Read what earlier calls received; the number of bytes."""
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
        self._received, self._digest = 0, _new_digest(self._remote)

    def _fetch_all(self, part: BinaryIO) -> None:
        """Receive until the size is reached, trying again after what may pass."""
        num_vain = 0
        while self._received < self._remote.size_bytes:
            before = self._received
            try:
                self._receive(part)
            except HubBusyError as error:
                num_vain = 0 if self._received > before else num_vain + 1
                if num_vain > len(RETRY_DELAYS_S):
                    raise self._given_up(error) from error
                self._wait(wait_before_retry_s(error, num_vain))

    def _receive(self, part: BinaryIO) -> None:
        """One request, from where we are to where it ends."""
        from localspec.hub.request import content_of

        wanted = f"{self._received}-" if self._received else None
        with content_of(self._remote, wanted) as response:
            self._check_range(response)
            # A server that does not know ranges sends once more what is here already. It is
            # passed over, so that what counts as progress is more than there ever was.
            known = self._received if response.status_code == 200 else 0
            self._can_resume = known == 0
            self._write(part, response.iter_content(_CHUNK_BYTES), known)
            if self._received < self._remote.size_bytes:
                raise HubBusyError("the answer ended early", None)

    def _write(self, part: BinaryIO, chunks: Iterator[bytes], known: int) -> None:
        """Keep what comes after the bytes that are known."""
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
        self._listener.tell(state, self._received)
        if self._listener.cancelled.is_set():
            raise _stopped()

    def _wait(self, seconds: float) -> None:
        self._listener.tell("waiting", self._received)
        if self._listener.cancelled.wait(seconds):
            raise _stopped()

    def _check_range(self, response: requests.Response) -> None:
        """The answer must be the bytes that are missing, of a file of the right size."""
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
        return self._digest.hexdigest() != _wanted(self._remote)

    def _given_up(self, error: Exception) -> DownloadError:
        hint = "Run the command again later; it goes on from there."
        if not self._can_resume:
            hint = (
                "The server sends every file from its first byte only, and breaks off before "
                "anything new comes: try a steadier connection, or check HF_ENDPOINT."
            )
        return DownloadError(
            f"{self._remote.file.name} stopped at {self._received} of "
            f"{self._remote.size_bytes} bytes: {error}",
            hint,
        )


def hash_file(path: Path, remote: RemoteFile, on_bytes: Callable[[int], None]) -> bool:
    """Whether the content of the file is what the hub states."""
    digest = _new_digest(remote)
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest() == _wanted(remote)


def _stopped() -> DownloadError:
    return DownloadError("the download was stopped", "Run it again; it goes on from there.")


def _open_part(path: Path) -> BinaryIO:
    """The part file for reading and writing, made if it is not there.

    Never through a symbolic link: it could lead to somebody else's file.
    """
    if path.is_symlink():
        raise DownloadError(f"{path} is a symbolic link", "Remove it and try again.")
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o644), "r+b")


def _wanted(remote: RemoteFile) -> str:
    return remote.file.sha256 or remote.etag


def _new_digest(remote: RemoteFile) -> hashlib._Hash:
    """sha256 of the content; if only a git blob id is known, that."""
    wanted = _wanted(remote)
    if len(wanted) == 64:
        return hashlib.sha256()
    if len(wanted) == 40:
        header = f"blob {remote.size_bytes}\0".encode()
        return hashlib.sha1(header, usedforsecurity=False)
    raise DownloadError(
        f"the hub states no checksum of {remote.file.name}, only {wanted!r}",
        "Download it by other means if you trust its source.",
    )
