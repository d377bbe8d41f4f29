"""The logs of servers that are started for coding agents, in the user's state directory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

import platformdirs

from localspec.server.own_server import key_file
from localspec.system.atomic_write import make_private_folder

_MAX_LOGS = 8
"""The number of logs that are kept, with the new one."""


def new_log(port: int) -> tuple[Path, BinaryIO]:
    """Create an empty log for the server at a port. Returns its path and the open file.

    The previous log of that port is kept under another name: it may say why its server ended.
    If there are too many logs, the oldest are deleted. Raises OSError.
    """
    path = _log_file(port)
    make_private_folder(path.parent)
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_suffix(".old.log"))
    oldest_first = sorted(path.parent.glob("*.log"), key=_changed_s)
    num_surplus = len(oldest_first) + 1 - _MAX_LOGS  # 1 for the new log
    for old in oldest_first[: max(num_surplus, 0)]:
        with contextlib.suppress(OSError):  # on Windows a server may be writing it
            old.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    descriptor = os.open(path, flags, 0o600)
    return path, os.fdopen(descriptor, "wb")


def log_of_running(port: int) -> Path | None:
    """The log of this user's server that runs at a port.

    None if the server was not started for an agent. A server still writes to its log after its
    key file, so a log whose last change is older than the key file is an earlier server's.
    """
    path = _log_file(port)
    try:
        if _changed_s(path) >= _changed_s(key_file(port)):
            return path
        return None
    except OSError:
        return None


def _changed_s(path: Path) -> float:
    """The time of the last change of a file, in seconds since 1970. Raises OSError."""
    return path.stat().st_mtime


def _log_file(port: int) -> Path:
    """The path of the log of the server at a port."""
    folder = platformdirs.user_state_path("localspec", appauthor=False) / "logs"
    return folder / f"{port}.log"
