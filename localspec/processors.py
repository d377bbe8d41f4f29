"""This machine's logical processors, as its system describes them."""

from __future__ import annotations

import ctypes
import logging
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Processor:
    """A logical processor.

    number: the system's own. core: the same for hyperthreads of one core. is_efficient: whether
    it is on a power-saving core, clearly slower than the machine's fast ones.
    """

    number: int
    core: int
    is_efficient: bool


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
        # Half is between ARM's little cores and the middle ones beside a prime core, which are
        # worth using. Without capacities, all count as fast.
        most = max(capacities.values(), default=0)
        efficient = {number for number, one in capacities.items() if 0 < one < most / 2}
    return [
        Processor(number, core, number in efficient) for number, core in sorted(cores.items())
    ]


def _numbers(path: Path) -> set[int]:
    """The numbers in a file like "0-3,8"; none if it cannot be read."""
    numbers: set[int] = set()
    try:
        for part in path.read_text(encoding="ascii").strip().split(","):
            first, dash, last = part.partition("-")
            numbers |= set(range(int(first), int(last if dash else first) + 1))
    except FileNotFoundError:
        return set()
    except (OSError, ValueError) as error:
        logger.debug("%s is left out: %s", path, error)
        return set()
    return numbers


def mac_processors(sysctl: Callable[[str], int | None]) -> list[Processor]:
    """Processors of a Mac. Level 0 has the performance cores; Intel's Macs have no levels.

    sysctl: gives the value of a name, or None.
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
    return None if failed else value.value


_CORE = struct.Struct("<IIxB20xH")  # relationship, size, efficiency class, number of groups
_GROUP = struct.Struct("<QH6x")  # bit mask of the core's processors in a group, its number


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
        room = ctypes.create_string_buffer(size.value)
        if call(0, room, ctypes.byref(size)):
            return room.raw[: size.value]
    return b""
