"""Stores of model files: the hub's cache, a folder, other programs' caches; and their disks.

The hub's cache has the layout of huggingface_hub, which llama.cpp shares:

    models--OWNER--NAME/blobs/ETAG                content of a file
    models--OWNER--NAME/snapshots/COMMIT/FILE     name of a file: a link to its blob
    models--OWNER--NAME/refs/REVISION             commit of a branch
    .locks/models--OWNER--NAME/ETAG.lock

Beside a blob, ETAG.localspec-part has the bytes received so far, ETAG.adopted.localspec-part is
another program's file that is being checked, and the empty file ETAG.localspec-own marks a blob
that localspec put there and so may remove.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from localspec.errors import DownloadError
from localspec.hub.api import COMMIT, RemoteFile, cache_folder
from localspec.hub.hub_file import SHA256_DIGITS, HubFile
from localspec.system.atomic_write import read_regular_text

PART_SUFFIX = ".localspec-part"
_SHA256 = re.compile(f"[0-9a-f]{{{SHA256_DIGITS}}}")
_OWN_SUFFIX = ".localspec-own"


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The paths for one file's content in a store."""

    content: Path
    """The path of the whole content."""

    lock: Path
    """The lock that is held while the content is written."""

    @property
    def part(self) -> Path:
        """The path of the bytes received so far."""
        return self.content.with_name(self.content.name + PART_SUFFIX)

    @property
    def adopted(self) -> Path:
        """The path of another program's file while it is checked."""
        return self.content.with_name(f"{self.content.name}.adopted{PART_SUFFIX}")


class Folder:
    """A plain folder, in which every file has its own name."""

    is_checked = False
    """Whether all content in the store was verified before it got its name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, file: HubFile) -> Path | None:
        """The path of the file under its own name, or None if it is not there."""
        path = self.root / file.name
        if os.path.exists(path):
            return path
        return None

    def paths(self, remote: RemoteFile) -> StorePaths:
        """The paths for the file's content."""
        path = self.root / remote.file.name
        return StorePaths(path, path.with_name(f".{path.name}.lock"))

    def publish(self, remote: RemoteFile, *, fetched: bool) -> Path:
        """Give the file's whole content its name, and return the path under that name.

        In a folder the content has its name already, so there is nothing to do.

        Args:
            remote: The file.
            fetched: Whether localspec put the content there; False if it was there before.
        """
        return self.root / remote.file.name


