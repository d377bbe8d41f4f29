"""The caches of conversations in a folder, found again by what a prompt begins with.

A file holds one text. It is written whole or not at all, never changed, and named by a hash of
its content, so that several processes can use the folder. The header of a file, its first line,
is read without the states. The files lie in the user's cache directory, which this user alone
may read.
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
    CacheHeader,
    PooledCache,
    read_cache_header,
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

# How many tokens' cache entries are surely copied in the time that one token is decoded. The
# real number is some hundreds on processors, and smaller where the copy has to cross to a GPU.
COPIED_PER_DECODED = 32
_SUFFIX = ".caches"
_NAME = re.compile(rf"\.?[0-9a-f]{{32}}{_SUFFIX}(\.[0-9a-f]+{UNFINISHED})?")
_LEAST_TOKENS = 128  # fewer are decoded about as soon as a file is found and read
_TOKEN_BYTES = 16  # that a token takes in a file, besides the states
_ABANDONED_S = 600.0  # a file that is being written changes more often than that


class CacheStore:
    """The texts on disk of one owner, for the models of one engine.

    A fault of the disk is only logged: the text is then decoded again. Methods raise what
    `identities` raises.

    Args:
        disk: The most bytes of all files in the folder together, and the owner of the texts.
        identities: A function of the scales of the target's adapters. It returns the
            identities of the models under these scales, the target's first.
        num_restorable: The target's `Cache.num_restorable`.
        most_tokens: The most tokens that the target's context holds.
    """

    def __init__(
        self,
        disk: CacheDisk,
        identities: Callable[[Sequence[float]], list[str]],
        num_restorable: Callable[[CacheState, int], int],
        most_tokens: int,
    ) -> None:
        self._most_bytes = disk.num_bytes
        self._owner = ""
        if disk.owner:  # hashed, since it may be a secret
            self._owner = hashlib.sha256(disk.owner.encode()).hexdigest()
        self._identities_under = identities
        self._target_content = _target_content(identities(()))
        self._num_restorable = num_restorable
        self._most_tokens = most_tokens
        # The header of each file, by the file's name, inode and size. None: of no use here.
        self._headers: dict[tuple[str, int, int], CacheHeader | None] = {}
        self._has_warned = False  # of a fault of the disk

    def best(
        self,
        tokens: Sequence[int],
        num_cached: int,
        scales: Sequence[float] = (),
    ) -> PooledCache | None:
        """The text on disk that spares most decodes of `tokens`.

        None if no text spares enough to be worth reading, or the memory does not suffice. A
        damaged file is passed over for the next best one.

        Args:
            tokens: The tokens of the next text.
            num_cached: How many of them need no decode without the folder.
            scales: The scales of the target's adapters.
        """
        identities = self._identities_under(scales)
        while len(tokens) - num_cached > _LEAST_TOKENS:
            best: tuple[Path, CacheHeader] | None = None
            most_spared = _LEAST_TOKENS  # a text has to spare more
            for path, header in self._usable_files(identities):
                num_spared = self._num_reusable(header, tokens) - num_cached
                reading_cost = header.num_cached // COPIED_PER_DECODED  # in decodes
                if num_spared > max(most_spared, reading_cost):
                    best = (path, header)
                    most_spared = num_spared
            if best is None:
                return None
            path, header = best
            if sum(header.sizes) > _spare_memory():
                return None
            text = self._read_text(path, header, identities)
            if text is not None:
                return text
        return None

    def is_worth_file(
        self,
        tokens: Sequence[int],
        outline: CacheState,
        scales: Sequence[float] = (),
    ) -> bool:
        """Whether a text is long enough for a file, and no file has nearly all of it.

        A file that has nearly all of it counts as just used.

        Args:
            tokens: The text.
            outline: The target's state of it, perhaps without the bytes.
            scales: The scales of the target's adapters.
        """
        num_cached = outline.num_cached
        if num_cached <= _LEAST_TOKENS:
            return False
        cached = tokens[:num_cached]
        few = num_cached // COPIED_PER_DECODED  # tokens that a file may lack
        is_missing = True
        for path, header in self._usable_files(self._identities_under(scales)):
            num_common = common_length(header.outline.tokens, cached)
            num_in_file = self._num_restorable(_target_state(header), num_common)
            if num_cached - num_in_file <= few:
                is_missing = False
                _touch(path)
        return is_missing

    def has_room_for(self, num_bytes: int) -> bool:
        """Whether memory and disk have room for a text of that size."""
        return num_bytes <= min(self._most_bytes, _spare_memory())

    def keep(self, text: PooledCache, check: Callable[[], None] = lambda: None) -> None:
        """Write a text to a file, and remove the files of texts that it continues.

        The least recently used files are removed to make room. Nothing is written if the text
        is larger than all the room, or than half of the free disk.

        Args:
            text: The text and its states.
            check: Called every few megabytes; what it raises ends the work, and leaves no file.
        """
        try:
            folder = kept_folder()
            make_private_folder(folder)
            folder.chmod(0o700)  # an earlier version may have let others read it
            num_bytes = text.num_bytes + _TOKEN_BYTES * len(text.tokens)
            half_of_free = shutil.disk_usage(folder).free // 2
            if num_bytes > min(self._most_bytes, half_of_free):
                return
            identities = self._identities_under(text.scope.scales)
            path = folder / self._file_name(text, identities)
            # A power cut may leave a damaged file: each file is checked when it is read.
            write_caches(
                path,
                text,
                identities,
                owner=self._owner,
                check=check,
                durable=False,
            )
            cached = _cached_tokens(text)
            for other, header in self._usable_files(identities):
                num_cached = header.num_cached
                is_beginning = header.outline.tokens[:num_cached] == cached[:num_cached]
                if other != path and is_beginning:
                    other.unlink(missing_ok=True)
            self._make_room(path)
        except OSError as error:
            if not self._has_warned:
                logger.warning("conversations are not kept on disk: %s", error)
            self._has_warned = True

    def _num_reusable(self, header: CacheHeader, tokens: Sequence[int]) -> int:
        """How many of a prompt's tokens need no decode with that file."""
        num_common = common_length(header.outline.tokens, tokens)
        # The last token is always decoded: an answer's first token comes from its row.
        num_common = min(num_common, len(tokens) - 1)
        return self._num_restorable(_target_state(header), num_common)

    def _usable_files(self, identities: Sequence[str]) -> Iterator[tuple[Path, CacheHeader]]:
        """This owner's files of the target that the first identity names, with their headers.

        The identities of the other models may differ. A header that was read before is not read
        again.
        """
        read_before = self._headers
        self._headers = {}  # without the files that are gone
        for path in kept_files():
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                status = path.stat()
                key = (path.name, status.st_ino, status.st_size)
                if key not in read_before:
                    read_before[key] = self._usable_header(path)
                header = read_before[key]
                self._headers[key] = header
                if header is not None and header.identities[0] == identities[0]:
                    yield path, header

    def _usable_header(self, path: Path) -> CacheHeader | None:
        """The header of a file; None if the file is of no use here, under any scales.

        It is of no use if it is of another owner, target or format, has no cached token or
        more than the context holds, or cannot be read. A damaged file is removed. Raises
        FileNotFoundError.
        """
        try:
            header = read_cache_header(path)
        except FileNotFoundError:
            raise
        except OSError:
            return None  # the file itself may be sound
        except DAMAGES as error:
            _remove_damaged(path, error)
            return None
        if header is None or header.owner != self._owner:
            return None
        if _target_content(header.identities) != self._target_content:
            return None
        if 0 < header.num_cached <= self._most_tokens:
            return header
        return None

    def _read_text(
        self,
        path: Path,
        header: CacheHeader,
        identities: Sequence[str],
    ) -> PooledCache | None:
        """The text of a file, with the states of the models of these identities.

        None if it cannot be read: then the file is not tried again, and removed if damaged.
        """
        numbers_in_file = {
            identity: number for number, identity in enumerate(header.identities)
        }
        # None where the draft was opened with other settings.
        numbers = [numbers_in_file.get(identity) for identity in identities]
        try:
            text = read_states(path, header, numbers)
        except (MemoryError, *DAMAGES) as error:
            for key, known_header in self._headers.items():
                if known_header is header:
                    self._headers[key] = None
            if not isinstance(error, MemoryError | OSError):
                _remove_damaged(path, error)
            return None
        _touch(path)
        return text

    def _file_name(self, text: PooledCache, identities: Sequence[str]) -> str:
        content = json.dumps([self._owner, identities, _cached_tokens(text)])
        digest = hashlib.sha256(content.encode()).hexdigest()
        return digest[:32] + _SUFFIX

    def _make_room(self, newest: Path) -> None:
        """Remove the least recently used files until the folder is within its limit.

        Args:
            newest: The file that stays.
        """
        others: list[tuple[float, int, Path]] = []  # modification time, bytes, file
        num_bytes = newest.stat().st_size
        for path in _all_files():
            with contextlib.suppress(OSError):
                status = path.stat()
                age_s = time.time() - status.st_mtime
                if path.suffix == UNFINISHED and age_s > _ABANDONED_S:
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
    return [path for path in _all_files() if path.suffix == _SUFFIX]


