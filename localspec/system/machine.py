"""This machine's memory and cores, as far as control groups (containers) allow their use.

A *processor* is a logical one: a core, or one of its hyperthreads. It has a number in the
operating system.
"""

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

# A line of /proc/self/cgroup: controllers, and the path of this process's group.
_MEMBERSHIP = re.compile(r"\d+:([^:]*):(/.*)")
# A line of /proc/self/mountinfo: the mounted part of the tree of groups, its mount point, the
# type, and options, among which the controllers are.
_MOUNT = re.compile(r"\S+ \S+ \S+ (/\S*) (/\S*) .* - (cgroup2?) \S+ (\S+)")
# Memory that the system drops when a program needs it, as in its MemAvailable: pages of files
# (without shared memory), and its own caches.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
_SHORTEST_WATCH_S = 0.1  # the system counts hundredths of a second
# SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX of Windows: relationship, size in bytes, efficiency
# class, number of groups. A GROUP_AFFINITY for each group of processors follows: the bit mask
# of the core's processors in the group, and the group's number.
_CORE = struct.Struct("<IIxB20xH")
_GROUP = struct.Struct("<QH6x")
_GROUP_SIZE = 64  # processors of a group


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory, as far as this process may use it."""

    total_bytes: int

    available_bytes: int
    """Bytes that a program can use without swapping others out."""


def memory_here(root: Path = Path("/")) -> Memory:
    """The machine's memory, or the part that control groups, such as a container's, allow.

    Args:
        root: The folder below which the files of control groups are read.
    """
    memory = psutil.virtual_memory()
    total_bytes = memory.total
    available_bytes = memory.available
    for group in memory_limits(root):
        total_bytes = min(total_bytes, group.limit)
        left_bytes = max(0, group.limit - group.used)
        available_bytes = min(available_bytes, left_bytes)
    return Memory(total_bytes, available_bytes)


def memory_of_process(process_id: int) -> int:
    """Bytes of a process's own memory, without mapped files; 0 if they cannot be read."""
    try:
        process = psutil.Process(process_id)
        if sys.platform == "darwin":
            return int(process.memory_full_info().uss)
        memory = process.memory_info()
    except (psutil.Error, OSError):
        return 0
    if sys.platform == "win32":
        return int(memory.private)
    return int(memory.rss - memory.shared)


def processor_time_of_process(process_id: int) -> float:
    """Seconds of processor time that a process has used; 0 if they cannot be read."""
    try:
        times = psutil.Process(process_id).cpu_times()
    except (psutil.Error, OSError):
        return 0.0
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The machine's processor cores, and those that a model should use."""

    physical: int | None
    """All cores of the machine; None if the system does not say."""

    logical: int
    """All processors of the machine: cores, including hyperthreads."""

    allowed: int
    """Processors that this process may run on. The next two numbers count some of them."""

    efficiency: int
    """Processors on power-saving cores; 0 if there are no faster ones."""

    hyperthreads: int
    """Processors beyond the first of each core; power-saving cores are left out."""

    quota: float | None
    """Processor time that control groups allow, in cores; None without a limit."""

    usable: int
    """The cores that a model should use, at least 1."""

    @property
    def is_bound_by_quota(self) -> bool:
        """Whether more cores would be usable without the quota."""
        return self.usable < self.allowed - self.efficiency - self.hyperthreads


def cores_here() -> Cores:
    """The machine's cores, and which of them may be used."""
    return count_cores(processors_here(), _allowed_processors(), cpu_quota())


def num_usable_cores() -> int:
    """The number of threads to compute with, at least 1; more would wait for each other."""
    return cores_here().usable


def last_cache_bytes(root: Path = Path("/")) -> int:
    """The size of the processor's largest cache in bytes; at least 32 MiB, a usual size.

    Args:
        root: The folder below which sys is read.
    """
    sizes = [_USUAL_CACHE_BYTES]
    for file in root.glob("sys/devices/system/cpu/cpu0/cache/index*/size"):
        text = file.read_text(encoding="ascii").strip()
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(1024 * int(text[:-1]))
    return max(sizes)


