"""Small files whose weights ggml repacks are read, and then in memory once."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

import localspec
from hollow_model import SHAPES, write_hollow_model
from localspec.gguf_file.check import check_model_file
from localspec.llama.options import LlamaOptions
from localspec.preflight.fit import repacked_here, room_here
from localspec.preflight.room import Planned, pair_memory
from localspec.preflight.settings import with_suited_mapping

_REPACKED = dict.fromkeys(("Q4_0", "Q4_K", "IQ4_NL"), 1.0)


def test_a_small_file_is_read_and_a_large_one_mapped(tmp_path, demo_target):
    small = check_model_file(demo_target)
    large = check_model_file(
        write_hollow_model(
            tmp_path / "large.gguf",
            demo_target,
            replace(SHAPES["Llama 3.1 8B"], num_layers=12),
        )
    )
    assert with_suited_mapping(LlamaOptions(), small, _REPACKED).use_mmap is False
    assert with_suited_mapping(LlamaOptions(), large, _REPACKED).use_mmap is None
    # Nothing is there twice, where a GPU computes or the processor has no order of its own.
    assert with_suited_mapping(LlamaOptions(), small, {}).use_mmap is None


@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_user_has_the_last_word(demo_target, use_mmap):
    header = check_model_file(demo_target)
    asked = LlamaOptions(use_mmap=use_mmap)
    assert with_suited_mapping(asked, header, _REPACKED) == asked


@pytest.mark.skipif(
    not repacked_here(LlamaOptions(num_gpu_layers=0)),
    reason="this processor repacks no weights",
)
def test_loading_goes_by_it_and_so_does_the_estimate(caplog, demo_target):
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        localspec.load(draft_tokens=0, num_gpu_layers=0).close()
    assert any("CPU model buffer size" in line for line in caplog.messages)
    assert not any("CPU_Mapped" in line for line in caplog.messages)

    room = room_here()
    header = check_model_file(demo_target)
    read, mapped = (
        pair_memory([Planned(header, options)], 512, room)
        for options in (
            LlamaOptions(use_mmap=use_mmap, num_gpu_layers=0) for use_mmap in (None, True)
        )
    )
    assert read.peak_bytes == read.needed_bytes == mapped.needed_bytes < mapped.peak_bytes
