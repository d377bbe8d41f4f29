"""The memory estimate against a process that loads the pair and answers."""

from __future__ import annotations

import multiprocessing
import sys

import pytest
from measure_memory import measured_peak_bytes

from localspec.gguf_file.check import check_model_file
from localspec.preflight.free_memory import Planned, free_memory, pair_memory
from shape_pair.bigrams import TextSpec
from shape_pair.pair import PairSpec, make_pair

pytestmark = pytest.mark.process


@pytest.mark.skipif(sys.platform == "win32", reason="the peak is not known there")
@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_the_estimate_is_what_a_process_takes(tmp_path, demo_target, demo_draft, name):
    """Within 10 %: the smaller a model, the more the process itself counts."""
    pair, context_length = (demo_target, demo_draft), 2048
    if name == "tiny":
        text = TextSpec(entropy=0.0, agreement=(0.9,), segment=64, period=64, seed=1)
        pair = make_pair(PairSpec("tiny", "tiny", "Q8_0", "Q4_K_M", text), tmp_path)
    estimated = pair_memory(
        [Planned(check_model_file(path)) for path in pair], context_length, free_memory()
    )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured = pool.apply(measured_peak_bytes, (*pair, context_length))
    assert estimated.peak_bytes == pytest.approx(measured, rel=0.1)
