"""`scripts/develop/plant_bugs.py` stays in step with the code that it plants its bugs in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import localspec
import plant_bugs

SCRIPT = Path(plant_bugs.__file__)


def test_every_bug_has_one_place():
    package = Path(localspec.__file__).parent
    bugs = plant_bugs.known_bugs()
    counts = {bug.name: (package / bug.file).read_text("utf-8").count(bug.old) for bug in bugs}
    assert counts == dict.fromkeys(counts, 1)
    assert len(counts) >= 30


@pytest.mark.process
def test_every_bug_has_a_test_that_runs_by_default():
    tests = {bug.test for bug in plant_bugs.known_bugs()}
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "--collect-only", "-q", *sorted(tests)],
        cwd=SCRIPT.parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_every_planted_bug_is_noticed():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
