"""libllama is loaded before NumPy, and not at all where another process has the models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.process

# Notes what is mapped when somebody first asks for NumPy, and in the end.
WATCHED = """
import sys

def is_mapped():
    return "libllama" in open("/proc/self/maps").read()

class Finder:
    first = None

    def find_spec(self, name, path=None, target=None):
        if name == "numpy" and Finder.first is None:
            Finder.first = is_mapped()

sys.meta_path.insert(0, Finder())
{statement}
print("numpy" in sys.modules, Finder.first, is_mapped())
"""
CHAT = """
import contextlib
from localspec.cli import main
sys.argv = ["localspec", "chat", "--draft-tokens", "0", "--gpu-layers", "0"]
with contextlib.suppress(SystemExit):
    main()
"""
TOGETHER = [
    "from localspec import load",
    "from localspec import *",
    "from localspec import Chat, load",
    "from localspec import Reply, load",
    "from localspec import TokenLogprobs, disk_usage, load",
    "import localspec; localspec.load(draft_tokens=0, num_gpu_layers=0).close()",
    "import localspec.isolated.child",
    "import localspec.llama.embedding_model",
    "import localspec.evaluation.bench",
    "import localspec.evaluation.lossless_check",
    "import localspec.advice.explanation",
    CHAT,
]


@pytest.fixture
def printed(tmp_path) -> Callable[[str], list[str]]:
    """What a new process prints."""

    def run(code: str) -> list[str]:
        command = [sys.executable, "-c", code]
        out = subprocess.check_output(
            command, cwd=tmp_path, text=True, timeout=120, stdin=subprocess.DEVNULL
        )
        return out.split()

    return run


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("statement", TOGETHER)
def test_libllama_is_loaded_first(printed, statement):
    """A libllama for CUDA ended the process where NumPy's C++ library was there before."""
    assert printed(WATCHED.format(statement=statement)) == ["True", "True", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "statement", ["from localspec import IsolatedEngine, Chat", "import localspec.server.app"]
)
def test_a_process_whose_models_are_in_another_has_no_libllama(printed, statement):
    assert printed(WATCHED.format(statement=statement)) == ["True", "False", "False"]


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_fork_of_a_process_that_imported_load_may_load(printed):
    """As a server that imports an application before it forks its workers."""
    code = """
import os
from localspec import load

if (child := os.fork()) == 0:
    with load(draft_tokens=0, num_threads=1, num_gpu_layers=0) as engine:
        engine.generate("Hi", max_tokens=2).reply()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert printed(code) == ["0"]