def count_cores(
    processors: Sequence[Processor],
    allowed: Set[int],
    quota: float | None,
) -> Cores:
    """Count cores of each kind. A model should use each fast core, within the quota.

    As llama.cpp counts: all threads wait for the slowest one, hyperthreads share arithmetic
    units, and power-saving cores delay the others. The quota is rounded down: with more threads
    it is spent before its period ends, and then all threads stop until the next period, in the
    middle of a step.

    Args:
        processors: The processors of the machine; none if the system does not say.
        allowed: The numbers of the processors that this process may run on. A number that is
            not among the processors counts as a fast core.
        quota: Processor time that control groups allow, in cores; None without a limit.
    """
    described = [processor for processor in processors if processor.number in allowed]
    fast = [processor for processor in described if not processor.is_efficient]
    efficiency = len(described) - len(fast)
    if efficiency == len(allowed):  # there are no faster ones
        fast = described
        efficiency = 0
    hyperthreads = len(fast) - _num_cores(fast)
    num_threads = len(allowed) - efficiency - hyperthreads
    if quota is not None:
        num_threads = min(num_threads, int(quota))
    return Cores(
        physical=_num_cores(processors) or None,
        logical=len(processors) or os.cpu_count() or 1,
        allowed=len(allowed),
        efficiency=efficiency,
        hyperthreads=hyperthreads,
        quota=quota,
        usable=max(1, num_threads),
    )


def _num_cores(processors: Sequence[Processor]) -> int:
    """The number of different cores that some processors belong to."""
    return len({processor.core for processor in processors})


def _allowed_processors() -> Set[int]:
    """The numbers of the processors that this process may run on.

    All, where the system cannot say: on a Mac, and on Windows with several processor groups.
    """
    try:
        return set(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error, OSError):
        return set(range(os.cpu_count() or 1))


def num_busy_processors() -> float:
    """How many of the allowed processors are in use by any program, measured for 0.2 s."""
    percentages = psutil.cpu_percent(0.2, percpu=True)
    allowed = _allowed_processors()
    percent = 0.0
    for number, percentage in enumerate(percentages):
        if number in allowed:
            percent += percentage
    return percent / 100


class OtherPrograms:
    """Measures how many of the allowed processors other programs use, from now on."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._used_before_s = _used_by_others_s()

    def num_free_cores(self) -> int | None:
        """How many allowed processors other programs have left free on average, rounded.

        Measured since the last call that gave a number, or else since this object was made.
        None if that time is too short for the system's clock; measuring continues then.
        """
        now_s = time.monotonic()
        watched_s = now_s - self._begun_s
        if watched_s < _SHORTEST_WATCH_S:
            return None
        used_now_s = _used_by_others_s()
        num_used = (used_now_s - self._used_before_s) / watched_s
        self._begun_s = now_s
        self._used_before_s = used_now_s
        return max(len(_allowed_processors()) - round(num_used), 0)


def _used_by_others_s() -> float:
    """Seconds of processor time that other processes have used on the allowed processors.

    A sum since the machine was started.
    """
    allowed = _allowed_processors()
    used_s = 0.0
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        if number in allowed:
            used_s += times.user + times.system + getattr(times, "nice", 0.0)
    own_times = psutil.Process().cpu_times()
    return float(used_s - own_times.user - own_times.system)


def peak_memory_bytes() -> int:
    """The most memory that this process has used at any time, in bytes."""
    # On Linux ru_maxrss includes the parent process, so a line of this file is read instead.
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
    """The number by which the system knows it."""

    core: int
    """The number of its core, which hyperthreads share."""

    is_efficient: bool
    """Whether it is on a power-saving core, clearly slower than the machine's fast ones."""


def processors_here() -> list[Processor]:
    """This machine's processors; none if the system does not say."""
    if sys.platform == "win32":
        return windows_processors(_windows_cores())
    if sys.platform == "darwin":
        return mac_processors(_sysctl)
    return linux_processors(Path("/"))


