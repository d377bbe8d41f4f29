"""What libgomp is told of waiting, by its own words."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

SCRIPT = """
import os
before = dict(os.environ)
from localspec.llama import model
assert dict(os.environ) == before
"""


def told(**settings: str) -> dict[str, str]:
    """What libgomp says it has been told, when a fresh process loads it with llama.cpp."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**others, "OMP_DISPLAY_ENV": "verbose", **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(re.findall(r"(\w+) = '(.*?)'", run.stderr))
    if "GOMP_SPINCOUNT" not in found:
        pytest.skip("this build of llama.cpp has no libgomp")
    return found


@pytest.mark.process
def test_threads_spin_briefly_and_nobody_else_is_told():
    assert told()["GOMP_SPINCOUNT"] == "3000"


@pytest.mark.process
def test_what_the_user_has_set_stays():
    assert told(GOMP_SPINCOUNT="77")["GOMP_SPINCOUNT"] == "77"
    assert told(OMP_WAIT_POLICY="active")["OMP_WAIT_POLICY"] == "ACTIVE"
    assert told(OMP_WAIT_POLICY="active")["GOMP_SPINCOUNT"] != "3000"
