"""This machine's memory and cores, and what control groups, as of containers, leave of them."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

_USUAL_CACHE_BYTES = 32 << 20

_MEMBERSHIP = re.compile(r"\d+:([^:]*):(/.*)")  # controllers and the group's path
# Which part of the tree is mounted, where, the type, and the options with the controllers.
_MOUNT = re.compile(r"\S+ \S+ \S+ (/\S*) (/\S*) .* - (cgroup2?) \S+ (\S+)")
# What the system drops when a program needs the memory, as in its own MemAvailable: pages of
# files, which leaves those of shared memory out, and caches of its own.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
_SHORTEST_WATCH_S = 0.1  # the system counts hundredths of a second
_CORE = struct.Struct("<IIxB20xH")  # relationship, size, efficiency class, number of groups
_GROUP = struct.Struct("<QH6x")  # bit mask of the core's processors in a group, its number


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory in bytes. available: what a program can use without swapping others out."""

    total_bytes: int
    available_bytes: int


def memory_here(root: Path = Path("/")) -> Memory:
    """The machine's memory, or as much as its control groups, such as a container's, leave."""
    found = psutil.virtual_memory()
    limits = memory_limits(root)
    return Memory(
        min([found.total, *(each.limit for each in limits)]),
        min([found.available, *(max(0, each.limit - each.used) for each in limits)]),
    )


def memory_of_process(number: int) -> int:
    """Bytes that a process has for itself, without files that it maps; 0 if it is gone."""
    try:
        process = psutil.Process(number)
        if sys.platform == "darwin":
            return int(process.memory_full_info().uss)
        taken = process.memory_info()
    except (psutil.Error, OSError):
        return 0
    if sys.platform == "win32":
        return int(taken.private)
    return int(taken.rss - taken.shared)


def processor_time_of_process(number: int) -> float:
    """Seconds of processor time that a process has taken; 0 if it is gone."""
    try:
        taken = psutil.Process(number).cpu_times()
    except (psutil.Error, OSError):
        return 0.0
    return float(taken.user + taken.system)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The machine's processor cores, and those that a model should use."""

    physical: int | None
    """None where the system does not say."""

    logical: int
    """Including hyperthreads."""

    allowed: int
    """Logical cores that this process may run on."""

    efficiency: int
    """Those that save power, next to faster ones."""

    hyperthreads: int
    """Second threads of the other cores."""

    quota: float | None
    """Cores' worth of time that control groups allow, or None."""

    usable: int
    """The cores that a model should use, at least 1."""

    @property
    def is_bound_by_quota(self) -> bool:
        """Whether more cores would be usable without the quota."""
        return self.usable < self.allowed - self.efficiency - self.hyperthreads


def cores_here() -> Cores:
    """The machine's cores, and which of them may be used."""
    return count_cores(processors_here(), _allowed(), cpu_quota())


def num_usable_cores() -> int:
    """The number of threads to compute with; more would wait for each other."""
    return cores_here().usable


def last_cache_bytes(root: Path = Path("/")) -> int:
    """The size of a processor's last cache, or a usual one where the system does not say it."""
    found = [_USUAL_CACHE_BYTES]
    for file in root.glob("sys/devices/system/cpu/cpu0/cache/index*/size"):
        text = file.read_text(encoding="ascii").strip()
        if text.endswith("K") and text[:-1].isdecimal():
            found.append(1024 * int(text[:-1]))
    return max(found)


def count_cores(
    processors: Sequence[Processor], allowed: Set[int], quota: float | None
) -> Cores:
    """Count a thread for each fast core that the process may run on, within its quota.

    As llama.cpp counts: all threads wait for the slowest one, hyperthreads share arithmetic
    units, and power-saving cores delay the others. Allowed numbers that no processor has count
    as cores. The quota is rounded down: with more threads it is spent before its period ends,
    and then all threads stop until the next period, in the middle of a step.
    """
    known = {one.number: one for one in processors if one.number in allowed}
    efficiency = [one for one in known.values() if one.is_efficient]
    if len(efficiency) == len(allowed):  # there are no others
        efficiency = []
    fast = [one for one in known.values() if one not in efficiency]
    hyperthreads = len(fast) - len({one.core for one in fast})
    num_cores = len(allowed) - len(efficiency) - hyperthreads
    return Cores(
        physical=len({one.core for one in processors}) or None,
        logical=len(processors) or os.cpu_count() or 1,
        allowed=len(allowed),
        efficiency=len(efficiency),
        hyperthreads=hyperthreads,
        quota=quota,
        usable=max(1, num_cores if quota is None else min(num_cores, int(quota))),
    )


