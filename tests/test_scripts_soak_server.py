"""The soak of a server, for some seconds: real processes, kills and restarts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,  # and takes all processors, which tests of terminals beside it feel
    pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix"),
]

SCRIPT = Path(__file__).parent.parent / "scripts/measure/soak_server.py"


def test_it_counts_what_came_of_all_requests_and_finds_no_fault():
    """How much memory grows shows after minutes only."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--minutes", "0.2", "--clients", "6"],
        capture_output=True,
        text=True,
    )
    assert "; 0 faults" in done.stdout, done.stdout + done.stderr
    counts = {what: int(number) for number, what in re.findall(r"(\d+) ([^\n,]+)", done.stdout)}
    assert counts["requests"] > 20
    assert counts["kills of the models' process"] >= 1
    assert counts["servers"] >= 2
    assert counts["told as alone (exact)"] > 5
