"""Limits of the memory and disk that caches of conversations take."""

from __future__ import annotations

from typing import NamedTuple

from localspec.errors import OptionError


class CacheDisk(NamedTuple):
    """Limit of an engine's caches on disk: num_bytes, 0 for none.

    owner: whose texts they are; those of others are never used.
    """

    num_bytes: int
    owner: str = ""

    @classmethod
    def of(cls, value: int | CacheDisk) -> CacheDisk:
        """Check the argument of `load`. Raises OptionError for anything but 0 or more."""
        disk = value if isinstance(value, CacheDisk) else cls(value)
        is_number = isinstance(disk.num_bytes, int) and not isinstance(disk.num_bytes, bool)
        if not (is_number and disk.num_bytes >= 0 and isinstance(disk.owner, str)):
            raise OptionError(f"cache_disk is {value!r}", "Give bytes: 0 (none) or more.")
        return disk


class CacheRoom(NamedTuple):
    """Limits for the caches of conversations that wait."""

    memory_bytes: int
    disk: CacheDisk = CacheDisk(0)
