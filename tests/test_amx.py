"""ggml's AMX kernels: used where they are right, left out where they would end the process."""

from __future__ import annotations

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
from localspec.llama.quirks import amx_trial

GGML = native.shared_library(llama_cpp)
HAS_KERNELS = sys.platform == "linux" and (
    b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()
)
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="this build has no AMX kernels")


def names_of_buffer_types() -> list[bytes]:
    buffer_types = amx_trial.listed(amx_trial.extra_buffer_types(GGML))
    return [amx_trial.name_of(GGML, each) for each in buffer_types]


@pytest.mark.process
@needs_kernels
def test_they_are_used_if_and_only_if_they_are_right():
    """As a process of its own finds out, whose libllama nothing was taken from."""
    program = [sys.executable, amx_trial.__file__, inside.library_path(GGML)]
    tried = subprocess.run(program, capture_output=True, text=True, check=False)
    is_right = tried.stdout.strip() == amx_trial.RIGHT
    assert (tried.returncode == 0) == is_right
    assert amx_is_left_out != is_right
    assert (amx_trial.BUFFER_TYPE in names_of_buffer_types()) == is_right
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
