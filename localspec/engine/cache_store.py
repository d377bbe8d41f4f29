"""The caches of conversations in a folder, found again by what a prompt begins with.

A file holds one text. It is written whole or not at all, never changed, and named by a hash of
its content, so that several processes can use the folder. The first line of a file is read
without its states. The files lie in the user's cache directory, which this user alone may read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from platformdirs import user_cache_path

from localspec.engine.cache_file import (
    CacheHead,
    PooledCache,
    read_head,
    read_states,
    write_caches,
)
from localspec.engine.open_models import CacheDisk
from localspec.errors import DAMAGES
from localspec.llama.cache_state import CacheState
from localspec.speculative.prefix import common_length
from localspec.system.atomic_write import UNFINISHED, make_private_folder
from localspec.system.machine import memory_here

logger = logging.getLogger(__name__)

# Tokens of a text whose entries are copied in the time that one is decoded: some hundreds on
# processors, fewer where the copy has to cross to a GPU.
COPIED_PER_DECODED = 32
_ENDING = ".caches"
_NAME = re.compile(rf"\.?[0-9a-f]{{32}}{_ENDING}(\.[0-9a-f]+{UNFINISHED})?")
_LEAST_TOKENS = 128  # fewer are decoded about as soon as a file is found and read
_TOKEN_BYTES = 16  # that a token takes in a file, besides the states
_LEFT_S = 600.0  # seconds; a file that is being written changes more often than that


class CacheStore:
    """The texts of one owner for models of these identities, the target's first.

    A fault of the disk is a line in the log: the text is decoded again. Raises what
    `identities` raises.

    Args:
        disk: What all files of the folder may take together, and whose texts they are.
        identities: The identities of the models, where the target's adapters have these scales.
        reach: The target's `Cache.num_restorable`.
        most_tokens: The most tokens that its context holds.
    """

    def __init__(
        self,
        disk: CacheDisk,
        identities: Callable[[Sequence[float]], list[str]],
        reach: Callable[[CacheState, int], int],
        most_tokens: int,
    ) -> None:
        self._most_bytes = disk.num_bytes
        self._owner = ""
        if disk.owner:  # hashed, since it may be a secret
            self._owner = hashlib.sha256(disk.owner.encode()).hexdigest()
        self._identities_under = identities
        self._content = _content(identities(()))
        self._reach_of = reach
        self._most_tokens = most_tokens
        # The first line of each file, by its name, inode and size.
        self._heads: dict[tuple[str, int, int], CacheHead | None] = {}
        self._has_warned = False  # of a fault of the disk

    def best(
        self,
        tokens: Sequence[int],
        num_there: int,
        scales: Sequence[float] = (),
    ) -> PooledCache | None:
        """The text that spares most decodes of `tokens`, if it spares more than reading costs.

        Args:
            tokens: The tokens of the next text.
            num_there: How many of them need no decode without the folder.
            scales: The scales of the adapters.
        """
        identities = self._identities_under(scales)
        while len(tokens) - num_there > _LEAST_TOKENS:
            best: tuple[Path, CacheHead] | None = None
            most = _LEAST_TOKENS
            for path, head in self._own(identities):
                num_spared = self._reach(head, tokens) - num_there
                if num_spared > max(most, head.num_cached // COPIED_PER_DECODED):
                    best = (path, head)
                    most = num_spared
            if best is None:
                return None
            path, head = best
            if sum(head.sizes) > _spare_memory():
                return None
            kept = self._read_text(path, head, identities)
            if kept is not None:
                return kept
        return None

    def wants(
        self,
        tokens: Sequence[int],
        outline: CacheState,
        scales: Sequence[float] = (),
    ) -> bool:
        """Whether a text is worth a file: no other file has most of it.

        Args:
            tokens: The text.
            outline: The outline of the target's state.
            scales: The scales of the target's adapters.
        """
        num_cached = outline.num_cached
        if num_cached <= _LEAST_TOKENS:
            return False
        text = tokens[:num_cached]
        identities = self._identities_under(scales)
        fewest_lacking = num_cached
        for path, head in self._own(identities):
            num_common = common_length(head.outline.tokens, text)
            num_lacking = num_cached - self._reach_of(_target(head), num_common)
            fewest_lacking = min(fewest_lacking, num_lacking)
            if num_lacking <= num_cached // COPIED_PER_DECODED:
                _touch(path)
        return fewest_lacking > num_cached // COPIED_PER_DECODED

    def has_room_for(self, num_bytes: int) -> bool:
        """Whether a text of that size may be copied, and written."""
        return num_bytes <= min(self._most_bytes, _spare_memory())

    def keep(self, kept: PooledCache, check: Callable[[], None] = lambda: None) -> None:
        """Write a text, which replaces the texts that it continues; the oldest leave for it.

        Args:
            kept: The text and its states.
            check: Called every few megabytes; what it raises ends the work, and leaves no file.
        """
        try:
            folder = kept_folder()
            make_private_folder(folder)
            folder.chmod(0o700)  # an earlier version may have made it
            num_bytes = kept.num_bytes + _TOKEN_BYTES * len(kept.tokens)
            half_of_free = shutil.disk_usage(folder).free // 2
            if num_bytes > min(self._most_bytes, half_of_free):
                return
            identities = self._identities_under(kept.scope.scales)
            path = folder / self._name(kept, identities)
            # A power cut may leave a damaged file: each file is checked when it is read.
            write_caches(
                path,
                kept,
                identities,
                owner=self._owner,
                check=check,
                durable=False,
            )
            cached = _cached(kept)
            for other, head in self._own(identities):
                num_cached = head.num_cached
                is_beginning = head.outline.tokens[:num_cached] == cached[:num_cached]
                if other != path and is_beginning:
                    other.unlink(missing_ok=True)
            self._make_room(path)
        except OSError as error:
            if not self._has_warned:
                logger.warning("conversations are not kept on disk: %s", error)
            self._has_warned = True

    def _reach(self, head: CacheHead, tokens: Sequence[int]) -> int:
        """How many of a prompt's tokens need no decode with that file."""
        num_common = common_length(head.outline.tokens, tokens)
        # The last token is always decoded: an answer's first token comes from its row.
        num_common = min(num_common, len(tokens) - 1)
        return self._reach_of(_target(head), num_common)

    def _own(self, identities: Sequence[str]) -> Iterator[tuple[Path, CacheHead]]:
        """This owner's files for the target of these identities, each with its first line.

        The identities of the other models may differ. A first line that was read before is not
        read again.
        """
        read_before = self._heads
        self._heads = {}  # without the files that are gone
        for path in kept_files():
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                status = path.stat()
                key = (path.name, status.st_ino, status.st_size)
                if key not in read_before:
                    read_before[key] = self._head(path)
                head = read_before[key]  # None for another owner's file, among others
                self._heads[key] = head
                if head is not None and head.identities[0] == identities[0]:
                    yield path, head

    def _head(self, path: Path) -> CacheHead | None:
        """The first line of a file; None if the file is of no use here, under any scales."""
        try:
            head = read_head(path)
        except FileNotFoundError:
            raise
        except OSError:
            return None  # the file itself may be sound
        except DAMAGES as error:
            _remove(path, error)
            return None
        if head is None or head.owner != self._owner:
            return None
        if _content(head.identities) != self._content:
            return None
        if 0 < head.num_cached <= self._most_tokens:
            return head
        return None

    def _read_text(
        self,
        path: Path,
        head: CacheHead,
        identities: Sequence[str],
    ) -> PooledCache | None:
        """The text with the states of the models of these identities; None if damaged."""
        places = {identity: number for number, identity in enumerate(head.identities)}
        # None where the draft was opened with other settings.
        numbers = [places.get(identity) for identity in identities]
        try:
            kept = read_states(path, head, numbers)
        except (MemoryError, *DAMAGES) as error:
            for key, value in self._heads.items():
                if value is head:
                    self._heads[key] = None
            if not isinstance(error, MemoryError | OSError):
                _remove(path, error)
            return None
        _touch(path)
        return kept

    def _name(self, kept: PooledCache, identities: Sequence[str]) -> str:
        content = json.dumps([self._owner, identities, _cached(kept)])
        return hashlib.sha256(content.encode()).hexdigest()[:32] + _ENDING

    def _make_room(self, newest: Path) -> None:
        """Remove the least recently used files until the folder is within its bound.

        Args:
            newest: The file that stays.
        """
        others: list[tuple[float, int, Path]] = []  # modification time, bytes, file
        num_bytes = newest.stat().st_size
        for path in _all_files():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == UNFINISHED and time.time() - status.st_mtime > _LEFT_S:
                    path.unlink()  # a process was killed while it wrote
                elif path != newest:
                    num_bytes += status.st_size
                    others.append((status.st_mtime, status.st_size, path))
        for _, size, path in sorted(others):
            if num_bytes <= self._most_bytes:
                return
            if path.suffix != UNFINISHED:
                path.unlink(missing_ok=True)
                num_bytes -= size


