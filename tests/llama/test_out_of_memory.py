"""Memory that runs out while a model is opened is no damaged file, and says what helps."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gguf_maker import write_random_model
from hollow_model import HollowShape, write_hollow_model
from localspec.errors import OptionError
from localspec.llama.devices import Device
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions

# In a process of its own, which may take no more than 300 MB beside what it has.
OPEN = """
import resource, sys
from pathlib import Path
from localspec.errors import LocalspecError
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions

taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 300_000_000,) * 2)
path, length, use_mmap = sys.argv[1:]
options = LlamaOptions(num_threads=1, context_length=int(length), use_mmap=bool(use_mmap))
try:
    LlamaModel.open(Path(path), options).close()
except LocalspecError as error:
    print(type(error).__name__, error, error.hint, sep="|")
else:
    print("opened")
"""


def opened_with_little_memory(path, context_length, *, use_mmap):
    arguments = [path, context_length, "yes" if use_mmap else ""]
    command = [sys.executable, "-c", OPEN, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return found.stdout.strip().split("|")


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits its own memory")
@pytest.mark.parametrize("use_mmap", [True, False])
def test_weights_that_find_no_memory_are_not_called_damaged(tmp_path, demo_target, use_mmap):
    shape = HollowShape("llama", 2048, 32, 8, 64, 8192, num_layers=20)
    path = write_hollow_model(tmp_path / "large.gguf", demo_target, shape)
    kind, message, hint = opened_with_little_memory(path, 512, use_mmap=use_mmap)
    assert kind == "MemoryLimitError"
    assert "allocate" in message
    assert "num_gpu_layers=…" in hint
    assert "damaged" not in hint


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits its own memory")
def test_caches_that_find_no_memory_are_named(tmp_path, demo_target):
    path = write_random_model(tmp_path / "long.gguf", demo_target, context_length=1 << 24)
    kind, message, hint = opened_with_little_memory(path, 1 << 24, use_mmap=True)
    assert kind == "MemoryLimitError"
    assert "no context of 16777216 tokens" in message
    assert "context_length=…" in hint
    assert opened_with_little_memory(path, 512, use_mmap=True) == ["opened"]


def test_a_gpu_that_is_not_there_is_not_taken_for_that(demo_target, monkeypatch):
    """libllama refuses to load; without any GPU it computes on the processor."""
    LlamaModel.open(demo_target, LlamaOptions(main_gpu=3, context_length=256)).close()
    gpu = Device(name="CUDA0", description="", kind="GPU", free_bytes=1, total_bytes=1)
    monkeypatch.setattr("localspec.llama.opening.list_devices", lambda _lib: (gpu,))
    with pytest.raises(OptionError, match="no GPU 3") as caught:
        LlamaModel.open(demo_target, LlamaOptions(main_gpu=3, context_length=256))
    assert "0 for CUDA0" in caught.value.hint