def kept_sizes() -> dict[Path, int]:
    """The bytes of each file, also of unfinished files that a killed process has left."""
    return file_sizes(_all_files())


def file_sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """The bytes of each file that still exists: another process may have removed some."""
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
    """Our files in the folder, finished or being written, sorted by name."""
    folder = kept_folder()
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if _NAME.fullmatch(name)]


def _target_content(identities: Sequence[str]) -> str:
    """The part of the target's identity that names the content of its file."""
    return identities[0].partition(" · ")[0]


def _target_state(header: CacheHeader) -> CacheState:
    """The target's state in a file, without its bytes."""
    state = header.outline.states[0]
    assert state is not None
    return state


def _cached_tokens(text: PooledCache) -> list[int]:
    """The beginning of a text that the target's state covers."""
    target_state = text.states[0]
    assert target_state is not None
    return text.tokens[: target_state.num_cached]


def _spare_memory() -> int:
    """Bytes of memory that a copy may take for a moment: half of those available."""
    return memory_here().available_bytes // 2


def _touch(path: Path) -> None:
    """Set a file's modification time to now: the least recently used files leave first."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _remove_damaged(path: Path, error: Exception) -> None:
    """Remove a file that an error shows to be damaged, and log a warning."""
    logger.warning("%s is damaged, and is removed: %s", path, error)
    with contextlib.suppress(OSError):
        path.unlink()
