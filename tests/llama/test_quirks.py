"""Workarounds for ggml: AMX kernels, how long threads wait, and large pages for weights."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from gguf_maker import write_random_model
from localspec.gguf_file.tensor_types import repacked_types
from localspec.llama import native
from localspec.llama.library import amx_verdict, system_info
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.llama.quirks import amx
from spawned import send_large_pages

GGML = native.shared_library(llama_cpp)
HAS_KERNELS = sys.platform == "linux" and (
    b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.process
@pytest.mark.skipif(not HAS_KERNELS, reason="this build has no AMX kernels")
def test_amx_kernels_are_used_if_and_only_if_they_are_right():
    """As a process of its own finds out, whose libllama nothing was taken from."""
    verdict = amx.run_trial(GGML, amx.BUFFER_TYPE)
    is_right = verdict is amx.AmxTrial.RIGHT
    buffer_types = amx.listed(amx.extra_buffer_types(GGML))
    names = [amx.name_of(GGML, each) for each in buffer_types]
    assert amx_verdict is verdict
    assert (amx.BUFFER_TYPE in names) == is_right
    assert ("AMX_INT8 = 1" in system_info()) == is_right
    assert ("Q6_K" in repacked_types(system_info())) == is_right


def test_the_trial_finds_usual_kernels_right():
    usual = native.ggml_function(llama_cpp, "ggml_backend_cpu_buffer_type", ctypes.c_void_p)
    assert amx.products_are_right(GGML, usual())


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="no other build has AMX kernels")
def test_a_trial_in_another_process_loads_back_ends_that_are_files():
    """The ready-made libllama has its back ends as files. All builds have usual kernels."""
    assert amx.run_trial(GGML, b"CPU") is amx.AmxTrial.RIGHT


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="no other build has AMX kernels")
def test_kernels_without_a_product_are_not_wrong():
    assert amx.run_trial(GGML, b"no such buffer type") is amx.AmxTrial.UNTRIED


@pytest.mark.parametrize(
    ("written", "verdict"),
    [
        ("", amx.AmxTrial.UNTRIED),
        ("begins", amx.AmxTrial.WRONG),  # the product ended the process
        ("begins\nwrong", amx.AmxTrial.WRONG),
        ("begins\nright", amx.AmxTrial.RIGHT),
    ],
)
def test_a_trial_is_wrong_only_where_a_product_was(written, verdict):
    assert amx.verdict_of(written) is verdict


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_batch_of_quantised_weights_is_survived_and_right(tmp_path, demo_target, kind):
    """Types that have AMX kernels."""
    path = write_random_model(
        tmp_path / "model.gguf", demo_target, width=256, context_length=128, quantization=kind
    )
    model = LlamaModel.open(path, LlamaOptions(context_length=128, max_outputs=40))
    tokens = list(range(40, 80))
    together = np.array(model.decode(tokens, len(tokens)))
    model.truncate(0)
    in_turn = np.array([model.decode([token], 1)[0].copy() for token in tokens])
    model.close()
    assert np.isfinite(together).all()
    assert np.abs(together - in_turn).max() < 0.1 * in_turn.std()


SPINNING = """
import os
before = dict(os.environ)
from localspec.llama import model
assert dict(os.environ) == before
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ({}, "GOMP_SPINCOUNT", "3000"),
        ({}, "OMP_WAIT_POLICY", "ACTIVE"),
        ({"GOMP_SPINCOUNT": "77"}, "GOMP_SPINCOUNT", "77"),
        ({"OMP_WAIT_POLICY": "active"}, "OMP_WAIT_POLICY", "ACTIVE"),
    ],
)
def test_threads_spin_briefly_unless_the_user_has_set_how_long(settings, name, value):
    """By libgomp's own words; and no other process is told."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    run = subprocess.run(
        [sys.executable, "-c", SPINNING],
        env={**others, "OMP_DISPLAY_ENV": "verbose", **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(re.findall(r"(\w+) = '(.*?)'", run.stderr))
    if "GOMP_SPINCOUNT" not in found:
        pytest.skip("this build of llama.cpp has no libgomp")
    assert found[name] == value
    assert (found["GOMP_SPINCOUNT"] == "3000") is (not settings)


@pytest.mark.process
@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="no transparent huge pages here")
def test_large_pages_are_asked_for_weights_and_nothing_else(tmp_path, demo_target):
    path = write_random_model(
        tmp_path / "model.gguf", demo_target, width=2048, num_layers=2, quantization="Q4_0"
    )
    spawning = multiprocessing.get_context("spawn")
    for use_mmap in (True, False):
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=send_large_pages, args=(theirs, path, use_mmap))
        process.start()
        theirs.close()
        num_weight_bytes, num_bytes = ours.recv()
        process.join()
        # With the file mapped, only what is repacked.
        assert 0.5 * num_weight_bytes <= num_bytes <= 1.2 * num_weight_bytes
