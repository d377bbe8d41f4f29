"""Asks the hub for metadata, lists and content of files, and tries again after some errors.

The only importer of huggingface_hub, in functions: it takes longer to load than everything else
here together. Works with huggingface_hub 1.x and 2.x. Their HTTP libraries, httpx and httpx2,
have different classes of connection errors, so the errors are recognised by their names.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from localspec._version import __version__
from localspec.errors import DAMAGES, DownloadError, LocalspecError, OptionError
from localspec.hub.hub_file import SHA256_DIGITS, HubFile
from localspec.system.atomic_write import read_regular
from localspec.system.call_thread import CallThread

Result = TypeVar("Result")
OnWait = Callable[[], None]

COMMIT = re.compile("[0-9a-f]{40}")
BEAT_S = 0.25  # between two calls of `on_wait`
RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # after the first failed try, the second, …
_MAX_WAIT_S = 600.0  # if a server asks for a longer wait, that is an error
_MAX_JSON_BYTES = 16_000_000  # enough for a repository with some 50 000 files
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_NOT_IN_TOKEN = re.compile("[^!-~]")  # characters that cannot be sent in a header
_ETAG = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # it becomes the name of a file
_USUAL_PORTS = {"http": 80, "https": 443}
_BUSY_STATUSES = {408, 429, 500, 502, 503, 504}  # HTTP; another try may help
_PARTIAL_CONTENT = 206  # HTTP's status of an answer with the requested range of bytes
# Names of the HTTP library's errors. After a connection broke, another try may help. If no
# connection can be made, there is another try only in the middle of a file; else the error is
# raised at once.
_BROKEN = frozenset({"ReadError", "ReadTimeout", "WriteError", "RemoteProtocolError"})
_NOT_CONNECTED = frozenset({"ConnectError", "ConnectTimeout"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file as the hub serves it now."""

    file: HubFile
    commit: str
    """The repository's commit, 40 hex digits."""

    etag: str
    """The sha256 of the content (64 hex digits), or for a small file its git blob id (40)."""

    size_bytes: int

    @property
    def checksum(self) -> str:
        """The pinned sha256; if none is pinned, the etag."""
        return self.file.sha256 or self.etag


def cache_folder() -> Path:
    """The folder of the hub's cache, which other tools share."""
    return Path(_settings().HF_HUB_CACHE)


def is_offline() -> bool:
    """Whether the user forbids requests to the hub."""
    return bool(_settings().HF_HUB_OFFLINE)


def remote_file(file: HubFile, on_wait: OnWait = lambda: None) -> RemoteFile:
    """Ask the hub about a file, and compare the answer with the file's pin.

    Args:
        file: The file.
        on_wait: Called during the wait, as in `retry_while_busy`.

    Raises:
        HubBusyError: All tries failed.
        DownloadError: The file is not available, or is not the pinned one.
    """
    url = _url_at(file, file.revision or "main")
    from huggingface_hub import get_hf_file_metadata

    metadata = _ask(file.repo, file, lambda: get_hf_file_metadata(url), on_wait)
    commit = metadata.commit_hash or ""
    etag = metadata.etag or ""
    size = metadata.size or 0
    if etag and file.sha256 is not None and not _ETAG.fullmatch(etag):
        etag = file.sha256  # a mirror has etags of its own; the pin has the right hash
    if not COMMIT.fullmatch(commit) or not _ETAG.fullmatch(etag) or size < 1:
        raise DownloadError(
            f"{_shown_endpoint()} sends a missing or invalid commit, hash or size for "
            f"{file.name}",
            "Check HF_ENDPOINT: a mirror has to send the hub's headers.",
        )
    # A git blob id cannot be compared with the pin.
    has_other_hash = len(etag) == SHA256_DIGITS and file.sha256 not in (None, etag)
    has_other_size = file.size_bytes not in (None, size)
    if has_other_hash or has_other_size:
        raise DownloadError(
            f"{file.name} on the hub differs from the pinned file: {size} bytes with the hash "
            f"{etag}",
            f"{file.repo} was changed, or the pin is wrong; nothing was downloaded.",
        )
    return RemoteFile(
        file=file,
        commit=commit,
        etag=etag,
        size_bytes=size,
    )


