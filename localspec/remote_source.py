"""A file on the hub as a `header.Source`: the bytes that are asked for, and no others."""

from __future__ import annotations

from localspec.errors import DownloadError
from localspec.hub_api import RemoteFile, download_timeout_s, request_headers
from localspec.transfer import hub_session


class RemoteSource:
    """A `header.Source`; each read is one ranged request."""

    def __init__(self, remote: RemoteFile) -> None:
        self.name = f"{remote.file.repo}/{remote.file.file}"
        self.size_bytes = remote.size_bytes
        self._url = remote.url

    def read(self, offset: int, size: int) -> bytes:
        """See `header.Source.read`. Raises DownloadError."""
        if size == 0:
            return b""
        import requests

        headers = {**request_headers(), "Range": f"bytes={offset}-{offset + size - 1}"}
        try:
            with (
                hub_session() as session,
                session.get(
                    self._url, headers=headers, stream=True, timeout=download_timeout_s()
                ) as response,
            ):
                response.raise_for_status()
                # A server without ranges sends the file from its beginning.
                begin = offset if response.status_code == 206 else 0
                data = bytearray()
                for chunk in response.iter_content(1 << 16):
                    data += chunk
                    if begin + len(data) >= offset + size:
                        break
        except requests.RequestException as error:
            raise DownloadError(
                f"the header of {self.name} cannot be read: {error}",
                "Try again later; check the connection and HF_ENDPOINT.",
            ) from error
        found = bytes(data[offset - begin : offset - begin + size])
        if len(found) < size:
            raise DownloadError(
                f"the server of {self.name} sends {len(found)} of {size} bytes",
                "Try again later; check HF_ENDPOINT and the proxy.",
            )
        return found
