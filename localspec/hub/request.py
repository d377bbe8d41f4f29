"""GET of a file's content: who gets the token, allowed redirects, and errors.

Made with requests, whose interface does not change with the installed huggingface_hub. Import
this late: requests takes long to load, and every command imports the modules that download.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError

from localspec.errors import DownloadError
from localspec.hub.api import (
    RemoteFile,
    download_timeout_s,
    request_headers,
    without_secrets,
)
from localspec.hub.patience import HubBusyError, stated_wait

_MAX_REDIRECTS = 10
_NO_ADDRESS = "an invalid address"


@contextlib.contextmanager
def content_of(remote: RemoteFile, byte_range: str | None) -> Iterator[requests.Response]:
    """The response to a GET of the file, with status 200 or 206; read its body in the block.

    byte_range: as "7-" or "7-9"; None for everything. Raises HubBusyError where a retry may
    help, else DownloadError, for errors in the block, too. Neither is chained to its cause: a
    traceback in a log would show signed addresses.
    """
    headers = request_headers()
    if byte_range is not None:
        headers["Range"] = f"bytes={byte_range}"
    try:
        with (
            _HubSession(remote) as session,
            session.get(
                remote.url, headers=headers, stream=True, timeout=download_timeout_s()
            ) as response,
        ):
            _check_status(remote, response)
            yield response
    except (requests.RequestException, HTTPError) as error:
        # requests lets some errors of urllib3 through: those of impossible hosts.
        raise _as_download_error(remote, error) from None


class _HubSession(requests.Session):
    """A session for requests that carry the hub's token."""

    def __init__(self, remote: RemoteFile) -> None:
        super().__init__()
        self._remote = remote
        self.max_redirects = _MAX_REDIRECTS
        # An explicit callable, or requests would prefer a ~/.netrc over the hub's token.
        self.auth = _unchanged

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        """Send the token to no other origin, and no password of ~/.netrc in its place.

        Those are for hosts that the user names, not for hosts that a hub redirects to.
        """
        headers = prepared_request.headers
        urls = str(response.request.url), str(prepared_request.url)
        if "Authorization" in headers and self.should_strip_auth(*urls):  # type: ignore[no-untyped-call]
            del headers["Authorization"]

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where the response redirects to. Raises DownloadError for an unsafe redirect."""
        try:
            target = super().get_redirect_target(resp)
            fault = None if target is None else _redirect_fault(resp.url, target)
        except UnicodeDecodeError:
            fault = _NO_ADDRESS
        if fault is not None:
            resp.close()
            raise DownloadError(
                f"the server of {self._remote.file.name} leads to {fault}",
                "Check HF_ENDPOINT and the proxy; nothing was fetched from there.",
            )
        return target


def _redirect_fault(url: str, target: str) -> str | None:
    """What is wrong with a redirect from the address to the target, if anything is."""
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url, target))
        _ = there.port  # raises for what is no number
    except ValueError:
        return _NO_ADDRESS
    if there.scheme not in ("http", "https") or not there.hostname:
        return f"an address of the kind {there.scheme!r}"
    if (here.scheme, there.scheme) == ("https", "http"):
        # The signed address, and the file, would be sent in the clear.
        return f"{there.hostname} without encryption"
    return None


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _check_status(remote: RemoteFile, response: requests.Response) -> None:
    status, name = response.status_code, remote.file.name
    if status in (200, 206):
        return
    answer = f"the server of {name} answers {status}"
    is_elsewhere = urlsplit(response.url).netloc != urlsplit(remote.url).netloc
    # A signed address that has expired gives 403; the next request gets a new one.
    if status in (408, 429) or status >= 500 or (status == 403 and is_elsewhere):
        raise HubBusyError(answer, stated_wait(response.headers))
    if status in (401, 403):
        raise DownloadError(
            answer, "Check the token (hf auth login) and the repository's terms."
        )
    if status not in (404, 410):
        raise DownloadError(answer, "Try again later; check HF_ENDPOINT and the proxy.")
    if is_elsewhere:
        raise DownloadError(
            f"the hub has {name}, but the storage that it leads to answers {status}",
            f"Try again later; if it stays so, tell the owner of {remote.file.repo}.",
        )
    raise DownloadError(
        f"{remote.file.repo} has no file {remote.file.file} any more",
        "Somebody is changing the repository: look at its files and try again.",
    )


def _as_download_error(
    remote: RemoteFile, error: requests.RequestException | HTTPError
) -> DownloadError:
    name = remote.file.name
    if isinstance(error, requests.TooManyRedirects):
        return DownloadError(
            f"the server of {name} redirects more than {_MAX_REDIRECTS} times",
            "Try again later; check HF_ENDPOINT and the proxy.",
        )
    what = without_secrets(str(error))
    # ValueError: an invalid address, or a proxy that cannot be used.
    if isinstance(error, ValueError) or "CERTIFICATE_VERIFY_FAILED" in what:
        return DownloadError(
            f"the server of {name} cannot be asked: {what}",
            "Check HF_ENDPOINT, the proxy, the certificates and the clock.",
        )
    return HubBusyError(f"the connection to the server of {name} broke: {what}", None)
