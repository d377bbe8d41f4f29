"""A file that is replaced as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Replace the file at once, by the parts in a row: after a crash it is the old or the new.

    Raises OSError.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        # Nobody else's business.
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    if os.name == "posix":
        # The name, too, has to survive a power cut.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
