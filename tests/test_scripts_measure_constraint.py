"""`scripts/measure/measure_constraint.py` measures what it says, on the smallest files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent.parent / "scripts/measure/measure_constraint.py"


def test_a_tiny_shape_writes_json_by_what_is_forced(tmp_path, demo_target):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--vocabulary", demo_target, "--target", "tiny",
         "--out", tmp_path, "--rounds", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4096 tokens; read for constraints in ")
    assert len(re.findall(r"K \d: added", done.stdout)) == 6
    # All but the first token, one value of each key, and nothing refused.
    found = re.search(
        r"(\d+) tokens in (\d+) steps; forced and kept (\d+) of (\d+)", done.stdout
    )
    num_tokens, num_steps, kept, forced = map(int, found.groups())
    assert kept == forced == num_tokens - num_steps + 1
    assert num_tokens > 200
