"""Asks the hub for metadata, lists and content of files, and retries if that may help.

The only importer of huggingface_hub.

Works with huggingface_hub 1.x and 2.x. The classes of connection errors changed with its HTTP
library (httpx, httpx2), so they are recognised by their names.
Imports are late: huggingface_hub takes longer to load than everything else here together.
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
from localspec.hub.hub_file import HubFile
from localspec.system.atomic_write import read_regular
from localspec.system.call_thread import CallThread

Result = TypeVar("Result")
OnWait = Callable[[], None]

COMMIT = re.compile("[0-9a-f]{40}")
BEAT_S = 0.25  # how often a waiting caller is asked whether to continue
RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # between tries that fail
_MAX_WAIT_S = 600.0  # a server that asks for more is an error
_MOST_JSON_BYTES = 16_000_000  # of a repository with some 50 000 files
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TOKEN_SIGNS = re.compile("[!-~]*")  # other characters cannot be sent in a header
_ETAG = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # it becomes the name of a file
_TRANSIENT = {408, 429, 500, 502, 503, 504}
# Errors of the HTTP library for a connection that broke: a retry may help. A connection that
# cannot be made is reported at once, but not in the middle of a file.
_BROKEN = frozenset({"ReadError", "ReadTimeout", "WriteError", "RemoteProtocolError"})
_NOT_MADE = frozenset({"ConnectError", "ConnectTimeout"})


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
        """The pinned sha256, or else the etag."""
        return self.file.sha256 or self.etag


def cache_folder() -> Path:
    """The hub's cache, which other tools share."""
    return Path(_settings().HF_HUB_CACHE)


def is_offline() -> bool:
    """Whether the user forbids requests to the hub."""
    return bool(_settings().HF_HUB_OFFLINE)


def remote_file(file: HubFile, on_wait: OnWait = lambda: None) -> RemoteFile:
    """Ask the hub about a file, and compare the answer with the file's pin.

    Raises HubBusyError if retries did not help, DownloadError if the file is not available or
    not the pinned one.

    Args:
        file: The file.
        on_wait: Called while it waits, as in `patiently`.
    """
    url = _url_at(file, file.revision or "main")
    from huggingface_hub import get_hf_file_metadata

    found = _asking(file.repo, file, lambda: get_hf_file_metadata(url), on_wait)
    commit = found.commit_hash or ""
    etag = found.etag or ""
    size = found.size or 0
    if etag and file.sha256 is not None and not _ETAG.fullmatch(etag):
        etag = file.sha256  # a mirror has etags of its own; the pin has the right hash
    if not COMMIT.fullmatch(commit) or not _ETAG.fullmatch(etag) or size < 1:
        raise DownloadError(
            f"{_endpoint()} sends a missing or invalid commit, hash or size for {file.name}",
            "Check HF_ENDPOINT: a mirror has to send the hub's headers.",
        )
    is_other = len(etag) == 64 and file.sha256 not in (None, etag)
    if is_other or file.size_bytes not in (None, size):
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


def content_of(remote: RemoteFile, begin: int, end: int | None = None) -> Iterator[bytes]:
    """The content of a file from a byte on, in pieces as they arrive.

    Requests the hub's own address each time: the signed address that it redirects to expires
    after about an hour. Raises HubBusyError if a retry may help, else DownloadError.

    Args:
        remote: The file.
        begin: The first byte.
        end: The last byte that is needed; a server without ranges sends more.
    """
    _check_token()
    # By commit: a branch may change before the last byte is here.
    url = _url_at(remote.file, remote.commit)
    ranges = {}
    if end is not None:
        ranges["Range"] = f"bytes={begin}-{end}"
    elif begin:
        ranges["Range"] = f"bytes={begin}-"
    try:
        with _response(url, ranges) as response:
            num_surplus = begin  # bytes before the first one that is needed
            if response.status_code == 206:
                num_surplus = 0
            for piece in response.iter_bytes():
                needed = piece[num_surplus:]
                if needed:
                    yield needed
                num_surplus = max(0, num_surplus - len(piece))
    except Exception as error:  # its connection errors have no common base
        repo = remote.file.repo
        may_pass = _BROKEN | _NOT_MADE
        raise _as_download_error(repo, remote.file, error, may_pass) from None


