"""The logs of servers that are started for coding agents, in the user's state directory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

import platformdirs

from localspec.server.own_server import key_file
from localspec.system.atomic_write import make_private_folder

_MOST = 8
"""The number of files that are kept, with the new one."""


def new_log(port: int) -> tuple[Path, BinaryIO]:
    """An empty log for the server at that port. Returns its path and the open file.

    The previous log is kept under another name: it may say why that server ended. If there are
    too many logs, the oldest are deleted. Raises OSError.
    """
    path = _log_file(port)
    make_private_folder(path.parent)
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_suffix(".old.log"))
    kept = sorted(path.parent.glob("*.log"), key=_changed_s)
    for old in kept[: -(_MOST - 1)]:
        with contextlib.suppress(OSError):  # on Windows a server may be writing it
            old.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    descriptor = os.open(path, flags, 0o600)
    return path, os.fdopen(descriptor, "wb")


def log_of_running(port: int) -> Path | None:
    """The log of this user's server that runs at that port; None if it was not started here.

    A server announces its key before it writes into its log. So a log that is older than the
    key is another server's.
    """
    path = _log_file(port)
    try:
        if _changed_s(path) >= _changed_s(key_file(port)):
            return path
        return None
    except OSError:
        return None


def _changed_s(path: Path) -> float:
    return path.stat().st_mtime


def _log_file(port: int) -> Path:
    folder = platformdirs.user_state_path("localspec", appauthor=False) / "logs"
    return folder / f"{port}.log"