def stream_content(remote: RemoteFile, begin: int, end: int | None = None) -> Iterator[bytes]:
    """Request the content of a file from a byte on; gives the pieces as they arrive.

    Requests the hub's own address each time: the signed address that it redirects to expires
    after about an hour. Raises HubBusyError if another try may help, else DownloadError.

    Args:
        remote: The file.
        begin: The first byte.
        end: The last byte that is needed; None for the last of the file. A server that does not
            support ranges sends more.
    """
    _check_token()
    # By commit: a branch may change before the last byte is here.
    url = _url_at(remote.file, remote.commit)
    headers = {}
    if end is not None:
        headers["Range"] = f"bytes={begin}-{end}"
    elif begin:
        headers["Range"] = f"bytes={begin}-"
    try:
        with _response(url, headers) as response:
            num_to_drop = begin  # bytes before the first byte that is needed
            if response.status_code == _PARTIAL_CONTENT:
                num_to_drop = 0
            for piece in response.iter_bytes():
                needed = piece[num_to_drop:]
                if needed:
                    yield needed
                num_to_drop = max(0, num_to_drop - len(piece))
    except Exception as error:  # connection errors have no base class in common
        repo = remote.file.repo
        retryable = _BROKEN | _NOT_CONNECTED
        raise _as_download_error(repo, remote.file, error, retryable) from None


def pinned_file(file: HubFile, size_bytes: int) -> RemoteFile | None:
    """The file as its pin states it, without asking the hub; None without a pinned sha256.

    In place of a commit it has the pinned revision, or main.

    Args:
        file: The file.
        size_bytes: The file's size, taken if the pin states none.
    """
    if file.sha256 is None:
        return None
    return RemoteFile(
        file=file,
        commit=file.revision or "main",
        etag=file.sha256,
        size_bytes=file.size_bytes or size_bytes,
    )


def list_files(repo: str, on_wait: OnWait = lambda: None) -> list[HubFile]:
    """The GGUF files of a repository's main branch, with their sizes and hashes.

    Leaves out what `HubFile` refuses: files that are not GGUF, or whose name, size or hash is
    invalid. Raises HubBusyError or DownloadError.

    Args:
        repo: The repository.
        on_wait: Called during the wait, as in `retry_while_busy`.
    """
    info = _ask(repo, None, functools.partial(_repository_info, repo), on_wait)
    files = []
    for entry in info.get("siblings") or ():
        with contextlib.suppress(OptionError, *DAMAGES):
            large_file = entry.get("lfs") or {}
            file = HubFile(
                repo=repo,
                file=entry["rfilename"],
                size_bytes=entry.get("size"),
                sha256=large_file.get("sha256"),
            )
            files.append(file)
    return files


def _repository_info(repo: str) -> dict[str, Any]:
    """The hub's JSON about a repository; its "siblings" are the files.

    Not by huggingface_hub, which would read an answer of any length. Raises DownloadError if it
    is too long, ValueError if it has no list of files, and errors of huggingface_hub.
    """
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo)
    content = bytearray()
    with _response(f"{_endpoint()}/api/models/{repo}?blobs=true", {}) as response:
        for piece in response.iter_raw():
            content += piece
            if len(content) > _MAX_JSON_BYTES:
                raise DownloadError(
                    f"{_shown_endpoint()} sends more than {_MAX_JSON_BYTES} bytes about {repo}",
                    "Check HF_ENDPOINT; name a file of the repository: hf:OWNER/REPO/FILE.",
                )
    info = json.loads(bytes(content))
    if not isinstance(info, dict) or not isinstance(info.get("siblings") or [], list):
        raise ValueError("it sends no list of files")
    return info


