"""The files of a hub repository, and the models that they make up, by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from localspec.errors import DownloadError, OptionError
from localspec.system.atomic_write import names_device

SHA256_DIGITS = 64  # hexadecimal
# Names that a hub allows, and that no file system misreads: no "..", no drive, no backslash.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
# A repository's owner, or its own name, as huggingface_hub takes it.
_REPO_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{,94}[A-Za-z0-9_])?"
_REPO = re.compile(f"(?!.*(?:--|[.][.]|[.]git$)){_REPO_NAME}/{_REPO_NAME}")
# A folder's or file's name in a path. Windows drops dots and spaces at its end.
_PATH_PART = re.compile(r"[A-Za-z0-9._+=@,() -]*[A-Za-z0-9_+=@,()-]")
# The largest models have some two hundred parts. Each part is a file to look for.
_MAX_PARTS = 1024
_MAX_LISTED = 10  # files that an error names
# Words by which llama.cpp tells heads and projectors from models, in the names of their files.
# The first two also stand before a quantization, as in owner/repo:mtp-Q8_0.
HEAD_SIGN = "mtp-"
PROJECTOR_SIGN = "mmproj-"
_HEAD_SIGNS = (HEAD_SIGN, "eagle3", "EAGLE3", "dflash", "DFlash", "dspark", "DSpark")
_PART_NUMBER = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")  # part 3 of 5 has 00003 and 00005


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a hub repository; None means that a value is not known.

    Raises OptionError for an invalid value, such as a name that would lead out of its folder.
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
        path_parts = self.file.split("/")
        is_safe = all(map(_PATH_PART.fullmatch, path_parts))
        is_device = any(map(names_device, path_parts))  # such as CON, on Windows
        if not is_safe or is_device or not self.file.endswith(".gguf"):
            raise OptionError(
                f"{self.file!r} is not the name of a GGUF file",
                "Write name.gguf.",
            )
        match = _PART_NUMBER.search(self.file)
        if match is not None and not _is_possible_part(match):
            raise OptionError(
                f"{self.file!r} is part {int(match[1])} of {int(match[2])}",
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
        """The size of all files together; None if the size of one file is not known."""
        total = 0
        for file in self.files:
            if file.size_bytes is None:
                return None
            total += file.size_bytes
        return total


def is_repo(text: str) -> bool:
    """Whether the text can be the name of a hub repository, owner/name."""
    return _REPO.fullmatch(text) is not None


def all_parts(file: str) -> list[str]:
    """The names of all parts of a split model, of which `file` is one; else only `file`."""
    match = _PART_NUMBER.search(file)
    if match is None or not _is_possible_part(match):
        return [file]
    stem = file[: match.start()]
    count = int(match[2])
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def choose_quantization(repo: str, quantization: str, names: list[str]) -> list[str]:
    """The files of the one model in that quantization, all parts in order.

    A single file is preferred to the same model in parts.

    Args:
        repo: The repository, for errors.
        quantization: The quantization, such as "Q4_K_M". "mtp-" before it asks for the head of
            the model, of any kind, and "mmproj-" for its projector.
        names: The names of the repository's files.

    Raises:
        DownloadError: There is no such model, or more than one, or a part is missing.
    """
    wanted_sign = ""
    for sign in (HEAD_SIGN, PROJECTOR_SIGN):
        if quantization.startswith(sign):
            wanted_sign = sign
    ending = re.escape(quantization.removeprefix(wanted_sign))
    pattern = re.compile(rf"(^|[-._/]){ending}(-\d{{5}}-of-\d{{5}})?\.gguf$", re.IGNORECASE)
    first_parts = set()
    for name in names:
        first_part = all_parts(name)[0]
        if pattern.search(name) and _sign(first_part) == wanted_sign:
            first_parts.add(first_part)
    models = sorted(first_parts)
    single_files = [name for name in models if len(all_parts(name)) == 1]
    candidates = single_files or models
    if len(candidates) != 1:
        listed = _listed(candidates or sorted(names)) or "no GGUF file"
        raise DownloadError(
            f"{repo} has {len(candidates)} models in {quantization!r}; it has: {listed}",
            f"Name one file: hf:{repo}/NAME.gguf",
        )
    parts = all_parts(candidates[0])
    missing = sorted(set(parts).difference(names))
    if missing:
        raise DownloadError(
            f"{repo} lacks {len(missing)} of {len(parts)} parts of its model in "
            f"{quantization!r}: {_listed(missing)}",
            f"Name one file: hf:{repo}/NAME.gguf",
        )
    return parts


def is_of_model(file: str) -> bool:
    """Whether a file's name is that of a model, not of a head, a projector or an imatrix."""
    return _sign(file) == ""


def _sign(file: str) -> str | None:
    """The kind of a file, by its name.

    Returns:
        HEAD_SIGN for a head, PROJECTOR_SIGN for a projector, "" for a model, and None for an
        imatrix, the statistics that a quantization was made with.
    """
    name = PurePosixPath(file).name
    if PROJECTOR_SIGN.rstrip("-") in name:
        return PROJECTOR_SIGN
    if "imatrix" in name:
        return None
    if any(sign in name for sign in _HEAD_SIGNS):
        return HEAD_SIGN
    return ""


def _listed(files: list[str]) -> str:
    """The first names, and the number of the others, in words; "" without files."""
    listed = ", ".join(files[:_MAX_LISTED])
    num_others = len(files) - _MAX_LISTED
    if num_others > 0:
        return f"{listed} and {num_others} more"
    return listed


def _is_possible_part(match: re.Match[str]) -> bool:
    """Whether the numbers in a match of `_PART_NUMBER` can be right: 00000-of-00000 cannot."""
    number = int(match[1])
    count = int(match[2])
    return 1 <= number <= count <= _MAX_PARTS
