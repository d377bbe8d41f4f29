"""The maker of pairs, on which the figures of README rest: it makes what was asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent.parent / "scripts/measure/make_pair.py"


@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_K_M"])
@pytest.mark.parametrize(
    ("agreement", "entropy"), [(0.8, 1.0), pytest.param(0.3, 0.0, marks=pytest.mark.slow)]
)
def test_pair_has_the_agreement_and_entropy_asked_for(
    tmp_path, quantization, agreement, entropy
):
    """By its logits, and by what the loop accepts, greedy and sampled."""
    shape = ["--target", "tiny", "--draft", "tiny", "--quantization", quantization]
    asked = ["--agreement", str(agreement), "--entropy", str(entropy), "--check"]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", tmp_path, *shape, *asked],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    figures = {name: float(value) for name, value in lines[2:]}
    assert figures["entropy"] == pytest.approx(entropy, abs=0.02)
    # Four deviations of a share among 256 positions, and among the 128 or so steps.
    for name, bound in {
        "agreement": 0.12, "overlap": 0.12, "greedy_kept": 0.16, "sampled_kept": 0.16,
    }.items():  # fmt: skip
        assert figures[name] == pytest.approx(agreement, abs=bound), name