@contextlib.contextmanager
def _response(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """The hub's response to a GET request, before its content is read.

    Raises errors of huggingface_hub, also for a refusal, whose content is not read.
    """
    from huggingface_hub import get_session, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers

    timeout_s = float(_settings().HF_HUB_DOWNLOAD_TIMEOUT)
    hub_headers = build_hf_headers(library_name="localspec", library_version=__version__)
    with get_session().stream(
        "GET",
        url,
        headers={**hub_headers, "Accept-Encoding": "identity", **headers},
        timeout=timeout_s,
    ) as response:
        if not response.is_success:
            # hf_raise_for_status would read all of the content to find the reason. It finds
            # the reason in the headers, too, so it gets a copy of the response without content.
            response.headers.pop("Content-Encoding", None)
            refusal = type(response)(
                response.status_code,
                headers=response.headers,
                request=response.request,
            )
            hf_raise_for_status(refusal)
        yield response


def without_secrets(text: str) -> str:
    """The text of an error, without the passwords and queries of the addresses in it.

    The query of a signed address is a secret.
    """
    without_passwords = re.sub(r"//[^/@\s'\"]*@", "//", text)
    return re.sub(r"\?[^\s'\")]+", "", without_passwords)


def _endpoint() -> str:
    """The hub's address, which may have a password."""
    return str(_settings().ENDPOINT)


def _shown_endpoint() -> str:
    """The hub's address without secrets, for messages."""
    return without_secrets(_endpoint())


def _settings() -> Any:
    """huggingface_hub's settings, as the user's environment variables state them.

    Raises OptionError if a variable has an invalid value.
    """
    try:
        from huggingface_hub import constants

        _ = urlsplit(constants.ENDPOINT).port  # raises if it is not a number
    except ValueError as error:
        raise OptionError(
            f"the environment has an invalid value: {without_secrets(str(error))}",
            "Check HF_ENDPOINT, HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT.",
        ) from None
    return constants


def _check_token() -> None:
    """Raise OptionError if the user's token has a character that cannot be sent."""
    if _settings().HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return
    place, token = _user_token()
    invalid = _NOT_IN_TOKEN.search(token)
    if invalid is not None:
        raise OptionError(
            f"the token in {place} has {invalid[0]!r} as its character "
            f"{invalid.start() + 1}, which no token has",
            f"Copy it again from {_shown_endpoint()}/settings/tokens, or remove it.",
        )


def _user_token() -> tuple[str, str]:
    """The place of the user's token, in words, and the token; both empty if there is none.

    As huggingface_hub does, takes the first place with a token: a variable of the environment,
    then a file.
    """
    texts = {name: os.environ.get(name, "") for name in _TOKEN_VARIABLES}
    with contextlib.suppress(OSError):
        path = Path(_settings().HF_TOKEN_PATH)
        texts[f"the file {path}"] = read_regular(path).decode(errors="replace")
    for place, text in texts.items():
        token = text.replace("\r", "").replace("\n", "").strip()
        if token:
            return place, token
    return "", ""


def _url_at(file: HubFile, revision: str) -> str:
    """The address of a file at a revision."""
    endpoint = _endpoint()
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(
        file.repo,
        file.file,
        revision=revision,
        endpoint=endpoint,
    )
    return str(url)


def _ask(
    repo: str,
    file: HubFile | None,
    request: Callable[[], Result],
    on_wait: OnWait,
) -> Result:
    """The result of a request to the hub, with more tries while the hub is busy.

    Args:
        repo: The repository, for errors.
        file: The file that the request is about, for errors; None if it is about none.
        request: Sends the request once.
        on_wait: Called during the wait, as in `retry_while_busy`.

    Raises:
        HubBusyError: All tries failed.
        DownloadError: Another try would not help.
        OptionError: The user's token cannot be sent.
    """
    _check_token()

    def try_once() -> Result:
        try:
            return request()
        except LocalspecError:
            raise
        except Exception as error:  # connection errors have no base class in common
            raise _as_download_error(repo, file, error, _BROKEN) from None

    return retry_while_busy(try_once, on_wait)


def _as_download_error(
    repo: str,
    file: HubFile | None,
    error: Exception,
    retryable: Set[str],
) -> DownloadError:
    """The DownloadError for an error of huggingface_hub or of its HTTP library.

    Raise it from None: a traceback in a log would show addresses with their signatures.

    Args:
        repo: The repository.
        file: The file, if the request was about one.
        error: The error of huggingface_hub or its HTTP library.
        retryable: The names of the HTTP library's errors after which another try may help.

    Returns:
        A HubBusyError if another try may help.
    """
    from huggingface_hub.utils import (
        EntryNotFoundError,
        GatedRepoError,
        OfflineModeIsEnabled,
        RevisionNotFoundError,
    )

    endpoint = _shown_endpoint()
    revision = "main"
    name = ""
    if file is not None:
        revision = file.revision or "main"
        name = file.file
    if isinstance(error, OfflineModeIsEnabled):
        return DownloadError("offline mode is on (HF_HUB_OFFLINE)", "Unset it to download.")
    if isinstance(error, GatedRepoError):
        return DownloadError(
            f"{repo} is gated: its owner wants you to accept terms first",
            f"Accept them at {endpoint}/{repo}, then run: hf auth login",
        )
    if isinstance(error, RevisionNotFoundError):
        return DownloadError(
            f"{repo} has no revision {revision!r}",
            f"Give a branch, tag or commit of {endpoint}/{repo}, in the name or the preset.",
        )
    if isinstance(error, EntryNotFoundError):
        return DownloadError(
            f"{repo} has no file {name} at that revision",
            f"Look at {endpoint}/{repo}/tree/main",
        )
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status is not None:
        return _refusal_error(repo, status, response)
    error_name = type(error).__name__
    reason = without_secrets(f"{error_name}: {error}")
    if error_name in retryable:
        return HubBusyError(f"{endpoint} does not answer about {repo}: {reason}", None)
    return DownloadError(
        f"{endpoint} cannot be reached for {repo}: {reason}",
        "Check the connection, the proxy and HF_ENDPOINT.",
    )


def _refusal_error(repo: str, status: int, response: Any) -> DownloadError:
    """The error for a response that refuses a request, from the hub or its storage.

    Args:
        repo: The repository.
        status: The HTTP status.
        response: The response of the HTTP library.

    Returns:
        A HubBusyError if another try may help.
    """
    answer = f"{_shown_endpoint()} answers {status}"
    is_storage = _origin(str(response.url)) != _origin(_endpoint())
    if is_storage:
        answer = f"the storage that the hub redirects to for {repo} answers {status}"
    # A signed address that has expired gives 403; the next request gets a new one.
    if status in _BUSY_STATUSES or (is_storage and status == 403):
        wait_s = None
        seconds = response.headers.get("Retry-After", "")
        if re.fullmatch(r"\d{1,9}", seconds):
            wait_s = int(seconds)
        return HubBusyError(answer, wait_s)
    if is_storage or status not in (401, 403, 404):
        return DownloadError(answer, "Try again later; check HF_ENDPOINT and the proxy.")
    return DownloadError(
        f"{repo} does not exist, or is private ({answer})",
        "Check the name. For a private repository set HF_TOKEN or run: hf auth login",
    )


def _origin(url: str) -> tuple[str | None, int | None]:
    """The host of an address, and its port; None for the usual one of its scheme."""
    parts = urlsplit(url)
    port = parts.port
    if port == _USUAL_PORTS.get(parts.scheme):
        port = None
    return parts.hostname, port


class HubBusyError(DownloadError):
    """An error after which another try may help.

    Args:
        message: What failed.
        wait_s: The seconds that the server asks to wait; None if it names no time.
    """

    def __init__(self, message: str, wait_s: int | None) -> None:
        super().__init__(message, "Try again later; received bytes are kept.")
        self.wait_s = wait_s


def retry_while_busy(try_once: Callable[[], Result], on_wait: OnWait) -> Result:
    """The result of `try_once`, which is called again, up to five times, after HubBusyError.

    Raises the error of the last try, or the error of `delay_s`, which gives the waits between
    tries.

    Args:
        try_once: Makes one try, in another thread.
        on_wait: Called in this thread a few times a second until there is a result. If it
            raises an exception, the wait ends with that exception at once; a request without an
            answer then ends by its own timeout.
    """
    for step in range(len(RETRY_DELAYS_S)):
        try:
            return _call_in_thread(try_once, on_wait)
        except HubBusyError as error:
            _wait(delay_s(error, step), on_wait)
    return _call_in_thread(try_once, on_wait)


def _wait(seconds: float, on_wait: OnWait) -> None:
    """Sleep, and call `on_wait` a few times a second meanwhile."""
    end = time.monotonic() + seconds
    while True:
        remaining_s = end - time.monotonic()
        if remaining_s <= 0:
            return
        on_wait()
        time.sleep(min(remaining_s, BEAT_S))


def _call_in_thread(try_once: Callable[[], Result], on_wait: OnWait) -> Result:
    """The result of `try_once`, called in a thread: reading from a silent server blocks.

    Calls `on_wait` a few times a second until the thread ends.
    """
    # A daemon, so that an abandoned try does not hold up the exit.
    thread = CallThread(try_once, daemon=True)
    thread.start()
    thread.join(BEAT_S)
    while thread.is_alive():
        on_wait()
        thread.join(BEAT_S)
    return thread.result()


def delay_s(error: HubBusyError, step: int) -> float:
    """The seconds to wait after a failed try: what the server asks for, or a growing time.

    Args:
        error: The error of the failed try.
        step: The place of the delay in RETRY_DELAYS_S. Beyond the end, it is the last delay.

    Raises:
        DownloadError: If the server asks for more than ten minutes.
    """
    if error.wait_s is None:
        last_step = len(RETRY_DELAYS_S) - 1
        return RETRY_DELAYS_S[min(step, last_step)]
    if error.wait_s > _MAX_WAIT_S:
        raise DownloadError(
            f"{error} and asks to wait {error.wait_s} s",
            "Try again later. After 429, log in (hf auth login) for a higher limit.",
        ) from error
    return float(error.wait_s)
