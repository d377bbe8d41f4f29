"""The measurement of what the server costs: real processes, no stopwatch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent.parent / "scripts/measure/measure_server.py"


def test_it_prints_both_sides_and_their_ratio(demo_target):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    for options in ((), ("--target", str(demo_target), "--draft-tokens", "0")):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--answers", "2", "--max-tokens", "12", *options],
            capture_output=True,
            text=True,
            check=True,
        )
        head, _, row = done.stdout.splitlines()
        assert "server ÷ engine" in head
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", row.replace("…", ""))]
        assert len(numbers) == 6 * 3  # each with its lowest and highest
        assert all(number > 0 for number in numbers[:15])