def pinned_file(file: HubFile, size_bytes: int) -> RemoteFile | None:
    """The file as its pin states it, without asking the hub; None without a pinned sha256.

    Args:
        file: The file.
        size_bytes: Its size if the pin states none.
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

    Files with invalid facts, or names that lead out of a folder, are left out. Raises
    HubBusyError or DownloadError.

    Args:
        repo: The repository.
        on_wait: Called while it waits, as in `patiently`.
    """
    info = _asking(repo, None, functools.partial(_facts_of, repo), on_wait)
    files = []
    for entry in info.get("siblings") or ():
        with contextlib.suppress(OptionError, *DAMAGES):
            content = entry.get("lfs") or {}
            file = HubFile(
                repo=repo,
                file=entry["rfilename"],
                size_bytes=entry.get("size"),
                sha256=content.get("sha256"),
            )
            files.append(file)
    return files


def _facts_of(repo: str) -> dict[str, Any]:
    """The hub's JSON about a repository and its files.

    huggingface_hub would read an answer of any length. Raises DownloadError if it is too long,
    ValueError if it has no list of files, and errors of huggingface_hub.
    """
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo)
    content = bytearray()
    with _response(f"{_address()}/api/models/{repo}?blobs=true", {}) as response:
        for piece in response.iter_raw():
            content += piece
            if len(content) > _MOST_JSON_BYTES:
                raise DownloadError(
                    f"{_endpoint()} sends more than {_MOST_JSON_BYTES} bytes about {repo}",
                    "Check HF_ENDPOINT; name a file of the repository: hf:OWNER/REPO/FILE.",
                )
    facts = json.loads(bytes(content))
    if not isinstance(facts, dict) or not isinstance(facts.get("siblings") or [], list):
        raise ValueError("it sends no list of files")
    return facts


