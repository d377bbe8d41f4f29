"""Weights that libllama stores itself lie in large pages, and nobody else's memory does."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from gguf_maker import write_random_model
from localspec.llama.quirks.huge_pages import Region, asking_for_huge_pages, without
from regions import MIB, asked_for, load, private_memory, size_of

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
where_they_are = pytest.mark.skipif(
    not SETTING.exists(), reason="no transparent huge pages here"
)


@pytest.mark.process
@where_they_are
def test_they_are_asked_for_a_models_weights_and_nothing_else(tmp_path, demo_target):
    path = write_random_model(
        tmp_path / "model.gguf", demo_target, width=2048, num_layers=2, quantization="Q4_0"
    )
    spawning = multiprocessing.get_context("spawn")
    for use_mmap in (True, False):
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=load, args=(theirs, path, use_mmap))
        process.start()
        theirs.close()
        num_weight_bytes, num_bytes = ours.recv()
        process.join()
        # With the file mapped, only what is repacked.
        assert 0.5 * num_weight_bytes <= num_bytes <= 1.2 * num_weight_bytes


@where_they_are
def test_it_is_done_once_and_the_progress_goes_on():
    told: list[float] = []
    report = asking_for_huge_pages(told.append)
    before = asked_for()
    with private_memory(32 * MIB):
        report(0.0)
        assert size_of(asked_for() - before) >= 32 * MIB
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
