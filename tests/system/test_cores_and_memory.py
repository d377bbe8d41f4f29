"""Which cores and how much memory a model may use, told from the files of machines as sold."""

from __future__ import annotations

import struct
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from localspec.system import machine
from localspec.system.machine import (
    cores_here,
    count_cores,
    cpu_quota,
    linux_processors,
    mac_processors,
    memory_here,
    memory_limits,
    num_usable_cores,
    windows_processors,
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def write_processors(root: Path, siblings: list[str], capacities: tuple[int, ...] = ()) -> None:
    """siblings: for each processor the list of those on its core, as Linux writes it."""
    folder = "sys/devices/system/cpu"
    write(root, {f"{folder}/online": f"0-{len(siblings) - 1}"})
    for number, text in enumerate(siblings):
        write(root, {f"{folder}/cpu{number}/topology/thread_siblings_list": text})
    for number, capacity in enumerate(capacities):
        write(root, {f"{folder}/cpu{number}/cpu_capacity": str(capacity)})


def usable(root: Path, allowed: set[int]) -> int:
    return count_cores(linux_processors(root), allowed, cpu_quota(root)).usable


EIGHT = [str(n) for n in range(8)]
# Siblings and capacities of each processor. Second threads are numbered last on the laptop, and
# beside the first ones on the performance cores of an Alder Lake.
MACHINES = {
    "laptop": (["0,2", "1,3", "0,2", "1,3"], ()),
    "Alder Lake": (["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"], ()),
    "RK3588": (EIGHT, (414,) * 4 + (1024,) * 4),
    "phone": (EIGHT, (290,) * 4 + (780,) * 3 + (1024,)),
    "one that says little": (["0", "1"], ()),
}


@pytest.mark.parametrize(
    ("machine", "allowed", "expected"),
    [
        ("laptop", {0, 1, 2, 3}, 2),
        ("laptop", {0, 2}, 1),
        ("Alder Lake", set(range(8)), 2),
        ("Alder Lake", {0, 1, 4}, 1),
        ("Alder Lake", {4, 5, 6, 7}, 4),
        ("RK3588", set(range(8)), 4),
        ("RK3588", {0, 1, 2, 3}, 4),
        ("phone", set(range(8)), 4),
        ("one that says little", {0, 1, 64}, 3),
    ],
)
def test_each_fast_core_that_is_allowed_counts_once(machine, allowed, expected, tmp_path):
    write_processors(tmp_path, *MACHINES[machine])
    if machine == "Alder Lake":
        write(tmp_path, {"sys/devices/cpu_core/cpus": "0-3"})
        cores = count_cores(linux_processors(tmp_path), set(range(7)), 1.5)
        assert (cores.physical, cores.logical, cores.allowed) == (6, 8, 7)
        assert (cores.efficiency, cores.hyperthreads) == (3, 2)
        assert (cores.quota, cores.usable) == (1.5, 1)
    assert usable(tmp_path, allowed) == expected


MOUNT = "35 24 0:30 {} {} rw,nosuid shared:9 - {}"
VERSION_2 = "cgroup2 cgroup2 rw,nsdelegate"
VERSION_1 = "cgroup cgroup rw,cpu,cpuacct"
TOP = MOUNT.format("/", "/sys/fs/cgroup", VERSION_2)
# Docker of version 1: the container's group is what is mounted; its path is that of the host.
DOCKER_1 = MOUNT.format("/docker/0123", "/sys/fs/cgroup/cpu,cpuacct", VERSION_1)


def write_groups(root: Path, path: str, mount: str, files: dict[str, str]) -> None:
    write(root, {"proc/self/cgroup": path, "proc/self/mountinfo": mount})
    write(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


@pytest.mark.parametrize(
    ("path", "mount", "files", "quota", "expected"),
    [
        ("0::/", TOP, {"cpu.max": "150000 100000"}, 1.5, 1),
        ("0::/", TOP, {"cpu.max": "20000 100000"}, 0.2, 1),
        (
            "0::/user.slice/app.slice/chat.scope", TOP,
            {
                "user.slice/cpu.max": "600000 100000",
                "user.slice/app.slice/cpu.max": "75000 25000",
                "user.slice/app.slice/chat.scope/cpu.max": "max 100000",
                "user.slice/app.slice/other.scope/cpu.max": "10000 100000",
            }, 3.0, 3,
        ),
        (
            "5:cpuset:/docker/0123\n4:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123",
            DOCKER_1,
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "200000",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
            }, 2.0, 2,
        ),
        (
            "1:cpu:/", MOUNT.format("/", "/sys/fs/cgroup/cpu", VERSION_1),
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, 8,
        ),
        # The path of another namespace cannot be seen from here; what is mounted can.
        (
            "0::/../cgroup_of_others", TOP,
            {"cpu.max": "300000 100000", "../cgroup_of_others/cpu.max": "1000 100000"}, 3.0, 3,
        ),
    ],
)  # fmt: skip
def test_the_tightest_group_bounds_the_threads(path, mount, files, quota, expected, tmp_path):
    write_groups(tmp_path, path, mount, files)
    assert cpu_quota(tmp_path) == quota
    assert usable(tmp_path, set(range(8))) == expected
    assert usable(tmp_path, {0, 5}) == min(expected, 2)


@pytest.mark.parametrize("text", ["", "fast 100000", "100000", "100000 0", "-5 100000"])
def test_a_malformed_quota_bounds_nothing(text, tmp_path):
    write_groups(tmp_path, "0::/", TOP, {"cpu.max": text})
    assert cpu_quota(tmp_path) is None
    write(tmp_path, {"proc/self/mountinfo": "what\n::\n - cgroup2\n1 2 3 / - cgroup2 x"})
    assert cpu_quota(tmp_path) is None
    (tmp_path / "proc/self/cgroup").write_bytes(b"\xff\xfe")
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("says", "expected", "logical"),
    [
        ({"hw.nperflevels": 2, "hw.perflevel0.physicalcpu": 4, "hw.perflevel0.logicalcpu": 4,
          "hw.perflevel1.physicalcpu": 6, "hw.perflevel1.logicalcpu": 6}, 4, 10),
        ({"hw.physicalcpu": 6, "hw.logicalcpu": 12}, 6, 12),
        ({}, 8, 8),
    ],
)  # fmt: skip
def test_a_mac_has_its_performance_cores(says, expected, logical):
    cores = count_cores(mac_processors(says.get), set(range(logical)), None)
    assert cores.usable == expected


