"""This machine's memory and cores."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

_CONTROL_GROUP = Path("/sys/fs/cgroup")  # of a container, if we are in one


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory in bytes. available: what a program can take before others are swapped."""

    total_bytes: int
    available_bytes: int


def memory_here(control_group: Path = _CONTROL_GROUP) -> Memory:
    """The machine's memory, or what a container leaves of it."""
    found = psutil.virtual_memory()
    memory = Memory(found.total, found.available)
    try:
        limit = int((control_group / "memory.max").read_text())
        used = int((control_group / "memory.current").read_text())
        counts = (control_group / "memory.stat").read_text().split()
    except (OSError, ValueError):  # no such group, or "max"
        return memory
    # Cached files are given up when a program needs their place.
    used -= int(dict(zip(counts[::2], counts[1::2], strict=False)).get("inactive_file", "0"))
    return Memory(
        min(memory.total_bytes, limit), min(memory.available_bytes, max(0, limit - used))
    )


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor cores. usable: logical ones that this process may run on."""

    physical: int | None
    logical: int
    usable: int


def cores_here() -> Cores:
    """The machine's cores; how many are physical is not known everywhere."""
    return Cores(psutil.cpu_count(logical=False), os.cpu_count() or 1, num_usable_cores())


def num_usable_cores() -> int:
    """Cores this process may run on. More threads than that wait for each other."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """The most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # where ru_maxrss still counts the parent process
        lines = status.read_text(encoding="utf-8").splitlines()
        peaks = [line.split()[1] for line in lines if line.startswith("VmHWM")]
        if peaks:
            return int(peaks[0]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # absent on Windows

    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # macOS: in bytes
