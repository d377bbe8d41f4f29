"""What README, CI and the package say of each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import localspec

ROOT = Path(__file__).parent.parent


def test_ci_runs_what_the_readme_says():
    """Every command of .ci/run stands in the README, word for word."""
    readme = (ROOT / "README.md").read_text("utf-8")
    script = (ROOT / ".ci/run").read_text("utf-8")
    lines = [line.strip() for line in script.splitlines()]
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands
    assert [command for command in commands if command not in readme] == []


def test_version_and_changelog_agree():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert headings[0] == "Unreleased"
    declared = re.search(
        r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M
    )
    assert declared is not None
    assert declared[1] == localspec.__version__
    assert localspec.__version__ in headings or headings == ["Unreleased"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is another reason to skip it")
def test_what_is_not_installed_is_said_in_one_line():
    """Of a module that is skipped, and without a PATH where tmux could be found."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "tests/test_tmux.py"],
        cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "\nskipped what needs tmux: not installed here\n" in done.stdout