def _allowed() -> Set[int]:
    """Numbers of the processors that this process may run on."""
    try:  # not on a Mac, nor where Windows has several groups of processors
        return set(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error, OSError):
        return set(range(os.cpu_count() or 1))


def num_busy_cores() -> float:
    """How many of the allowed cores programs use now. It looks for 0.2 s."""
    shares = psutil.cpu_percent(0.2, percpu=True)
    allowed = _allowed()
    return sum(share for number, share in enumerate(shares) if number in allowed) / 100


class OtherPrograms:
    """Watches how much of the allowed cores other programs use."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._used_before_s = _used_by_others_s()

    def num_free_cores(self) -> int | None:
        """Whole cores of the allowed ones that were left free since this was asked last.

        None if that was too short a time ago for the system's clock; watching continues.
        """
        now_s = time.monotonic()
        watched_s = now_s - self._begun_s
        if watched_s < _SHORTEST_WATCH_S:
            return None
        used_before_s = self._used_before_s
        self._begun_s = now_s
        self._used_before_s = _used_by_others_s()
        used_s = self._used_before_s - used_before_s
        return max(len(_allowed()) - round(used_s / watched_s), 0)


def _used_by_others_s() -> float:
    """Seconds for which other processes than this have computed on the allowed cores."""
    each = psutil.cpu_times(percpu=True)
    allowed = _allowed()
    known = [times for number, times in enumerate(each) if number in allowed]
    used_s = sum(one.user + one.system + getattr(one, "nice", 0.0) for one in known)
    own = psutil.Process().cpu_times()
    return float(used_s - own.user - own.system)


def peak_memory_bytes() -> int:
    """The most memory that this process has used, in bytes."""
    # Linux, where ru_maxrss includes the parent process.
    for line in _lines(Path("/proc/self/status")):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # absent on Windows

    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # macOS: in bytes


@dataclass(frozen=True, slots=True)
class Processor:
    """A logical processor."""

    number: int
    """The system's own."""

    core: int
    """The same for hyperthreads of one core."""

    is_efficient: bool
    """Whether it is on a power-saving core, clearly slower than the machine's fast ones."""


def processors_here() -> list[Processor]:
    """This machine's processors; empty where the system does not say."""
    if sys.platform == "win32":
        return windows_processors(_windows_cores())
    if sys.platform == "darwin":
        return mac_processors(_sysctl)
    return linux_processors(Path("/"))


def linux_processors(root: Path) -> list[Processor]:
    """The processors that are online, as described below root/sys."""
    devices = root / "sys/devices"
    cores: dict[int, int] = {}
    capacities: dict[int, int] = {}
    for number in _numbers(devices / "system/cpu/online"):
        folder = devices / f"system/cpu/cpu{number}"
        siblings = _numbers(folder / "topology/thread_siblings_list")
        cores[number] = min(siblings) if number in siblings else number
        capacities[number] = max(_numbers(folder / "cpu_capacity"), default=0)
    # Intel's hybrids: the performance cores have an event counter of their own. Capacities may
    # be missing there, or differ less than the cores do.
    fast = _numbers(devices / "cpu_core/cpus")
    if fast:
        efficient = cores.keys() - fast
    else:
        # Half is between ARM's little cores and the middle cores of chips with a prime core,
        # which are worth using. Without capacities, all count as fast.
        most = max(capacities.values(), default=0)
        efficient = {number for number, one in capacities.items() if 0 < one < most / 2}
    return [
        Processor(number, core, number in efficient) for number, core in sorted(cores.items())
    ]


