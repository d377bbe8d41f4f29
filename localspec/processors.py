"""Which logical processors this machine has, and what they are, as its system says."""

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

    number: the system's own. core: hyperthreads of one core have the same. is_efficient: its
    core is of a kind made to save power, clearly slower than the machine's fast ones.
    """

    number: int
    core: int
    is_efficient: bool


def processors_here() -> list[Processor]:
    """This machine's processors; none where the system does not say."""
    if sys.platform == "win32":
        return windows_processors(_windows_cores())
    if sys.platform == "darwin":
        return mac_processors(_sysctl)
    return linux_processors(Path("/"))


def linux_processors(root: Path) -> list[Processor]:
    """Those that are online, as the tree below root/sys describes them."""
    devices = root / "sys/devices"
    cores: dict[int, int] = {}
    capacities: dict[int, int] = {}
    for number in _numbers(devices / "system/cpu/online"):
        folder = devices / f"system/cpu/cpu{number}"
        siblings = _numbers(folder / "topology/thread_siblings_list")
        cores[number] = min(siblings) if number in siblings else number
        capacities[number] = max(_numbers(folder / "cpu_capacity"), default=0)
    # Intel's hybrids: what counts the events of their performance cores. They may be without
    # capacities, and with them the difference is smaller than what llama.cpp makes of it.
    fast = _numbers(devices / "cpu_core/cpus")
    if fast:
        efficient = cores.keys() - fast
    else:
        # Half lies between the little cores of ARM's designs and the middle ones beside a prime
        # core, which are worth having. Where no capacity is told, all are taken for fast.
        most = max(capacities.values(), default=0)
        efficient = {number for number, one in capacities.items() if 0 < one < most / 2}
    return [
        Processor(number, core, number in efficient) for number, core in sorted(cores.items())
    ]


def _numbers(path: Path) -> set[int]:
    """What a file like "0-3,8" lists; nothing where it cannot be read."""
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
    """Level 0 is that of the performance cores; Intel's Macs have no levels.

    sysctl: the number that a name stands for, or None.
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
_GROUP = struct.Struct(
    "<QH6x"
)  # which processors of a group are the core's; the group's number


def windows_processors(cores: bytes) -> list[Processor]:
    """Of SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX, one after the other, all of them cores.

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
    """What Windows says of its cores; nothing where it does not."""
    if sys.platform == "win32":
        call = ctypes.WinDLL("kernel32").GetLogicalProcessorInformationEx
        size = ctypes.c_uint32()
        call(0, None, ctypes.byref(size))  # fails, and says how much room it takes
        room = ctypes.create_string_buffer(size.value)
        if call(0, room, ctypes.byref(size)):
            return room.raw[: size.value]
    return b""
