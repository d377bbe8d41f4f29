"""Files that are replaced as a whole, or not at all, and read without waiting for a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

# The ending of files that are being written, or were left when the process was killed.
UNFINISHED = ".new"
# Names of devices on Windows, with any ending.
_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[\d¹²³]) *(\..*)?",
    re.IGNORECASE,
)


def names_device(name: str) -> bool:
    """Whether Windows takes a file of that name for a device, such as "nul.txt"."""
    return _DEVICES.fullmatch(name) is not None


def write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace a file's content. A reader sees either the old content or all of the new.

    Raises OSError, also for a device, a pipe or a folder.

    Args:
        path: The file, which need not exist.
        data: Its new content.
        durable: Whether the file is the old or the new one even after a power cut. That waits
            for the disk, so leave it off for content that can be learned again.
    """
    write_parts(path, [data], durable=durable)


def write_parts(path: Path, parts: Iterable[bytes | memoryview], *, durable: bool) -> None:
    """Replace a file's content like `write_whole`, by parts that may be made while it writes.

    Raises OSError as `write_whole` does, and what the iteration of `parts` raises. The file is
    the old one then, unless only `sync_folder` failed.
    """
    if path.exists() and not path.is_file():  # such as /dev/full
        raise FileExistsError(errno.EEXIST, "not a regular file; name another", str(path))
    if path.is_symlink():  # the link stays: settings may be links into another folder
        path = Path(os.path.realpath(path))
    suffix = secrets.token_hex(4)
    new_path = path.with_name(f".{path.name}.{suffix}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    private_mode = 0o600  # for this user alone
    try:
        descriptor = os.open(new_path, flags, private_mode)
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new_path, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new_path.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it, without waiting for the other end of a pipe.

    Raises OSError, also for a pipe, a device or a folder.
    """
    file = open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115  the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_regular(path: Path) -> bytes:
    """The bytes of a file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def read_regular_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file, with "\\n" for each of its newlines.

    Raises OSError as `open_regular` does, and UnicodeDecodeError for bytes that are no text of
    the encoding.
    """
    with TextIOWrapper(open_regular(path), encoding=encoding) as file:
        return file.read()


def _open_nonblocking(path: str, flags: int) -> int:
    """An opener for `open` that does not wait. Returns the file's descriptor."""
    nonblocking = getattr(os, "O_NONBLOCK", 0)  # Windows has no such flag
    return os.open(path, flags | nonblocking)


def make_private_folder(folder: Path) -> None:
    """Create a folder, and the missing folders above it, for this user alone.

    Other users get no rights, whatever the umask: they could replace files there. An existing
    folder keeps its mode. On Windows an older Python gives a folder the rights of the folder
    above it.

    Raises OSError.
    """
    missing = []  # the folder first, then the ones above it
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for missing_folder in reversed(missing):
        missing_folder.mkdir(mode=0o700, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Write the names of a folder's files to the disk, and wait for it; not on Windows.

    Then a new or replaced file keeps its name even after a power cut. Raises OSError.
    """
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
