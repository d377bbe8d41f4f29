"""Stores of model files: the hub's cache, a folder, other programs' caches; and their disks.

The hub's cache has the layout of huggingface_hub, which llama.cpp shares:

    models--OWNER--NAME/blobs/ETAG                          content
    models--OWNER--NAME/snapshots/COMMIT/FILE  → the blob   names
    models--OWNER--NAME/refs/REVISION                       commit of a branch
    .locks/models--OWNER--NAME/ETAG.lock

In the folder of a blob, ETAG.localspec-part has the bytes received so far,
ETAG.adopted.localspec-part is another program's file that is being checked, and
ETAG.localspec-own marks a blob that localspec put there and so may remove.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from localspec.errors import DownloadError
from localspec.hub.api import COMMIT, RemoteFile, cache_folder
from localspec.hub.hub_file import HubFile
from localspec.system.atomic_write import read_regular_text

PART_SUFFIX = ".localspec-part"
_OWN_SUFFIX = ".localspec-own"


@dataclass(frozen=True, slots=True)
class Slot:
    """Paths for one file in a store."""

    content: Path
    """The path of the whole content."""

    lock: Path
    """The lock of content and received bytes."""

    @property
    def part(self) -> Path:
        """The path of the received bytes."""
        return self.content.with_name(self.content.name + PART_SUFFIX)

    @property
    def adopted(self) -> Path:
        """The path of another program's file while it is checked."""
        return self.content.with_name(f"{self.content.name}.adopted{PART_SUFFIX}")


class Folder:
    """A plain folder with every file under its own name."""

    is_checked = False
    """Whether only verified content gets a name there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, file: HubFile) -> Path | None:
        """The path of the file under its own name, or None if it is not there."""
        path = self.root / file.name
        if os.path.exists(path):
            return path
        return None

    def slot(self, remote: RemoteFile) -> Slot:
        """The paths for the file's content."""
        path = self.root / remote.file.name
        return Slot(path, path.with_name(f".{path.name}.lock"))

    def publish(self, remote: RemoteFile, *, fetched: bool) -> Path:
        """Give the whole content its name; returns the path under that name.

        In a folder the content arrives under that name (`slot`), so nothing is left to do.

        Args:
            remote: The file.
            fetched: Whether localspec has put it there; False if it was there before.
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
        snapshots = self._repo(file) / "snapshots"
        commit = self._commit(file)
        if commit:
            path = snapshots / commit / file.file
            if _is_present(path, file.size_bytes):
                return path
        if not file.sha256:
            return None
        # The same content may have been fetched at another commit.
        for other in snapshots.glob(f"*/{file.file}"):
            if other.resolve().name == file.sha256 and _is_present(other, file.size_bytes):
                return other
        return None

    def file_names(self, repo: str) -> list[str]:
        """The GGUF files of the repository's main branch that are in the cache."""
        probe = HubFile(repo=repo, file="any.gguf")
        snapshot = self._repo(probe) / "snapshots" / (self._commit(probe) or "none")
        names = []
        for path in sorted(snapshot.rglob("*.gguf")):
            if path.is_file():
                names.append(path.relative_to(snapshot).as_posix())
        return names

    def num_bytes(self) -> int:
        """Bytes of all files in the cache, including those of other tools."""
        total = 0
        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
        return total

    def unfinished(self) -> dict[Path, int]:
        """Files of unfinished downloads, ours or huggingface_hub's, and their bytes."""
        sizes = {}
        for path in sorted(self.root.glob("models--*/blobs/*")):
            if path.name.endswith((PART_SUFFIX, ".incomplete")):
                sizes[path] = path.stat().st_size
        return sizes

    def slot(self, remote: RemoteFile) -> Slot:
        repo = self._repo(remote.file)
        return Slot(
            repo / "blobs" / remote.etag,
            self.root / ".locks" / repo.name / f"{remote.etag}.lock",
        )

    def publish(self, remote: RemoteFile, *, fetched: bool) -> Path:
        repo = self._repo(remote.file)
        file = remote.file
        content = self.slot(remote).content
        named = repo / "snapshots" / remote.commit / file.file
        named.parent.mkdir(parents=True, exist_ok=True)
        link = named.with_name(f"{named.name}.{os.getpid()}.link")
        try:
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(content, named.parent))
        except OSError:
            # No symbolic links, as on many Windows machines: move the content to the name.
            os.replace(content, named)
            content = named
        else:
            os.replace(link, named)
        if fetched:
            _claim(content).touch()
        revision = file.revision or "main"
        if revision != remote.commit:
            ref = repo / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(remote.commit, encoding="ascii")
        return named

    def owned(self, file: HubFile) -> Path | None:
        """The file, or its received bytes, if localspec put it here."""
        named = self.find(file)
        if named is not None:
            if _claim(named.resolve()).exists():
                return named
            return None
        part = self._repo(file) / "blobs" / f"{file.sha256}{PART_SUFFIX}"
        if part.is_file():
            return part
        return None

    def remove(self, file: HubFile) -> int:
        """Delete the file that `owned` gives; returns the freed bytes.

        Content that has another name, too, stays.
        """
        path = self.owned(file)
        if path is None:
            return 0
        content = path.resolve()
        size = content.stat().st_size
        path.unlink()
        snapshots = self._repo(file) / "snapshots"
        if any(other.resolve() == content for other in snapshots.rglob("*.gguf")):
            return 0
        content.unlink(missing_ok=True)
        _claim(content).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files are in the folder
            path.parent.rmdir()
        return size

    def _repo(self, file: HubFile) -> Path:
        return self.root / f"models--{file.repo.replace('/', '--')}"

    def _commit(self, file: HubFile) -> str | None:
        revision = file.revision or "main"
        if COMMIT.fullmatch(revision):
            return revision
        with contextlib.suppress(OSError, UnicodeDecodeError):
            commit = read_regular_text(self._repo(file) / "refs" / revision, "ascii").strip()
            if COMMIT.fullmatch(commit):
                return commit
            return None
        return None


Store = Folder | HubCache


def free_bytes(folder: Path) -> int:
    """Free space on the disk where the folder is, or will be."""
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
    """The error for a disk that failed."""
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
    """Whether there is a file, and it has that size unless the size is unknown."""
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return size_bytes in (None, size)


def _claim(content: Path) -> Path:
    """The file that marks content as put there by localspec."""
    return content.with_name(content.name + _OWN_SUFFIX)


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file that may have the wanted content."""

    path: Path
    owner: str
    """The program that stores it."""


def find_elsewhere(remote: RemoteFile) -> ForeignFile | None:
    """A file of another program with the right name (for Ollama, the right hash) and size.

    Its content is not read, and still has to be checked. None for a file without a sha256.
    """
    if len(remote.checksum) != 64:
        return None
    for candidate in _candidates(remote):
        if _is_present(candidate.path, remote.size_bytes):
            return candidate
    return None


def model_folders() -> dict[str, list[Path]]:
    """Folders in which other programs keep their models, by program."""
    home = Path.home()
    chosen = os.environ.get("OLLAMA_MODELS")
    llama_cpp = user_cache_path("llama.cpp", appauthor=False, opinion=False)
    ollama = [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    if chosen:
        ollama.insert(0, Path(chosen))
    return {
        "LM Studio": [home / ".lmstudio/models", home / ".cache/lm-studio/models"],
        "Ollama": ollama,
        "llama.cpp": [Path(os.environ.get("LLAMA_CACHE") or llama_cpp)],
    }


def _candidates(remote: RemoteFile) -> Iterator[ForeignFile]:
    """The places where other programs would store the file."""
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
