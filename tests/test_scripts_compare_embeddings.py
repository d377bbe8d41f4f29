"""The comparison of embeddings: real processes, no stopwatch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_embedder import MEAN, write_embedder

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="a program that begins with #!"),
]

SCRIPT = Path(__file__).parent.parent / "scripts/compare/compare_embeddings.py"
# Serves as llama-server would: the model stands behind -m, the address at the end.
_OTHER = """#!{python}
import os, sys
words = ["-m", "localspec", "serve", "demo", "--embeddings", sys.argv[2], *sys.argv[-4:]]
os.execv({python!r}, [{python!r}, *words])
"""


def test_both_servers_give_the_same_vectors(tmp_path, demo_target):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    model = write_embedder(tmp_path / "mean.gguf", demo_target, MEAN, context_length=256)
    other = tmp_path / "llama-server"
    other.write_text(_OTHER.format(python=sys.executable))
    other.chmod(0o755)
    asked = ["--programs", tmp_path, "--rounds", "2", "--texts", "1", "3", "--words", "20"]
    done = subprocess.run(
        [sys.executable, SCRIPT, model, *asked], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "smallest cosine: 1.0000000" in done.stdout
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()[-2:]] == ["1", "3"]
