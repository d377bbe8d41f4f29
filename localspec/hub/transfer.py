"""Content of one file from the hub: resumed where it stopped, and verified.

Received bytes are in a part file and are never fetched again, whatever ends the process.
huggingface_hub's own download has dropped them since 1.18; its session is used instead.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import BinaryIO

from localspec.errors import DownloadError
from localspec.hub.api import RemoteFile, content_of
from localspec.hub.patience import RETRY_DELAYS_S, HubBusyError, delay_s, patiently

_READ_BYTES = 1 << 20

Tell = Callable[[str, int], None]


def fetch(remote: RemoteFile, part: Path, tell: Tell, cancelled: Event) -> None:
    """Fetch what the part file lacks; afterwards it is whole and verified.

    tell: called with the state and the number of bytes; an exception in it ends the fetch.
    cancelled: ends a wait, before `tell` is called again. Raises DownloadError; received bytes
    stay unless they are wrong. OSError comes from the disk.
    """
    with _open_part(part) as file:
        if _size(file) > remote.size_bytes:
            file.truncate(0)
        is_resumed = _size(file) > 0
        _fetch_missing(remote, file, tell, cancelled)
        is_right = has_checksum(part, remote.checksum, counting(tell))
        if is_resumed and not is_right:  # a power cut may have damaged the earlier bytes
            file.truncate(0)
            _fetch_missing(remote, file, tell, cancelled)
            is_right = has_checksum(part, remote.checksum, counting(tell))
        if not is_right:
            file.truncate(0)
            raise DownloadError(
                f"{remote.file.name} arrived with wrong content: its checksum is not "
                f"{remote.checksum}",
                "Try again; if it stays so, the hub or a proxy sends wrong bytes.",
            )


def _fetch_missing(remote: RemoteFile, file: BinaryIO, tell: Tell, cancelled: Event) -> None:
    """Receive until the size is reached, with retries after errors that may pass."""
    num_vain = 0
    while (before := _size(file)) < remote.size_bytes:
        try:
            _receive(remote, file, tell)
        except HubBusyError as error:
            received = _size(file)
            num_vain = 0 if received > before else num_vain + 1
            if num_vain > len(RETRY_DELAYS_S):
                raise DownloadError(
                    f"{remote.file.name} stopped at {received} of {remote.size_bytes} bytes: "
                    f"{error}",
                    "Run the command again later; it continues from there.",
                ) from error
            tell("waiting", received)
            cancelled.wait(delay_s(error, num_vain))
            tell("waiting", received)
    os.fsync(file.fileno())


def _receive(remote: RemoteFile, file: BinaryIO, tell: Tell) -> None:
    """One request, from the received bytes to wherever it ends."""
    received = _size(file)
    for piece in content_of(remote, received):
        received += len(piece)
        if received > remote.size_bytes:
            raise DownloadError(
                f"the server sends more than the {remote.size_bytes} bytes of "
                f"{remote.file.name}",
                "Try again later; check HF_ENDPOINT and the proxy.",
            )
        file.write(piece)
        file.flush()
        tell("downloading", received)
    if received < remote.size_bytes:
        raise HubBusyError("the answer ended early", None)


class RemoteSource:
    """A file on the hub as a `header.ByteSource`: each read is a request, with retries."""

    def __init__(self, remote: RemoteFile) -> None:
        self.name = f"{remote.file.repo}/{remote.file.file}"
        self.size_bytes = remote.size_bytes
        self._remote = remote

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from an offset on. Raises DownloadError."""
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
        data = bytearray()
        for piece in content_of(self._remote, offset, offset + size - 1):
            data += piece
            if len(data) >= size:
                return bytes(data[:size])
        raise HubBusyError(f"the answer ended after {len(data)} of {size} bytes", None)


def has_checksum(path: Path, checksum: str, on_bytes: Callable[[int], None]) -> bool:
    """Whether the file has that sha256, or git blob id. on_bytes: gets each piece's length."""
    if len(checksum) == 64:
        digest = hashlib.sha256()
    else:
        head = f"blob {path.stat().st_size}\0".encode()
        digest = hashlib.sha1(head, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
            on_bytes(len(piece))
    return digest.hexdigest() == checksum


def counting(tell: Tell) -> Callable[[int], None]:
    """A callback that tells how much was checked. It gets the length of each piece."""
    seen = 0

    def on_bytes(num_bytes: int) -> None:
        nonlocal seen
        seen += num_bytes
        tell("checking", seen)

    return on_bytes


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _open_part(path: Path) -> BinaryIO:
    """The part file, to be appended to; created if it does not exist.

    Never through a symbolic link: it could lead to somebody else's file.
    """
    if path.is_symlink():
        raise DownloadError(f"{path} is a symbolic link", "Remove it and try again.")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o644), "ab")