def kept_folder() -> Path:
    """Where the files are."""
    return user_cache_path("localspec", appauthor=False) / "caches"


def kept_files() -> list[Path]:
    """The files of all models and owners."""
    return [path for path in _all_files() if path.suffix == _ENDING]


def kept_sizes() -> dict[Path, int]:
    """The files and their bytes, also unfinished files that a kill has left."""
    return file_sizes(_all_files())


def file_sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """The bytes of the files that are there; another process may remove some."""
    sizes = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            sizes[path] = path.stat().st_size
    return sizes


def wipe_kept() -> int:
    """Remove all files, also unfinished ones. Returns the bytes freed. Raises OSError."""
    sizes = kept_sizes()
    for path in sizes:
        path.unlink(missing_ok=True)
    return sum(sizes.values())


def _all_files() -> list[Path]:
    """Our files, finished or being written, sorted by name."""
    folder = kept_folder()
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if _NAME.fullmatch(name)]


def _content(identities: Sequence[str]) -> str:
    """The part of the target's identity that says what its file holds."""
    return identities[0].partition(" · ")[0]


def _target(head: CacheHead) -> CacheState:
    state = head.outline.states[0]
    assert state is not None
    return state


def _cached(kept: PooledCache) -> list[int]:
    """The part of a text that the target's state covers."""
    assert kept.states[0] is not None
    return kept.tokens[: kept.states[0].num_cached]


def _spare_memory() -> int:
    """Bytes that a copy may take for a moment."""
    return memory_here().available_bytes // 2


def _touch(path: Path) -> None:
    """Update the modification time, by which the least recently used files leave first."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _remove(path: Path, error: Exception) -> None:
    logger.warning("%s is damaged, and is removed: %s", path, error)
    with contextlib.suppress(OSError):
        path.unlink()
