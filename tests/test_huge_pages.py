"""Weights that libllama stores itself lie in large pages, and nobody else's memory does."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from gguf_maker import write_random_model
from localspec.huge_pages import Region, asking_for_huge_pages, without
from localspec.llama import LlamaModel
from localspec.llama_options import LlamaOptions

MIB = 1 << 20
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
where_they_are = pytest.mark.skipif(
    not SETTING.exists(), reason="no transparent huge pages here"
)


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


@pytest.fixture(scope="module")
def large_model(tmp_path_factory, demo_target) -> Path:
    """Its weights are too large for what the C heap keeps of freed memory, up to 32 MiB."""
    path = tmp_path_factory.mktemp("models") / "large.gguf"
    return write_random_model(path, demo_target, width=2048, num_layers=2, quantization="Q4_0")


@where_they_are
@pytest.mark.parametrize("use_mmap", [True, False])
def test_they_are_asked_for_a_models_weights_and_nothing_else(large_model, use_mmap):
    before = asked_for()
    with private_memory(32 * MIB):
        model = LlamaModel.open(large_model, LlamaOptions(context_length=64, use_mmap=use_mmap))
        num_bytes = sum(end - start for start, end in asked_for() - before)
        # With the file mapped, only what is stored anew.
        assert 0.5 * model.num_weight_bytes <= num_bytes <= 1.2 * model.num_weight_bytes
        model.close()
    assert asked_for() <= before


@where_they_are
def test_it_is_done_once_and_the_progress_goes_on():
    told: list[float] = []
    report = asking_for_huge_pages(told.append)
    before = asked_for()
    with private_memory(32 * MIB):
        report(0.0)
        assert sum(end - start for start, end in asked_for() - before) >= 32 * MIB
    with private_memory(64 * MIB):
        report(0.5)
        assert asked_for() <= before
    assert told == [0.0, 0.5]


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], [(10, 20)]),
        ([(0, 10), (20, 30)], [(10, 20)]),
        ([(10, 20)], []),
        ([(0, 30)], []),
        ([(0, 12), (14, 15), (18, 40)], [(12, 14), (15, 18)]),
    ],
)
def test_what_was_there_before_is_left_out(others, left):
    assert without(Region(10, 20), [Region(*other) for other in others]) == left
