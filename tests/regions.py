"""Regions of a process's memory, and which of them large pages were asked for.

Apart from the tests, since a spawned process has to be able to import it by name.
"""

from __future__ import annotations

import mmap
from multiprocessing.connection import Connection
from pathlib import Path

from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions

MIB = 1 << 20


def private_memory(size: int) -> mmap.mmap:
    """As malloc takes it for large blocks."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def asked_for() -> set[tuple[int, int]]:
    """Start and end of every region for which huge pages were asked."""
    regions = set()
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first, *others = line.split()
            if "-" in first and not first.endswith(":"):
                start, end = (int(address, 16) for address in first.split("-"))
            elif first == "VmFlags:" and "hg" in others:
                regions.add((start, end))
    return regions


def size_of(regions: set[tuple[int, int]]) -> int:
    return sum(end - start for start, end in regions)


def load(connection: Connection, path: Path, use_mmap: bool) -> None:
    """Send the bytes of the weights, and those for which large pages were asked.

    Runs in a process of its own, whose C heap has no large blocks left over from others.
    """
    before = asked_for()
    with private_memory(32 * MIB):
        model = LlamaModel.open(path, LlamaOptions(context_length=64, use_mmap=use_mmap))
        connection.send((model.num_weight_bytes, size_of(asked_for() - before)))
        model.close()