class HubCache:
    """The hub's cache, which other tools share; it has the methods of `Folder`.

    Raises OptionError if the environment has a value that huggingface_hub refuses.
    """

    is_checked = True

    def __init__(self) -> None:
        self.root = cache_folder()

    def find(self, file: HubFile) -> Path | None:
        """The file's path under its commit, or under another with the pinned sha256.

        None if there is no such file, or only one whose content is not the pinned one.
        """
        snapshots = self._repo_folder(file) / "snapshots"
        commit = self._commit(file)
        if commit:
            path = snapshots / commit / file.file
            # The content's hash, where links are made. `resolve` raises RuntimeError for a link
            # to itself before Python 3.13.
            blob_name = Path(os.path.realpath(path)).name
            is_hash = _SHA256.fullmatch(blob_name) is not None
            is_pinned = not is_hash or file.sha256 in (None, blob_name)
            if is_pinned and _is_present(path, file.size_bytes):
                return path
        if not file.sha256:
            return None
        # The same content may have been fetched at another commit.
        for path in snapshots.glob(f"*/{file.file}"):
            blob_name = path.resolve().name
            if blob_name == file.sha256 and _is_present(path, file.size_bytes):
                return path
        return None

    def file_names(self, repo: str) -> list[str]:
        """The names of the main branch's GGUF files that are in the cache."""
        any_file = HubFile(repo=repo, file="any.gguf")
        commit = self._commit(any_file)
        if commit is None:
            return []
        snapshot = self._repo_folder(any_file) / "snapshots" / commit
        names = []
        for path in sorted(snapshot.rglob("*.gguf")):
            if path.is_file():
                names.append(path.relative_to(snapshot).as_posix())
        return names

    def num_bytes(self) -> int:
        """The size of all files in the cache, including those of other tools."""
        total = 0
        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
        return total

    def unfinished(self) -> dict[Path, int]:
        """The files of unfinished downloads, localspec's or huggingface_hub's, and their sizes.

        A size is in bytes.
        """
        sizes = {}
        for path in sorted(self.root.glob("models--*/blobs/*")):
            if path.name.endswith((PART_SUFFIX, ".incomplete")):
                sizes[path] = path.stat().st_size
        return sizes

    def paths(self, remote: RemoteFile) -> StorePaths:
        """The paths for the file's content."""
        folder = self._repo_folder(remote.file)
        lock_name = f"{remote.etag}.lock"
        return StorePaths(
            folder / "blobs" / remote.etag,
            self.root / ".locks" / folder.name / lock_name,
        )

    def publish(self, remote: RemoteFile, *, fetched: bool) -> Path:
        """Link a name to the file's whole content, and return the path under that name.

        Notes the commit of the file's branch, and that localspec owns what it has fetched.

        Args:
            remote: The file.
            fetched: Whether localspec put the content there; False if it was there before.
        """
        folder = self._repo_folder(remote.file)
        content = self.paths(remote).content
        name = folder / "snapshots" / remote.commit / remote.file.file
        name.parent.mkdir(parents=True, exist_ok=True)
        # Made under another name, which then replaces an old link in one step.
        link = name.with_name(f"{name.name}.{os.getpid()}.link")
        try:
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(content, name.parent))
        except OSError:
            # No symbolic links, as on many Windows machines: move the content to the name.
            os.replace(content, name)
            content = name
        else:
            os.replace(link, name)
        if fetched:
            _ownership_mark(content).touch()
        revision = remote.file.revision or "main"
        if revision != remote.commit:
            ref = folder / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(remote.commit, encoding="ascii")
        return name

    def owned(self, file: HubFile) -> Path | None:
        """The path of the file, or of the bytes received so far, if localspec put it there.

        None if there is neither, or if another program put the file there.
        """
        name = self.find(file)
        if name is not None:
            content = name.resolve()
            if _ownership_mark(content).exists():
                return name
            return None
        part = self._repo_folder(file) / "blobs" / f"{file.sha256}{PART_SUFFIX}"
        if part.is_file():
            return part
        return None

    def remove(self, file: HubFile) -> int:
        """Delete the file that `owned` gives, and return the number of freed bytes.

        If the content has another name, too, only this name is deleted, which frees 0 bytes.
        """
        name = self.owned(file)
        if name is None:
            return 0
        content = name.resolve()
        size = content.stat().st_size
        name.unlink()
        snapshots = self._repo_folder(file) / "snapshots"
        for other_name in snapshots.rglob("*.gguf"):
            if other_name.resolve() == content:
                return 0
        content.unlink(missing_ok=True)
        _ownership_mark(content).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files are in the folder
            name.parent.rmdir()
        return size

    def _repo_folder(self, file: HubFile) -> Path:
        """The folder of the file's repository in the cache."""
        return self.root / f"models--{file.repo.replace('/', '--')}"

    def _commit(self, file: HubFile) -> str | None:
        """The commit of the file's revision; None if the cache does not know it."""
        revision = file.revision or "main"
        if COMMIT.fullmatch(revision):
            return revision
        ref = self._repo_folder(file) / "refs" / revision
        try:
            commit = read_regular_text(ref, "ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        if COMMIT.fullmatch(commit):
            return commit
        return None


Store = Folder | HubCache


def free_bytes(folder: Path) -> int:
    """The free space on the disk of a folder, which need not exist yet."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_disk(num_bytes: int, folder: Path) -> None:
    """Raise DownloadError if the folder's disk has no room for this number of bytes."""
    free = free_bytes(folder)
    if num_bytes > free:
        raise DownloadError(
            f"{num_bytes} bytes have to be downloaded, but only {free} are free at {folder}",
            "Free some disk space, or choose another place: local_dir=DIR, or "
            "HF_HUB_CACHE=DIR.",
        )


def disk_error(error: OSError, path: Path) -> DownloadError:
    """The DownloadError for a disk that is full or failed.

    Args:
        error: The error of the operating system.
        path: The file that was read or written.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk of {path.parent} is full",
            "Free some disk space and run the command again; received bytes are kept.",
        )
    return DownloadError(
        f"{path} cannot be read or written: {error.strerror or error}",
        "Choose another place: local_dir=DIR, or HF_HUB_CACHE=DIR for the cache.",
    )


def _is_present(path: Path, size_bytes: int | None) -> bool:
    """Whether there is a file of that size, or of any size if `size_bytes` is None."""
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return size_bytes in (None, size)


def _ownership_mark(content: Path) -> Path:
    """The path of the file whose presence says that localspec put the content there."""
    return content.with_name(content.name + _OWN_SUFFIX)


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file of another program, which may be the same as a file of the hub."""

    path: Path
    owner: str
    """The name of the program."""


def find_elsewhere(remote: RemoteFile) -> ForeignFile | None:
    """A file of another program that may be the same as a file of the hub; None if none is.

    It has the right size, and is stored under the right name or sha256. Its content is not read
    here and still has to be checked, so there is none for a file of the hub without a sha256.
    """
    if len(remote.checksum) != SHA256_DIGITS:
        return None
    for candidate in _candidates(remote):
        if _is_present(candidate.path, remote.size_bytes):
            return candidate
    return None


def model_folders() -> dict[str, list[Path]]:
    """The folders in which other programs keep their models, by the program's name."""
    home = Path(os.path.expanduser("~"))  # unlike `Path.home`, no error without a home folder
    ollama = [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    ollama_setting = os.environ.get("OLLAMA_MODELS")
    if ollama_setting:
        ollama.insert(0, Path(ollama_setting))
    llama_cpp = user_cache_path("llama.cpp", appauthor=False, opinion=False)
    llama_cpp_setting = os.environ.get("LLAMA_CACHE")
    if llama_cpp_setting:
        llama_cpp = Path(llama_cpp_setting)
    return {
        "LM Studio": [home / ".lmstudio/models", home / ".cache/lm-studio/models"],
        "Ollama": ollama,
        "llama.cpp": [llama_cpp],
    }


def _candidates(remote: RemoteFile) -> Iterator[ForeignFile]:
    """The files in which other programs would store the file; they need not exist."""
    file = remote.file
    sha256 = remote.checksum
    folders = model_folders()
    for folder in folders["LM Studio"]:
        yield ForeignFile(folder / file.repo / file.name, "LM Studio")
    for folder in folders["Ollama"]:
        yield ForeignFile(folder / "blobs" / f"sha256-{sha256}", "Ollama")
    # llama.cpp's former cache; now it uses the hub's layout, perhaps in another folder.
    flat = f"{file.repo.replace('/', '_')}_{file.file.replace('/', '_')}"
    for folder in folders["llama.cpp"]:
        yield ForeignFile(folder / flat, "llama.cpp")
        repo = folder / f"models--{file.repo.replace('/', '--')}"
        yield ForeignFile(repo / "blobs" / sha256, "llama.cpp")