def windows_core(efficiency_class: int, mask: int, group: int = 0) -> bytes:
    head = struct.pack("<IIBB20xH", 0, 48, int(mask.bit_count() > 1), efficiency_class, 1)
    return head + struct.pack("<QH6x", mask, group)


def test_windows_has_its_fastest_class():
    cores = [windows_core(1, 0b11), windows_core(1, 0b1100), windows_core(0, 1 << 4)]
    found = windows_processors(b"".join(cores))
    assert count_cores(found, set(range(5)), None).usable == 2
    assert windows_processors(b"") == []
    [far] = windows_processors(windows_core(0, 1 << 3, group=1))
    assert (far.number, far.is_efficient) == (67, False)


def test_this_machine_has_one_at_least():
    cores = cores_here()
    assert 1 <= num_usable_cores() == cores.usable <= cores.allowed <= cores.logical


NESTED_MEMORY = {
    "memory.max": "max",
    "app.slice/memory.max": "4000000",
    "app.slice/memory.current": "3000000",
    "app.slice/memory.stat": "anon 500000\nshmem 250000\ninactive_file 500000\n"
    "active_file 1250000\nslab_reclaimable 250000",
    "app.slice/chat.scope/memory.max": "max",
}
MEMORY_1 = {
    "memory/memory.limit_in_bytes": "3000000",
    "memory/memory.usage_in_bytes": "1500000",
    "memory/memory.stat": "inactive_file 7\nactive_file 9\ntotal_inactive_file 100000\n"
    "total_active_file 400000",
}
MOUNT_1 = MOUNT.format("/docker/0123", "/sys/fs/cgroup/memory", "cgroup cgroup rw,memory")


@pytest.mark.parametrize(
    ("path", "mount", "files", "available"),
    [
        ("0::/app.slice/chat.scope", TOP, NESTED_MEMORY, 3_000_000),
        ("3:memory:/docker/0123\n0::/", MOUNT_1, MEMORY_1, 2_000_000),
    ],
    ids=["a slice", "version 1"],
)
def test_there_is_as_much_memory_as_the_tightest_group_leaves(
    tmp_path, path, mount, files, available
):
    """A server in a container that counted the machine's would be killed for what it keeps."""
    write_groups(tmp_path, path, mount, files)
    memory = memory_here(tmp_path)
    (limit,) = memory_limits(tmp_path)
    assert memory.total_bytes == limit.limit
    assert memory.available_bytes == limit.limit - limit.used == available


@pytest.mark.parametrize("word", ["max", "9223372036854771712", "", "-", "1\n2"])
def test_without_a_limit_the_memory_is_the_machines(tmp_path, word):
    stat = "inactive_file\n\nanon 3"
    files = {"memory.max": word, "memory.current": "5", "memory.stat": stat}
    write_groups(tmp_path, "0::/", TOP, files)
    assert memory_here(tmp_path).total_bytes == psutil.virtual_memory().total


def test_the_cores_of_others_are_seen_without_this_process(monkeypatch):
    """Two of three allowed cores compute, one of them for this process."""
    Times = namedtuple("Times", "user system nice")
    now = [100.0, Times(50.0, 5.0, 0.0), Times(1.0, 0.0, 0.0)]  # a core, and this process

    def of_cores(percpu):
        busy, idle = now[1], Times(7.0, 0.0, 0.0)
        mine = Times(now[2].user + 3.0, 0.0, 0.0)
        return [busy, mine, idle, Times(9.0 * now[0], 0.0, 0.0)]

    monkeypatch.setattr(machine, "_allowed_processors", lambda: {0, 1, 2})
    monkeypatch.setattr(machine.psutil, "cpu_times", of_cores)
    monkeypatch.setattr(machine.psutil.Process, "cpu_times", lambda _: now[2])
    monkeypatch.setattr(machine.time, "monotonic", lambda: now[0])
    others = machine.OtherPrograms()
    assert others.num_free_cores() is None  # no time has passed
    now[:] = [102.0, Times(51.5, 5.4, 0.0), Times(3.0, 0.0, 0.0)]
    assert others.num_free_cores() == 2
    now[0] = 104.0
    assert others.num_free_cores() == 3  # since then
