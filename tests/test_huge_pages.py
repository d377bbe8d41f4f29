"""Weights that libllama stores itself lie in large pages, and nobody else's memory does."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from gguf_maker import write_random_model
from regions import load

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
