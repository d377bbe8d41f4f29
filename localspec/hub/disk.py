"""The disk that downloads are written to: its free space, and its errors."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from localspec.errors import DownloadError


def free_bytes(folder: Path) -> int:
    """Free space on the disk where the folder is, or will be."""
    return shutil.disk_usage(_existing(folder)).free


def check_disk(num_bytes: int, folder: Path) -> None:
    """Raise DownloadError if the folder's disk has no room for so many bytes."""
    free = free_bytes(folder)
    if num_bytes > free:
        raise DownloadError(
            f"{num_bytes} bytes are to be downloaded, {free} are free at {folder}",
            "Make room, or choose another place: local_dir=DIR, or HF_HUB_CACHE=DIR.",
        )


def same_disk(path: Path, folder: Path) -> bool:
    """Whether the file can be linked into the folder instead of copied."""
    try:
        return path.stat().st_dev == _existing(folder).stat().st_dev
    except OSError:
        return False


def disk_error(error: OSError, path: Path) -> DownloadError:
    """The error for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk of {path.parent} is full",
            "Make room and run the command again; what was received is kept.",
        )
    return DownloadError(
        f"{path} cannot be written: {error.strerror or error}",
        "Choose another place: local_dir=DIR, or HF_HUB_CACHE=DIR for the cache.",
    )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest existing one above it."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder
