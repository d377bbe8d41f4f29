"""This machine's memory and cores, as far as control groups (containers) allow their use."""

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
# The mounted part of the tree, its mount point, the type, and the options with the controllers.
_MOUNT = re.compile(r"\S+ \S+ \S+ (/\S*) (/\S*) .* - (cgroup2?) \S+ (\S+)")
# Memory that the system drops when a program needs it, as in its MemAvailable: pages of files
# (without shared memory), and its own caches.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
_SHORTEST_WATCH_S = 0.1  # the system counts hundredths of a second
_CORE = struct.Struct("<IIxB20xH")  # relationship, size, efficiency class, number of groups
_GROUP = struct.Struct("<QH6x")  # bit mask of the core's processors in a group, its number


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory."""

    total_bytes: int

    available_bytes: int
    """Bytes that a program can use without swapping others out."""


def memory_here(root: Path = Path("/")) -> Memory:
    """The machine's memory, or the part that control groups, such as a container's, allow."""
    memory = psutil.virtual_memory()
    total_bytes = memory.total
    available_bytes = memory.available
    for group in memory_limits(root):
        total_bytes = min(total_bytes, group.limit)
        available_bytes = min(available_bytes, max(0, group.limit - group.used))
    return Memory(total_bytes, available_bytes)


def memory_of_process(number: int) -> int:
    """A process's own memory in bytes, without mapped files; 0 if the process is gone."""
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
    """None if the system does not say."""

    logical: int
    """Including hyperthreads."""

    allowed: int
    """Logical cores that this process may run on."""

    efficiency: int
    """Power-saving cores, if there are faster ones."""

    hyperthreads: int
    """Second threads of the other cores."""

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
    return count_cores(processors_here(), _allowed(), cpu_quota())


def num_usable_cores() -> int:
    """The number of threads to compute with; more would wait for each other."""
    return cores_here().usable


def last_cache_bytes(root: Path = Path("/")) -> int:
    """The size of a processor's last cache, or a usual size if the system does not say it."""
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
    """Count a thread for each fast core that the process may run on, within its quota.

    As llama.cpp counts: all threads wait for the slowest one, hyperthreads share arithmetic
    units, and power-saving cores delay the others. Allowed numbers that no processor has count
    as cores. The quota is rounded down: with more threads it is spent before its period ends,
    and then all threads stop until the next period, in the middle of a step.
    """
    usable = [processor for processor in processors if processor.number in allowed]
    fast = [processor for processor in usable if not processor.is_efficient]
    efficiency = len(usable) - len(fast)
    if efficiency == len(allowed):  # there are no faster ones
        fast = usable
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
    """The number of different cores of some processors."""
    return len({processor.core for processor in processors})


def _allowed() -> Set[int]:
    """Numbers of the processors that this process may run on."""
    try:  # not on a Mac, nor where Windows has several groups of processors
        return set(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error, OSError):
        return set(range(os.cpu_count() or 1))


def num_busy_cores() -> float:
    """How many of the allowed cores programs use now, measured for 0.2 s."""
    shares = psutil.cpu_percent(0.2, percpu=True)
    allowed = _allowed()
    percent = 0.0
    for number, share in enumerate(shares):
        if number in allowed:
            percent += share
    return percent / 100


class OtherPrograms:
    """Measures how much of the allowed cores other programs use."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._used_before_s = _used_by_others_s()

    def num_free_cores(self) -> int | None:
        """How many of the allowed cores they have left free since the last call, rounded.

        None if that time is too short for the system's clock; measuring continues.
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
    """Seconds for which other processes have computed on the allowed cores."""
    allowed = _allowed()
    used_s = 0.0
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        if number in allowed:
            used_s += times.user + times.system + getattr(times, "nice", 0.0)
    own = psutil.Process().cpu_times()
    return float(used_s - own.user - own.system)


def peak_memory_bytes() -> int:
    """The most memory that this process has used, in bytes."""
    # On Linux ru_maxrss includes the parent process, so this line is read instead.
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
    """The system's number."""

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
    """The processors that are online, as described below root/sys."""
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
    fast = _numbers(devices / "cpu_core/cpus")
    # Half of the most is between ARM's little cores and the middle cores of chips with a prime
    # core, which are worth using. Without capacities, all count as fast.
    most = max(capacities.values(), default=0)
    processors = []
    for number, core in sorted(cores.items()):
        is_efficient = 0 < capacities[number] < most / 2
        if fast:
            is_efficient = number not in fast
        processors.append(Processor(number, core, is_efficient))
    return processors


