"""Text files whose content drafts answers, read again as they change."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from localspec.chat.text_file import read_text_file
from localspec.errors import OptionError

logger = logging.getLogger(__name__)

_MOST_BYTES = 4_000_000  # of all files: about a million tokens
# A longer file of a folder is data rather than text that somebody wrote.
_MOST_FILE_BYTES = 300_000
_MOST_FILES = 5000
# Folders of what programs made or fetched; hidden ones are left out, too.
_NOT_WRITTEN = {
    *("node_modules", "__pycache__", "venv", "env", "build", "dist", "target", "site-packages"),
}


class RememberedFiles:
    """Files, and folders with all text files in them, as they were when they were read."""

    def __init__(self) -> None:
        self._roots: list[Path] = []
        self._seen: dict[Path, tuple[int, int]] = {}  # time of change and size of each
        self._is_full = False  # whether that was said

    def add(self, path: str | os.PathLike[str]) -> None:
        """A file or a folder more. Raises OptionError if it is not there, or no text."""
        root = Path(path).absolute()
        if root.is_file():
            try:
                read_text_file(root)
            except (OSError, ValueError) as error:
                raise OptionError(
                    f"{path}: {error}", "Give a text file or a folder."
                ) from error
        elif not root.is_dir():
            raise OptionError(f"there is no file or folder {path}", "Give one that is there.")
        self._roots.append(root)

    def take(self, others: RememberedFiles) -> None:
        """Those of the others, too."""
        self._roots += others._roots

    def changed(self) -> Iterator[str]:
        """The texts of files that are new, or have changed since they were read."""
        num_bytes, is_over = 0, False
        for number, path in enumerate(self._paths()):
            try:
                found = path.stat()
            except OSError:
                continue  # it has just gone
            num_bytes += found.st_size
            if num_bytes > _MOST_BYTES or number >= _MOST_FILES:
                is_over = True
                break
            state = found.st_mtime_ns, found.st_size
            if self._seen.get(path) != state:
                self._seen[path] = state
                try:
                    yield read_text_file(path)
                except (OSError, ValueError):
                    continue  # it is not text
        if is_over and not self._is_full:
            self._is_full = True
            logger.warning(
                "%s: only the first %d MB of text, and %d files, are remembered",
                ", ".join(map(str, self._roots)),
                _MOST_BYTES // 1_000_000,
                _MOST_FILES,
            )

    def _paths(self) -> Iterator[Path]:
        for root in self._roots:
            if root.is_file():
                yield root
                continue
            for folder, folders, names in os.walk(root):  # follows no link
                folders[:] = sorted(each for each in folders if _is_written(each))
                for name in sorted(names):
                    path = Path(folder, name)
                    if name.startswith(".") or path.is_symlink() or not path.is_file():
                        continue
                    if path.stat().st_size <= _MOST_FILE_BYTES:
                        yield path


def _is_written(folder: str) -> bool:
    return not folder.startswith(".") and folder not in _NOT_WRITTEN
