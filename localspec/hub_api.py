"""What the hub says: metadata of files, lists of files. The only importer of huggingface_hub.

Works with huggingface_hub 0.23 to 2.x. Its classes of connection errors changed with its HTTP
library (requests, httpx, httpx2), so they are told apart by what they carry, not by class.
Imports are late: huggingface_hub takes longer to load than everything else here together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from localspec import __version__
from localspec.errors import DownloadError
from localspec.preset import HubFile, all_parts

Result = TypeVar("Result")

_TRANSIENT = {408, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file as the hub serves it now.

    commit: of the repository, 40 hex digits. etag: the sha256 of the content (64 hex
    digits), or for a small file its git blob id (40). url: where to get it.
    """

    file: HubFile
    commit: str
    etag: str
    size_bytes: int
    url: str


class HubBusyError(DownloadError):
    """The hub asks to come back later. retry_after: its header of that name, or None."""

    def __init__(self, message: str, retry_after: str | None) -> None:
        super().__init__(message, "Try again later; what was received is kept.")
        self.retry_after = retry_after


def cache_folder() -> Path:
    """The hub's cache, which other tools share."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def is_offline() -> bool:
    """Whether the user wants no requests to the hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def download_timeout_s() -> float:
    """Seconds that a connection may stay silent."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


def request_headers() -> dict[str, str]:
    """Headers of a request to the hub, with the user's token if there is one."""
    from huggingface_hub.utils import build_hf_headers

    headers: dict[str, str] = build_hf_headers(
        library_name="localspec", library_version=__version__
    )
    return {**headers, "Accept-Encoding": "identity"}


def remote_file(file: HubFile) -> RemoteFile:
    """Ask the hub about a file, and compare with what the file is pinned to.

    Raises HubBusyError where waiting can help, DownloadError if the file is not to be had or
    is another one than pinned.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    def url_at(revision: str) -> str:
        return str(
            hf_hub_url(file.repo, file.file, revision=revision, endpoint=constants.ENDPOINT)
        )

    found = _asking(
        file.repo, file, lambda: get_hf_file_metadata(url_at(file.revision or "main"))
    )
    commit, etag, size = found.commit_hash, found.etag, found.size
    if not commit or not etag or not size:
        raise DownloadError(
            f"{constants.ENDPOINT} answers without commit, hash or size of {file.name}",
            "Check HF_ENDPOINT: a mirror has to send the hub's headers.",
        )
    if not re.fullmatch("[0-9a-f]{40}", commit) or not re.fullmatch("[0-9A-Za-z._-]+", etag):
        raise DownloadError(f"{constants.ENDPOINT} sends a commit or hash that is none")
    if file.sha256 not in (None, etag) and len(etag) == 64:
        raise _other_file(file, f"sha256 {etag}", f"{file.sha256}")
    if file.size_bytes not in (None, size):
        raise _other_file(file, f"{size} bytes", f"{file.size_bytes}")
    # By commit: what stands behind a branch may change before the last byte is here.
    return RemoteFile(file=file, commit=commit, etag=etag, size_bytes=size, url=url_at(commit))


def list_files(repo: str, revision: str | None = None) -> list[HubFile]:
    """The GGUF files of a repository at a revision, with their sizes and hashes.

    Raises HubBusyError or DownloadError.
    """
    from huggingface_hub import HfApi, constants

    api = HfApi(endpoint=constants.ENDPOINT)
    info = _asking(
        repo, None, lambda: api.model_info(repo, revision=revision, files_metadata=True)
    )
    return [
        HubFile(
            repo=repo,
            file=entry.rfilename,
            revision=revision,
            size_bytes=entry.size,
            sha256=entry.lfs.sha256 if entry.lfs else None,
        )
        for entry in info.siblings or ()
        if entry.rfilename.endswith(".gguf")
    ]


def find_quantization(repo: str, quantization: str) -> list[HubFile]:
    """The parts of the repository's model in that quantization, named in the file's name.

    Raises DownloadError if there is none, or more than one.
    """
    files = {file.file: file for file in list_files(repo)}
    return [files[name] for name in choose_quantization(repo, quantization, list(files))]


def choose_quantization(repo: str, quantization: str, names: list[str]) -> list[str]:
    """Of the file names those of the one model in that quantization, all parts in order.

    A single file is preferred to the same model in parts. Raises DownloadError if there is
    none, or more than one.
    """
    pattern = re.compile(
        rf"(^|[-._/]){re.escape(quantization)}(-\d{{5}}-of-\d{{5}})?\.gguf$", re.IGNORECASE
    )
    found = sorted({all_parts(name)[0] for name in names if pattern.search(name)})
    found = [name for name in found if "mmproj" not in name]
    whole = [name for name in found if len(all_parts(name)) == 1]
    chosen = whole or found
    missing = [part for name in chosen for part in all_parts(name) if part not in names]
    if len(chosen) != 1 or missing:
        what = ", ".join(missing or chosen or sorted(names)) or "no GGUF file"
        raise DownloadError(
            f"{repo} has {len(chosen)} models in {quantization!r}; it has: {what}",
            f"Name one file: hf:{repo}/NAME.gguf",
        )
    return all_parts(chosen[0])


def _other_file(file: HubFile, served: str, pinned: str) -> DownloadError:
    return DownloadError(
        f"the hub has another {file.name} than pinned: {served} instead of {pinned}",
        f"{file.repo} was changed, or the pin is wrong; nothing was downloaded.",
    )


def _asking(repo: str, file: HubFile | None, ask: Callable[[], Result]) -> Result:
    """The result of `ask`, with what huggingface_hub raises told as DownloadError."""
    try:
        return ask()
    except Exception as error:  # its connection errors have no common base across versions
        raise _told(repo, file, error) from error


def _told(repo: str, file: HubFile | None, error: Exception) -> DownloadError:
    from huggingface_hub import constants
    from huggingface_hub.utils import (
        EntryNotFoundError,
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(error, OfflineModeIsEnabled):
        return DownloadError("offline mode is on (HF_HUB_OFFLINE)", "Unset it to download.")
    if isinstance(error, GatedRepoError):
        return DownloadError(
            f"{repo} is gated: its owner wants you to accept terms first",
            f"Accept them at {constants.ENDPOINT}/{repo}, then run: hf auth login",
        )
    if isinstance(error, RevisionNotFoundError):
        return DownloadError(
            f"{repo} has no revision {file.revision if file else 'main'!r}", "Check the preset."
        )
    if isinstance(error, EntryNotFoundError) and status == 404:
        return DownloadError(
            f"{repo} has no file {file.file if file else ''} at that revision",
            f"Look at {constants.ENDPOINT}/{repo}/tree/main",
        )
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403, 404):
        return DownloadError(
            f"{repo} does not exist, or is private ({constants.ENDPOINT} says {status})",
            "Check the name. For a private repository set HF_TOKEN or run: hf auth login",
        )
    if status in _TRANSIENT:
        return HubBusyError(
            f"{constants.ENDPOINT} answers {status}", response.headers.get("Retry-After")
        )
    return DownloadError(
        f"{constants.ENDPOINT} cannot be asked about {repo}: {type(error).__name__}: {error}",
        "Check the connection, the proxy and HF_ENDPOINT.",
    )
