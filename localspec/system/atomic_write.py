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

UNFINISHED = ".new"  # ends the names of files that are being written, or were left by a kill
_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[\d¹²³]) *(\..*)?",
    re.IGNORECASE,
)


def names_device(name: str) -> bool:
    """Whether Windows takes a file of that name, with any ending, for a device."""
    return _DEVICES.fullmatch(name) is not None


def write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace the file by the data. A reader sees all of it or the old file.

    Raises OSError, also for a device, a pipe or a folder.

    Args:
        path: The file.
        data: Its new content.
        durable: Whether the file is the old or the new one also after a power cut. That waits
            for the disk, so leave it off for content that can be learned again.
    """
    write_parts(path, [data], durable=durable)


def write_parts(path: Path, parts: Iterable[bytes | memoryview], *, durable: bool) -> None:
    """`write_whole` for parts that are made while it writes. Raises what `parts` raises."""
    if path.exists() and not path.is_file():  # such as /dev/full
        raise FileExistsError(errno.EEXIST, "not a regular file; name another", str(path))
    if path.is_symlink():  # the link stays: settings may be links into another folder
        path = Path(os.path.realpath(path))
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        only_user = 0o600
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, only_user)
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it, without waiting for the other end of a pipe.

    Raises OSError, also for a pipe, a device or a folder.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_regular(path: Path) -> bytes:
    """The bytes of a file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def read_regular_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file, with "\\n" as its newlines. Raises OSError as `open_regular` does.

    Raises UnicodeDecodeError for bytes that are no text of the encoding.
    """
    with TextIOWrapper(open_regular(path), encoding=encoding) as file:
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has no such flag


def make_private_folder(folder: Path) -> None:
    """Create the folder, and the missing folders above it, for this user alone.

    The umask does not count: without one, other users could replace files there. An existing
    folder keeps its mode. On Windows an older Python takes the rights of the folder above.

    Raises OSError.
    """
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for parent_first in reversed(missing):
        parent_first.mkdir(mode=0o700, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's new names to the disk, if the system can do that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