def _numbers(path: Path) -> set[int]:
    """The numbers in a file like "0-3,8"; none if it cannot be read."""
    numbers: set[int] = set()
    try:
        for part in "".join(_lines(path)).split(","):
            first, dash, last = part.partition("-")
            numbers |= set(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        return set()
    return numbers


def mac_processors(sysctl: Callable[[str], int | None]) -> list[Processor]:
    """Processors of a Mac. Level 0 has the performance cores; Intel's Macs have no levels.

    Args:
        sysctl: Gives the value of a name, or None.
    """
    levels = [f"hw.perflevel{level}." for level in range(sysctl("hw.nperflevels") or 0)]
    processors: list[Processor] = []
    num_cores = 0
    for level, prefix in enumerate(levels or ["hw."]):
        physical = sysctl(f"{prefix}physicalcpu") or 0
        for index in range(sysctl(f"{prefix}logicalcpu") or 0 if physical else 0):
            core = num_cores + index % physical
            processors.append(Processor(len(processors), core, level > 0))
        num_cores += physical
    return processors


def _sysctl(name: str) -> int | None:
    value = ctypes.c_int32()
    size = ctypes.c_size_t(ctypes.sizeof(value))
    call = ctypes.CDLL(None).sysctlbyname
    failed = call(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    if failed:
        return None
    return value.value


def windows_processors(cores: bytes) -> list[Processor]:
    """Processors of Windows. cores: SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX of each core.

    A higher efficiency class is a faster kind.
    """
    found: list[tuple[int, int, int]] = []
    start = num_cores = 0
    while start + _CORE.size <= len(cores):
        _, size, efficiency_class, num_groups = _CORE.unpack_from(cores, start)
        for index in range(num_groups):
            mask, group = _GROUP.unpack_from(cores, start + _CORE.size + index * _GROUP.size)
            found += [
                (64 * group + bit, num_cores, efficiency_class)
                for bit in range(64)
                if mask >> bit & 1
            ]
        num_cores += 1
        start += max(size, _CORE.size)
    fastest = max((one for _, _, one in found), default=0)
    return [Processor(number, core, one < fastest) for number, core, one in sorted(found)]


def _windows_cores() -> bytes:
    """Windows' description of its cores; empty on other systems."""
    if sys.platform == "win32":
        call = ctypes.WinDLL("kernel32").GetLogicalProcessorInformationEx
        size = ctypes.c_uint32()
        call(0, None, ctypes.byref(size))  # fails, and sets the size that it needs
        buffer = ctypes.create_string_buffer(size.value)
        if call(0, buffer, ctypes.byref(size)):
            return buffer.raw[: size.value]
    return b""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """How many processors' time this process may use, or None without a limit.

    The tightest limit of its own control groups and of all visible groups above them, of both
    versions. Read below root.
    """
    return min(filter(None, map(_quota, _groups(root, "cpu"))), default=None)


class MemoryLimit(NamedTuple):
    """A group's limit of main memory, and the bytes in use that it cannot drop."""

    limit: int
    used: int


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Limits of this process's groups and of all visible groups above, of both versions.

    A group without a limit is left out, or states more than any machine has. Read below root.
    """
    return list(filter(None, map(_memory_limit, _groups(root, "memory"))))


def _groups(root: Path, resource: str) -> Iterator[Path]:
    """Folders of the control groups that limit this process: its own and all above it."""
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
    try:
        quota_us, period_us = map(int, words)  # which are "max" or -1 without a quota
    except ValueError:
        return None
    if min(quota_us, period_us) > 0:
        return quota_us / period_us
    return None


def _memory_limit(group: Path) -> MemoryLimit | None:
    """The limit of one group, or None."""
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
        except ValueError:
            continue
        return MemoryLimit(most, max(used - sum(reclaimable), 0))
    return None


def _lines(path: Path) -> list[str]:
    """The lines of a text file; none if it cannot be read, as on systems without groups."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
