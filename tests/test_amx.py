"""ggml's AMX kernels: used where they are right, left out where they would end the process."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys

import llama_cpp
import numpy as np
import pytest

import inside
from gguf_maker import write_random_model
from localspec.gguf_file.tensor_types import repacked_types
from localspec.llama import native
from localspec.llama.library import amx_is_left_out, system_info
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.llama.quirks import amx, amx_trial

GGML = native.shared_library(llama_cpp)
HAS_KERNELS = sys.platform == "linux" and (
    b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()
)
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="this build has no AMX kernels")


def names_of_places() -> list[bytes]:
    places = amx_trial.listed(amx_trial.extra_places(GGML))
    return [amx_trial.name_of(GGML, place) for place in places]


@pytest.mark.skipif("REPACK = 1" not in system_info(), reason="this build repacks nothing")
def test_the_places_for_weights_are_found():
    assert b"CPU_REPACK" in names_of_places()


@pytest.mark.process
@needs_kernels
def test_they_are_used_if_and_only_if_they_are_right():
    """As a process of its own finds out, whose libllama nothing was taken from."""
    program = [sys.executable, amx_trial.__file__, inside.library_path(GGML)]
    tried = subprocess.run(program, capture_output=True, text=True, check=False)
    is_right = tried.stdout.strip() == amx_trial.RIGHT
    assert (tried.returncode == 0) == is_right
    assert amx_is_left_out != is_right
    assert (amx_trial.PLACE in names_of_places()) == is_right
    assert ("AMX_INT8 = 1" in system_info()) == is_right
    assert ("Q6_K" in repacked_types(system_info())) == is_right


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_batch_of_quantised_weights_is_survived_and_right(tmp_path, demo_target, kind):
    """Types that have such kernels."""
    path = write_random_model(
        tmp_path / "model.gguf", demo_target, width=256, context_length=128, quantization=kind
    )
    model = LlamaModel.open(path, LlamaOptions(context_length=128, max_outputs=40))
    tokens = list(range(40, 80))
    together = np.array(model.decode(tokens, len(tokens)))
    model.truncate(0)
    in_turn = np.array([model.decode([token], 1)[0].copy() for token in tokens])
    model.close()
    spread = in_turn.std()
    assert np.isfinite(together).all()
    assert np.abs(together - in_turn).max() < 0.1 * spread


def test_the_trial_tells_right_products_from_wrong_ones(monkeypatch):
    """With weights where every CPU has them."""
    cpu = amx_trial.call(GGML, "ggml_backend_dev_by_type", ctypes.c_void_p, (ctypes.c_int, 0))
    place = amx_trial.call(
        GGML, "ggml_backend_dev_buffer_type", ctypes.c_void_p, (ctypes.c_void_p, cpu)
    )
    assert amx_trial.products_are_right(GGML, place)
    blocks = amx_trial.q8_blocks
    monkeypatch.setattr(amx_trial, "q8_blocks", lambda row: blocks([*row[:-1], row[-1] + 40]))
    assert not amx_trial.products_are_right(GGML, place)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGCHLD")
def test_a_trial_that_fails_is_noticed_where_children_are_not_waited_for():
    """The status of a child is 0 then, whatever happened."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert not amx.are_right("no such library")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_no_application_is_started_a_second_time(tmp_path, monkeypatch):
    """Where Python is a part of it, sys.executable is the application."""
    application = tmp_path / "application"
    application.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\necho {amx_trial.RIGHT}\n")
    application.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(application))
    assert not amx.are_right(inside.library_path(GGML))
    assert not (tmp_path / "started").exists()
    monkeypatch.setattr(sys, "executable", None)
    assert not amx.are_right(inside.library_path(GGML))