def _numbers(path: Path) -> set[int]:
    """The numbers in a file like "0-3,8"; none if it cannot be read."""
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
    """Processors of a Mac. Level 0 has the performance cores; Intel's Macs have no levels.

    Args:
        sysctl: Gives the value of a name, or None.
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
    known: list[tuple[int, int, int]] = []  # number, core, efficiency class
    fastest = 0
    start = 0
    num_cores = 0
    while start + _CORE.size <= len(cores):
        _, size, efficiency_class, num_groups = _CORE.unpack_from(cores, start)
        for index in range(num_groups):
            mask, group = _GROUP.unpack_from(cores, start + _CORE.size + index * _GROUP.size)
            for bit in range(64):
                if mask >> bit & 1:
                    known.append((64 * group + bit, num_cores, efficiency_class))
                    fastest = max(fastest, efficiency_class)
        num_cores += 1
        start += max(size, _CORE.size)
    processors = []
    for number, core, efficiency_class in sorted(known):
        processors.append(Processor(number, core, efficiency_class < fastest))
    return processors


def _windows_cores() -> bytes:
    """Windows' description of its cores; empty if it gives none, and on other systems."""
    if sys.platform == "win32":
        call = ctypes.WinDLL("kernel32").GetLogicalProcessorInformationEx
        of_cores = 0  # RelationProcessorCore
        size = ctypes.c_uint32()
        call(of_cores, None, ctypes.byref(size))  # fails, and sets the size that it needs
        buffer = ctypes.create_string_buffer(size.value)
        if call(of_cores, buffer, ctypes.byref(size)):
            return buffer.raw[: size.value]
    return b""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """How many processors' time this process may use, or None without a limit.

    The tightest limit of its own control groups and of all visible groups above them, of both
    versions. Read below root.
    """
    quotas = []
    for group in _groups(root, "cpu"):
        quota = _quota(group)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


class MemoryLimit(NamedTuple):
    """A group's limit of main memory, and the bytes in use that it cannot drop."""

    limit: int
    used: int


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Limits of this process's groups and of all visible groups above, of both versions.

    A group without a limit is left out, or states more than any machine has. Read below root.
    """
    limits = []
    for group in _groups(root, "memory"):
        limit = _memory_limit(group)
        if limit is not None:
            limits.append(limit)
    return limits


def _groups(root: Path, resource: str) -> Iterator[Path]:
    """Folders of the control groups that limit this process: its own and all above it."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        member = _MEMBERSHIP.fullmatch(line)
        if member is not None:
            for controller in member[1].split(","):
                paths[controller] = member[2]
    for line in _lines(root / "proc/self/mountinfo"):
        mount = _MOUNT.fullmatch(line)
        if mount is None:
            continue
        controller = ""  # version 2 has one tree, and names no controllers
        if mount[3] == "cgroup":
            controller = resource
        if controller in paths and controller in ("", *mount[4].split(",")):
            top = root / mount[2].removeprefix("/")
            inside = _inside(PurePosixPath(paths[controller]), PurePosixPath(mount[1]))
            yield top / inside
            for folder in inside.parents:
                yield top / folder


def _inside(path: PurePosixPath, mounted: PurePosixPath) -> PurePosixPath:
    """The path of a group within a mount; empty if the group is not below it.

    A container may see its own group as the top, while the path is that of the host.
    """
    if path.is_relative_to(mounted) and ".." not in path.parts:
        return path.relative_to(mounted)
    return PurePosixPath()


def _quota(group: Path) -> float | None:
    """How many processors' time one group may use, or None."""
    words = " ".join(_lines(group / "cpu.max")).split()
    if not words:  # version 1
        words = [*_lines(group / "cpu.cfs_quota_us"), *_lines(group / "cpu.cfs_period_us")]
    try:
        quota_us, period_us = (int(word) for word in words)  # "max" or -1 without a quota
    except ValueError:
        return None
    if min(quota_us, period_us) > 0:
        return quota_us / period_us
    return None


def _memory_limit(group: Path) -> MemoryLimit | None:
    """The limit of one group, or None."""
    counts = {}
    for line in _lines(group / "memory.stat"):
        name, _, count = line.partition(" ")
        counts[name] = count
    for limit, usage, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        dropped = [counts.get(prefix + kind, "0") for kind in _RECLAIMABLE]
        words = [*_lines(group / limit), *_lines(group / usage), *dropped]
        if len(words) < 2 + len(dropped) or words[0] == "max":
            continue
        try:
            numbers = [int(word) for word in words]
        except ValueError:
            continue
        reclaimable = sum(numbers[2:])
        return MemoryLimit(limit=numbers[0], used=max(numbers[1] - reclaimable, 0))
    return None


def _lines(path: Path) -> list[str]:
    """The lines of a text file; none if it cannot be read, as on systems without groups."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