def linux_processors(root: Path) -> list[Processor]:
    """The processors that are online, as the files in root/sys/devices describe them."""
    devices = root / "sys/devices"
    cores: dict[int, int] = {}
    capacities: dict[int, int] = {}
    for number in _numbers(devices / "system/cpu/online"):
        folder = devices / f"system/cpu/cpu{number}"
        siblings = _numbers(folder / "topology/thread_siblings_list")
        cores[number] = number
        if number in siblings:
            cores[number] = min(siblings)
        capacities[number] = max(_numbers(folder / "cpu_capacity"), default=0)
    # Intel's hybrids list their performance cores. Capacities may be missing there, or differ
    # less than the cores do.
    performance_cores = _numbers(devices / "cpu_core/cpus")
    # ARM's little cores have less than half of the largest capacity. The middle cores of chips
    # with a prime core have more, and are worth using. Without capacities, all count as fast.
    largest = max(capacities.values(), default=0)
    processors = []
    for number, core in sorted(cores.items()):
        is_efficient = 0 < capacities[number] < largest / 2
        if performance_cores:
            is_efficient = number not in performance_cores
        processors.append(Processor(number, core, is_efficient))
    return processors


def _numbers(path: Path) -> set[int]:
    """The numbers in a file such as "0-3,8"; none if it cannot be read."""
    numbers: set[int] = set()
    try:
        for part in "".join(_lines(path)).split(","):
            first, dash, last = part.partition("-")
            if not dash:
                last = first
            numbers.update(range(int(first), int(last) + 1))
    except ValueError:
        return set()
    return numbers


def mac_processors(sysctl: Callable[[str], int | None]) -> list[Processor]:
    """The processors of a Mac.

    Cores are in performance levels, of which level 0 is the fastest. Intel's Macs have no
    levels, so all their cores count as fast.

    Args:
        sysctl: Gives the system's number for a name; None if it has none.
    """
    num_levels = sysctl("hw.nperflevels") or 0
    prefixes = [f"hw.perflevel{level}." for level in range(num_levels)]
    if not prefixes:
        prefixes = ["hw."]
    processors: list[Processor] = []
    num_cores = 0
    for level, prefix in enumerate(prefixes):
        physical = sysctl(f"{prefix}physicalcpu") or 0
        logical = sysctl(f"{prefix}logicalcpu") or 0
        if physical == 0:
            continue
        for index in range(logical):
            core = num_cores + index % physical
            processors.append(Processor(len(processors), core, level > 0))
        num_cores += physical
    return processors


def _sysctl(name: str) -> int | None:
    """A number that macOS has under a name; None if it has none."""
    value = ctypes.c_int32()
    size = ctypes.c_size_t(ctypes.sizeof(value))
    sysctlbyname = ctypes.CDLL(None).sysctlbyname
    status = sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    if status != 0:
        return None
    return value.value


def windows_processors(cores: bytes) -> list[Processor]:
    """The processors that Windows describes. A higher efficiency class is a faster kind.

    Args:
        cores: A SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX of each core, in a row.
    """
    described: list[tuple[int, int, int]] = []  # number, core, efficiency class
    fastest_class = 0
    start = 0
    core = 0
    while start + _CORE.size <= len(cores):
        _, size, efficiency_class, num_groups = _CORE.unpack_from(cores, start)
        for index in range(num_groups):
            group_start = start + _CORE.size + index * _GROUP.size
            mask, group = _GROUP.unpack_from(cores, group_start)
            for bit in range(_GROUP_SIZE):
                is_set = mask >> bit & 1
                if is_set:
                    number = _GROUP_SIZE * group + bit
                    described.append((number, core, efficiency_class))
                    fastest_class = max(fastest_class, efficiency_class)
        core += 1
        start += max(size, _CORE.size)
    processors = []
    for number, core, efficiency_class in sorted(described):
        is_efficient = efficiency_class < fastest_class
        processors.append(Processor(number, core, is_efficient))
    return processors


