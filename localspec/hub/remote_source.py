"""A file on the hub as a `header.ByteSource`: the bytes that are asked for, and no others."""

from __future__ import annotations

from localspec.errors import DownloadError
from localspec.hub.api import RemoteFile
from localspec.hub.patience import HubBusyError, patiently


class RemoteSource:
    """A `ByteSource` of `header`: each read is a ranged request, repeated where that helps."""

    def __init__(self, remote: RemoteFile) -> None:
        self.name = f"{remote.file.repo}/{remote.file.file}"
        self.size_bytes = remote.size_bytes
        self._remote = remote

    def read(self, offset: int, size: int) -> bytes:
        """See `header.ByteSource.read`. Raises DownloadError."""
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
            # A server without ranges sends the file from its beginning.
            begin = offset if response.status_code == 206 else 0
            data = bytearray()
            for chunk in response.iter_content(1 << 16):
                data += chunk
                if begin + len(data) >= offset + size:
                    break
        found = bytes(data[offset - begin : offset - begin + size])
        if len(found) < size:
            raise HubBusyError(f"the answer ended after {len(found)} of {size} bytes", None)
        return found
