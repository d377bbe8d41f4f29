"""What cannot fit is refused before it is loaded, with what would fit."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import psutil
import pytest
from click.testing import CliRunner

import localspec
from gguf_maker import write_random_model
from localspec.cli import main
from localspec.errors import MemoryLimitError
from localspec.llama_options import LlamaOptions
from localspec.machine import memory_here
from localspec.model_file import check_model_file
from localspec.room import (
    Planned,
    Room,
    fitting_preset,
    largest_context,
    pair_memory,
    room_here,
)

SMALL = Room(main_bytes=100 << 20, gpu_bytes=0, repacked={}, uses_gpu=False)


@pytest.fixture
def long_model(tmp_path, demo_target):
    """A model whose caches would take 256 GB at the context it was trained for."""
    return write_random_model(tmp_path / "long.gguf", demo_target, context_length=1 << 30)


def test_a_context_that_cannot_fit_is_refused_with_one_that_does(long_model):
    with pytest.raises(MemoryLimitError, match=r"long.gguf need \d+\.\d GB at a") as caught:
        localspec.load(target=long_model, context_length=1 << 30)
    fitting = int(re.search(r"up to (\d+) tokens", caught.value.hint)[1])
    assert 0 < fitting < 1 << 30
    model = Planned(check_model_file(long_model))
    room = room_here()
    assert pair_memory([model], fitting, replace(room, main_bytes=room.main_bytes * 2))


def test_the_command_line_says_so_in_two_lines(long_model):
    result = CliRunner().invoke(
        main, ["generate", "hi", "--target", str(long_model), "--ctx", str(1 << 30)]
    )
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Error", "Hint"]
    assert "--force" in lines[1]


def test_force_loads_all_the_same(monkeypatch):
    """On a machine that says it has next to nothing left."""
    real = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=1 << 20))
    with pytest.raises(MemoryLimitError, match=r"target.gguf and draft.gguf need 0\.1 GB"):
        localspec.load()
    with localspec.load(force=True) as engine:
        assert engine.generate("hi", max_tokens=2).stats.completion_tokens == 2


def test_the_largest_context_is_the_edge(long_model, demo_draft):
    models = [Planned(check_model_file(path)) for path in (long_model, demo_draft)]
    largest = largest_context(models, SMALL)
    assert pair_memory(models, largest, SMALL).needed_bytes <= SMALL.total_bytes
    assert pair_memory(models, largest + 256, SMALL).needed_bytes > SMALL.total_bytes


def test_smaller_caches_leave_room_for_a_longer_context(long_model):
    """Else whoever asks for them because memory is short would be refused."""
    header = check_model_file(long_model)
    quantised = LlamaOptions(cache_type_k="q8_0", cache_type_v="q8_0", flash_attention="on")
    usual, longer = (
        largest_context([Planned(header, options)], SMALL)
        for options in (LlamaOptions(flash_attention="on"), quantised)
    )
    assert longer > 1.05 * usual  # in a model as small as this, most is scratch memory


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_types_of_the_caches_count_where_it_is_refused(tmp_path, long_model, role):
    """Of either model."""
    other = shutil.copy(long_model, tmp_path / "other.gguf")
    options = LlamaOptions(cache_type_k="q4_0", cache_type_v="q4_0", flash_attention="on")
    needed = []
    for own in (None, options):
        with pytest.raises(MemoryLimitError) as caught:
            localspec.load(
                target=long_model,
                draft=other if role == "draft" else None,
                context_length=1 << 30,
                **{f"{role}_options": own},
            )
        needed.append(float(re.search(r"need (\d+\.\d) GB", str(caught.value))[1]))
    assert needed[1] < 0.95 * needed[0]


def test_no_context_fits_where_the_weights_do_not(demo_target):
    tiny = replace(SMALL, main_bytes=1 << 20)
    assert largest_context([Planned(check_model_file(demo_target))], tiny) == 0


def test_memory_of_gpus_counts(demo_target):
    models = [Planned(check_model_file(demo_target))]
    tiny = replace(SMALL, main_bytes=1 << 20, gpu_bytes=1 << 30)
    assert largest_context(models, tiny) == 2048


@pytest.mark.parametrize(
    ("gigabytes", "name"), [(0.5, None), (2, "smollm2-1.7b"), (1000, "llama-3.3-70b")]
)
def test_the_largest_preset_that_fits_is_named(gigabytes, name):
    found = fitting_preset(replace(SMALL, main_bytes=int(gigabytes * 1e9)))
    assert (found.name if found else None) == name


def test_a_container_has_what_it_was_given(tmp_path):
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 200000\n")
    memory = memory_here(tmp_path)
    assert (memory.total_bytes, memory.available_bytes) == (1_000_000, 500_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_here(tmp_path).total_bytes == psutil.virtual_memory().total
