"""What the control groups of this process allow, as in containers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

logger = logging.getLogger(__name__)

_MEMBERSHIP = re.compile(r"\d+:([^:]*):(/.*)")  # controllers and the group's path
# Which part of the tree is mounted, where, the type, and the options with the controllers.
_MOUNT = re.compile(r"\S+ \S+ \S+ (/\S*) (/\S*) .* - (cgroup2?) \S+ (\S+)")
# What the system drops when a program needs the memory, as in its own MemAvailable: pages of
# files, which leaves those of shared memory out, and caches of its own.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def cpu_quota(root: Path = Path("/")) -> float | None:
    """How many processors' time this process may use, or None without a limit.

    The tightest limit of its own groups and of all visible groups above them, of both versions
    of control groups. Read below root.
    """
    quotas = [_quota(group) for group in _groups(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


class MemoryLimit(NamedTuple):
    """What a group allows of main memory, and has in use and cannot drop. In bytes."""

    limit: int
    used: int


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Those of its own groups and of all visible groups above them, of both versions.

    Without a limit there are none, or such as no machine reaches. Read below root.
    """
    found = [_memory_limit(group) for group in _groups(root, "memory")]
    return [limit for limit in found if limit is not None]


def _groups(root: Path, resource: str) -> Iterator[Path]:
    """Folders of the groups that limit this process in that: its own and all above them."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        if member := _MEMBERSHIP.fullmatch(line):
            paths |= dict.fromkeys(member[1].split(","), member[2])
    for line in _lines(root / "proc/self/mountinfo"):
        mount = _MOUNT.fullmatch(line)
        if mount is None:
            continue
        # Version 2 has one tree, and names no controllers.
        controller = resource if mount[3] == "cgroup" else ""
        if controller in paths and controller in ("", *mount[4].split(",")):
            top = root / mount[2].removeprefix("/")
            inside = _inside(PurePosixPath(paths[controller]), PurePosixPath(mount[1]))
            yield from (top / folder for folder in (inside, *inside.parents))


def _inside(path: PurePosixPath, mounted: PurePosixPath) -> PurePosixPath:
    """The path of a group within a mount; empty if the group is not below it.

    A container may see its own group as the top, while the path is that of the host.
    """
    if path.is_relative_to(mounted) and ".." not in path.parts:
        return path.relative_to(mounted)
    return PurePosixPath()


def _quota(group: Path) -> float | None:
    """How many processors' time one group may use, or None."""
    words = [word for line in _lines(group / "cpu.max") for word in line.split()] or [
        line.strip()
        for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for line in _lines(group / name)
    ]
    if not words or words[0] in ("max", "-1"):
        return None
    try:
        quota_us, period_us = map(int, words)
        if quota_us <= 0 or period_us <= 0:
            raise ValueError("not above zero")
    except ValueError as error:
        logger.debug("the quota %r of %s is left out: %s", words, group, error)
        return None
    return quota_us / period_us


def _memory_limit(group: Path) -> MemoryLimit | None:
    """What one group allows, or None."""
    counts = dict(line.partition(" ")[::2] for line in _lines(group / "memory.stat"))
    for limit, usage, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        dropped = [counts.get(prefix + kind, "0") for kind in _RECLAIMABLE]
        words = [*_lines(group / limit), *_lines(group / usage), *dropped]
        if len(words) < 2 + len(dropped) or words[0] == "max":
            continue
        try:
            most, used, *reclaimable = map(int, words)
        except ValueError as error:
            logger.debug("the limit %r of %s is left out: %s", words, group, error)
            continue
        return MemoryLimit(most, max(used - sum(reclaimable), 0))
    return None


def _lines(path: Path) -> list[str]:
    """The lines of a text file; none if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:  # not Linux, or the other version of control groups
        return []
    except (OSError, ValueError) as error:
        logger.debug("%s is left out: %s", path, error)
        return []
