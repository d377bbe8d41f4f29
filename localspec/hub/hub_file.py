"""Files and models of hub repositories; a model is one file or several parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from localspec.errors import DownloadError, OptionError
from localspec.system.atomic_write import names_device

# Names that a hub allows, and that no file system misreads: no "..", no drive, no backslash.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_REPO = re.compile(f"{_NAME}/{_NAME}")
_FILE_PART = re.compile(r"[A-Za-z0-9._+=@,() -]*[A-Za-z0-9_+=@,()-]")  # Windows cuts the rest
# The largest models have some two hundred parts. Each part is a file to look for.
_MAX_PARTS = 1024
_MAX_NAMED = 10  # files that an error names
# Words in the names of files that belong to a model, as llama.cpp knows them.
HEAD_SIGN = "mtp-"  # of a head, before a quantization and in names of files
_HEAD_SIGNS = (HEAD_SIGN, "eagle3", "EAGLE3", "dflash", "DFlash", "dspark", "DSpark")
PROJECTOR_SIGN = "mmproj-"  # of a projector, in the same places
_PART_NUMBER = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a hub repository; None means that a value is not known.

    Raises OptionError for an invalid name, or one that would lead out of its folder.
    """

    repo: str
    file: str
    revision: str | None = None
    """A commit, or a branch or tag; None is main."""

    size_bytes: int | None = None
    sha256: str | None = None
    """The content's hash, in hex."""

    def __post_init__(self) -> None:
        if not is_repo(self.repo):
            raise OptionError(f"{self.repo!r} is not a repository", "Write owner/name.")
        parts = self.file.split("/")
        is_name = all(map(_FILE_PART.fullmatch, parts)) and not any(map(names_device, parts))
        if not is_name or not self.file.endswith(".gguf"):
            raise OptionError(
                f"{self.file!r} is not the name of a GGUF file",
                "Write name.gguf.",
            )
        part = _PART_NUMBER.search(self.file)
        if part is not None and not _is_part(part):
            raise OptionError(
                f"{self.file!r} is part {int(part[1])} of {int(part[2])}",
                f"Parts are counted from 00001 up to their number, at most {_MAX_PARTS:05}.",
            )
        if self.revision is not None and not re.fullmatch(_NAME, self.revision):
            raise OptionError(f"{self.revision!r} is not a revision", "Give a commit or tag.")
        if self.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise OptionError(f"{self.sha256!r} is not a sha256", "Give 64 hex digits.")
        if self.size_bytes is not None and self.size_bytes < 1:
            raise OptionError(f"the size is {self.size_bytes} bytes", "Give the file's size.")

    @property
    def name(self) -> str:
        """The file's own name, without its folder in the repository."""
        return PurePosixPath(self.file).name


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model on the hub: one file, or all parts of a split one in their order.

    Raises OptionError without a file.
    """

    files: tuple[HubFile, ...]
    quantization: str = ""
    license: str = ""

    def __post_init__(self) -> None:
        if not self.files:
            raise OptionError("a model on the hub has no files", "Name one, or all its parts.")

    @property
    def size_bytes(self) -> int | None:
        """The size of all files together; None if one of them is not known."""
        sizes = [file.size_bytes for file in self.files]
        if None in sizes:
            return None
        return sum(size or 0 for size in sizes)


def is_repo(text: str) -> bool:
    """Whether the text can be the name of a hub repository, owner/name."""
    return _REPO.fullmatch(text) is not None


def all_parts(file: str) -> list[str]:
    """The names of all parts if `file` is a part of a split model, or else only its own."""
    found = _PART_NUMBER.search(file)
    if found is None or not _is_part(found):
        return [file]
    stem = file[: found.start()]
    count = int(found[2])
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def choose_quantization(repo: str, quantization: str, names: list[str]) -> list[str]:
    """The files of the one model in that quantization, all parts in order.

    A single file is preferred to the same model in parts. "mtp-" before the quantization
    stands for the head of the model, whatever its kind, "mmproj-" for its projector. Raises
    DownloadError if there is none, or more than one.
    """
    sign = ""
    for known in (HEAD_SIGN, PROJECTOR_SIGN):
        if quantization.startswith(known):
            sign = known
    bare = re.escape(quantization.removeprefix(sign))
    pattern = re.compile(rf"(^|[-._/]){bare}(-\d{{5}}-of-\d{{5}})?\.gguf$", re.IGNORECASE)
    first_parts = set()
    for name in names:
        first = all_parts(name)[0]
        if pattern.search(name) and _sign_of(first) == sign:
            first_parts.add(first)
    found = sorted(first_parts)
    whole = [name for name in found if len(all_parts(name)) == 1]
    chosen = whole or found
    if len(chosen) != 1:
        raise DownloadError(
            f"{repo} has {len(chosen)} models in {quantization!r}; it has: "
            f"{_named(chosen or sorted(names)) or 'no GGUF file'}",
            f"Name one file: hf:{repo}/NAME.gguf",
        )
    parts = all_parts(chosen[0])
    missing = sorted(set(parts).difference(names))
    if missing:
        raise DownloadError(
            f"{repo} lacks {len(missing)} of {len(parts)} parts of its model in "
            f"{quantization!r}: {_named(missing)}",
            f"Name one file: hf:{repo}/NAME.gguf",
        )
    return parts


def is_of_model(file: str) -> bool:
    """Whether a file's name is that of a model, and not of a head or a projector."""
    return _sign_of(file) == ""


def _sign_of(file: str) -> str | None:
    """The sign of a file that belongs to a model, "" for a model; None for another file."""
    name = PurePosixPath(file).name
    if PROJECTOR_SIGN.rstrip("-") in name:
        return PROJECTOR_SIGN
    if "imatrix" in name:
        return None
    if any(sign in name for sign in _HEAD_SIGNS):
        return HEAD_SIGN
    return ""


def _named(files: list[str]) -> str:
    """The first names, and the number of the others, in words."""
    named = ", ".join(files[:_MAX_NAMED])
    num_others = len(files) - _MAX_NAMED
    if num_others > 0:
        return f"{named} and {num_others} more"
    return named


def _is_part(found: re.Match[str]) -> bool:
    """Whether the numbers in a name are possible: 00000-of-00000 is not."""
    return 1 <= int(found[1]) <= int(found[2]) <= _MAX_PARTS