def _windows_cores() -> bytes:
    """Windows' description of its cores, for `windows_processors`.

    Empty if Windows gives none, and on other systems.
    """
    if sys.platform == "win32":
        describe = ctypes.WinDLL("kernel32").GetLogicalProcessorInformationEx
        cores_alone = 0  # RelationProcessorCore
        size = ctypes.c_uint32()
        describe(cores_alone, None, ctypes.byref(size))  # fails, and sets the size it needs
        buffer = ctypes.create_string_buffer(size.value)
        if describe(cores_alone, buffer, ctypes.byref(size)):
            return buffer.raw[: size.value]
    return b""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processor time that control groups allow this process, in cores; None without a limit.

    The tightest limit of its own groups and of all visible groups above them, of both versions
    of control groups.

    Args:
        root: The folder below which proc and sys are read.
    """
    quotas = []
    for group in _groups(root, "cpu"):
        quota = _quota(group)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


class MemoryLimit(NamedTuple):
    """A control group's limit of main memory."""

    limit: int
    """Bytes that all processes of the group may use together."""

    used: int
    """Bytes in use, without those that the system can drop."""


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Limits of this process's control groups and of all visible groups above them.

    Of both versions of control groups. A group without a limit is left out, or has a limit of
    more than any machine has.

    Args:
        root: The folder below which proc and sys are read.
    """
    limits = []
    for group in _groups(root, "memory"):
        limit = _memory_limit(group)
        if limit is not None:
            limits.append(limit)
    return limits


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups that limit this process: its own and all above it.

    Args:
        root: The folder below which proc and sys are read.
        controller: What the groups limit: "cpu" or "memory".
    """
    paths: dict[str, str] = {}  # of this process's groups, by controller
    for line in _lines(root / "proc/self/cgroup"):
        member = _MEMBERSHIP.fullmatch(line)
        if member is not None:
            for name in member[1].split(","):
                paths[name] = member[2]
    for line in _lines(root / "proc/self/mountinfo"):
        mount = _MOUNT.fullmatch(line)
        if mount is None:
            continue
        mounted, mount_point, kind, options = mount.groups()
        name = ""  # version 2 has one tree for all controllers
        if kind == "cgroup":  # version 1 has a tree for each
            if controller not in options.split(","):
                continue
            name = controller
        if name in paths:
            top = root / mount_point.removeprefix("/")
            group = _path_in_mount(PurePosixPath(paths[name]), PurePosixPath(mounted))
            yield top / group
            for folder in group.parents:
                yield top / folder


def _path_in_mount(path: PurePosixPath, mounted: PurePosixPath) -> PurePosixPath:
    """The path of a group relative to the mounted part of the tree.

    Empty, the path of the mount's top, if the group is not in that part: a container may see
    its own group as the top, while the path is that of the host.
    """
    if path.is_relative_to(mounted) and ".." not in path.parts:
        return path.relative_to(mounted)
    return PurePosixPath()


def _quota(group: Path) -> float | None:
    """Processor time that one group may use, in cores; None without a limit.

    Args:
        group: The group's folder.
    """
    words = " ".join(_lines(group / "cpu.max")).split()
    if not words:  # version 1
        words = [*_lines(group / "cpu.cfs_quota_us"), *_lines(group / "cpu.cfs_period_us")]
    try:
        quota_us, period_us = map(int, words)  # "max" or -1 without a limit
    except ValueError:
        return None
    if min(quota_us, period_us) > 0:
        return quota_us / period_us
    return None


def _memory_limit(group: Path) -> MemoryLimit | None:
    """The memory limit of one group; None without one. Version 1 then has a huge limit.

    Args:
        group: The group's folder.
    """
    counts = {}
    for line in _lines(group / "memory.stat"):
        name, _, count = line.partition(" ")
        counts[name] = count
    # The files of both versions, and what names in memory.stat begin with.
    for limit_file, usage_file, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        limit_lines = _lines(group / limit_file)
        usage_lines = _lines(group / usage_file)
        if not (limit_lines and usage_lines):
            continue
        try:
            limit = int(limit_lines[0])  # "max" without a limit
            usage = int(usage_lines[0])
            reclaimable = 0
            for name in _RECLAIMABLE:
                reclaimable += int(counts.get(prefix + name, "0"))
        except ValueError:
            continue
        return MemoryLimit(limit=limit, used=max(usage - reclaimable, 0))
    return None


def _lines(path: Path) -> list[str]:
    """The lines of a text file; none if it cannot be read, or does not exist."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