@contextlib.contextmanager
def _response(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """The hub's response, before its content is read.

    Raises errors of huggingface_hub, also for a refusal, whose content is not read.
    """
    from huggingface_hub import get_session, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers

    timeout_s = float(_settings().HF_HUB_DOWNLOAD_TIMEOUT)
    sent = build_hf_headers(library_name="localspec", library_version=__version__)
    sent = {**sent, "Accept-Encoding": "identity", **headers}
    with get_session().stream(
        "GET",
        url,
        headers=sent,
        timeout=timeout_s,
    ) as response:
        if not response.is_success:
            # It would read the whole content for a reason, which the headers have, too.
            response.headers.pop("Content-Encoding", None)
            refusal = type(response)(
                response.status_code,
                headers=response.headers,
                request=response.request,
            )
            hf_raise_for_status(refusal)
        yield response


def without_secrets(text: str) -> str:
    """The text of an error without the signatures and passwords in its addresses."""
    text = re.sub(r"//[^/@\s'\"]*@", "//", text)
    return re.sub(r"\?[^\s'\")]+", "", text)


def _address() -> str:
    return str(_settings().ENDPOINT)


def _endpoint() -> str:
    """The hub's address without secrets, for messages."""
    return without_secrets(_address())


def _settings() -> Any:
    """huggingface_hub's settings of the environment. Raises OptionError if they are invalid."""
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
    """Raise OptionError for a token that cannot be sent."""
    settings = _settings()
    if settings.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return
    tokens = {name: os.environ.get(name, "") for name in _TOKEN_VARIABLES}
    with contextlib.suppress(OSError):
        path = Path(settings.HF_TOKEN_PATH)
        tokens[f"the file {path}"] = read_regular(path).decode(errors="replace")
    for place, text in tokens.items():
        # huggingface_hub, too, takes the first one that is not empty.
        token = text.replace("\r", "").replace("\n", "").strip()
        if not token:
            continue
        known = _TOKEN_SIGNS.match(token)
        if known is not None and known.end() < len(token):
            raise OptionError(
                f"the token in {place} has {token[known.end()]!r} as its character "
                f"{known.end() + 1}, which no token has",
                f"Copy it again from {_endpoint()}/settings/tokens, or remove it.",
            )
        return


def _url_at(file: HubFile, revision: str) -> str:
    """The address of a file at a revision."""
    address = _address()
    from huggingface_hub import hf_hub_url

    return str(
        hf_hub_url(
            file.repo,
            file.file,
            revision=revision,
            endpoint=address,
        )
    )


def _asking(
    repo: str,
    file: HubFile | None,
    ask: Callable[[], Result],
    on_wait: OnWait,
) -> Result:
    """The result of `ask`, retried if that may help. Raises HubBusyError or DownloadError.

    Raises OptionError for a token that cannot be sent.
    """
    _check_token()

    def ask_once() -> Result:
        try:
            return ask()
        except LocalspecError:
            raise
        except Exception as error:  # its connection errors have no common base
            raise _as_download_error(repo, file, error, _BROKEN) from None

    return patiently(ask_once, on_wait)


def _as_download_error(
    repo: str,
    file: HubFile | None,
    error: Exception,
    may_pass: Set[str],
) -> DownloadError:
    """The error for one of huggingface_hub.

    Raise it from None: a traceback in a log would show addresses with their signatures.

    Args:
        repo: The repository.
        file: The file, if the request was about one.
        error: The error of huggingface_hub.
        may_pass: The names of errors after which a retry may help.
    """
    from huggingface_hub.utils import (
        EntryNotFoundError,
        GatedRepoError,
        OfflineModeIsEnabled,
        RevisionNotFoundError,
    )

    endpoint = _endpoint()
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
        return _refusal(repo, status, response)
    what = without_secrets(f"{type(error).__name__}: {error}")
    if type(error).__name__ in may_pass:
        return HubBusyError(f"{endpoint} does not answer about {repo}: {what}", None)
    return DownloadError(
        f"{endpoint} cannot be reached for {repo}: {what}",
        "Check the connection, the proxy and HF_ENDPOINT.",
    )


def _refusal(repo: str, status: int, response: Any) -> DownloadError:
    """The error for an answer of the hub, or of the storage that it redirects to."""
    answer = f"{_endpoint()} answers {status}"
    is_elsewhere = urlsplit(str(response.url)).netloc != urlsplit(_address()).netloc
    if is_elsewhere:
        answer = f"the storage that the hub redirects to for {repo} answers {status}"
    # A signed address that has expired gives 403; the next request gets a new one.
    if status in _TRANSIENT or (is_elsewhere and status == 403):
        wait_s = None
        seconds = response.headers.get("Retry-After", "")
        if re.fullmatch(r"\d{1,9}", seconds):
            wait_s = int(seconds)
        return HubBusyError(answer, wait_s)
    if is_elsewhere or status not in (401, 403, 404):
        return DownloadError(answer, "Try again later; check HF_ENDPOINT and the proxy.")
    return DownloadError(
        f"{repo} does not exist, or is private ({answer})",
        "Check the name. For a private repository set HF_TOKEN or run: hf auth login",
    )


class HubBusyError(DownloadError):
    """Another try may help.

    Args:
        wait_s: Seconds that the server asks to wait, or None.
    """

    def __init__(self, message: str, wait_s: int | None) -> None:
        super().__init__(message, "Try again later; received bytes are kept.")
        self.wait_s = wait_s


def patiently(ask: Callable[[], Result], on_wait: Callable[[], None]) -> Result:
    """The result of `ask`, retried while it raises HubBusyError.

    Raises what `ask` raises, HubBusyError after the sixth try.

    Args:
        ask: Makes one try.
        on_wait: Called in this thread a few times a second until there is a result. An
            exception in it ends the waiting at once; an unanswered request then ends by its own
            timeout.
    """
    for num_vain in range(len(RETRY_DELAYS_S)):
        try:
            return _answer(ask, on_wait)
        except HubBusyError as error:
            _wait(delay_s(error, num_vain), on_wait)
    return _answer(ask, on_wait)


def _wait(seconds: float, on_wait: Callable[[], None]) -> None:
    """Sleep, and call `on_wait` a few times a second meanwhile."""
    end = time.monotonic() + seconds
    while True:
        remaining_s = end - time.monotonic()
        if remaining_s <= 0:
            return
        on_wait()
        time.sleep(min(remaining_s, BEAT_S))


def _answer(ask: Callable[[], Result], on_wait: Callable[[], None]) -> Result:
    """The result of one try, in a thread of its own: reading from a silent server blocks."""
    # A daemon, so that an abandoned try does not hold up the exit.
    asking = CallThread(ask, daemon=True)
    asking.start()
    asking.join(BEAT_S)
    while asking.is_alive():
        on_wait()
        asking.join(BEAT_S)
    return asking.result()


def delay_s(error: HubBusyError, num_vain: int) -> float:
    """Seconds to wait after a failure: as long as the server asks, or growing steps.

    Args:
        error: The failure.
        num_vain: Failed tries in a row before this one.

    Raises:
        DownloadError: If the server asks for more than ten minutes.
    """
    if error.wait_s is None:
        return RETRY_DELAYS_S[min(num_vain, len(RETRY_DELAYS_S) - 1)]
    if error.wait_s > _MAX_WAIT_S:
        raise DownloadError(
            f"{error}: too many requests, try again in {error.wait_s} s",
            "Wait, or log in (hf auth login) for a higher limit.",
        ) from error
    return float(error.wait_s)
