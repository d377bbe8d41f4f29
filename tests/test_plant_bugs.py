"""`scripts/develop/plant_bugs.py` stays in step with the code that it plants its bugs in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/develop/plant_bugs.py"


@pytest.mark.slow
def test_every_planted_bug_is_noticed():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
