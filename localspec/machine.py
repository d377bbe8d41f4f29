"""This machine's memory and cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import psutil

from localspec.control_groups import cpu_quota, memory_limits
from localspec.processors import Processor, processors_here


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory in bytes. available: what a program can use without swapping others out."""

    total_bytes: int
    available_bytes: int


def memory_here(root: Path = Path("/")) -> Memory:
    """The machine's memory, or what its control groups, as a container's, leave of it."""
    found, limits = psutil.virtual_memory(), memory_limits(root)
    return Memory(
        min([found.total, *(each.limit for each in limits)]),
        min([found.available, *(max(0, each.limit - each.used) for each in limits)]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The machine's processor cores, and those that a model should use.

    physical: None where the system does not say. logical: including hyperthreads. allowed:
    logical cores that this process may run on. efficiency: those of them on power-saving cores,
    beside faster ones. hyperthreads: second threads of the other cores. quota: cores' worth of
    time that control groups allow, or None. usable: at least 1.
    """

    physical: int | None
    logical: int
    allowed: int
    efficiency: int
    hyperthreads: int
    quota: float | None
    usable: int

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


def count_cores(
    processors: Sequence[Processor], allowed: Set[int], quota: float | None
) -> Cores:
    """One thread for each fast core that the process may run on, within its quota.

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
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    if sys.platform == "win32":
        try:
            allowed: list[int] = psutil.Process().cpu_affinity()
            return set(allowed)
        except (psutil.Error, OSError):  # where there are several groups of processors
            pass
    return set(range(os.cpu_count() or 1))


def num_busy_cores() -> float:
    """How many of the allowed cores programs use now. It looks for 0.2 s."""
    shares, allowed = psutil.cpu_percent(0.2, percpu=True), _allowed()
    return sum(share for number, share in enumerate(shares) if number in allowed) / 100


def peak_memory_bytes() -> int:
    """The most memory that this process has used, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where ru_maxrss includes the parent process
        lines = status.read_text(encoding="utf-8").splitlines()
        peaks = [line.split()[1] for line in lines if line.startswith("VmHWM")]
        if peaks:
            return int(peaks[0]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # absent on Windows

    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # macOS: in bytes
