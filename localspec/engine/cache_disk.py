"""What the caches of conversations may take on disk, and in memory."""

from __future__ import annotations

from typing import NamedTuple

from localspec.errors import OptionError


class CacheDisk(NamedTuple):
    """What an engine may keep on disk: num_bytes, of which 0 is nothing.

    owner: whose texts they are; those of others are never used.
    """

    num_bytes: int
    owner: str = ""

    @classmethod
    def of(cls, value: int | CacheDisk) -> CacheDisk:
        """What `load` was given. Raises OptionError for anything but 0 or more."""
        disk = value if isinstance(value, CacheDisk) else cls(value)
        is_number = isinstance(disk.num_bytes, int) and not isinstance(disk.num_bytes, bool)
        if not (is_number and disk.num_bytes >= 0 and isinstance(disk.owner, str)):
            raise OptionError(f"cache_disk is {value!r}", "Give bytes: 0 (none) or more.")
        return disk


class CacheRoom(NamedTuple):
    """What the caches of conversations that wait may take."""

    memory_bytes: int
    disk: CacheDisk = CacheDisk(0)
